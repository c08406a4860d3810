"""Runs from configurations: the one place where data, model, method, executor and folder are put
together.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from . import config as configuration
from .algorithms import ALGORITHMS
from .config import Config
from .core import Client, Key, Model, SettingError
from .data import Federation
from .engine.executors import Executor, Processes, Serial, Workplace
from .engine.experiment import Event, Experiment, ignore
from .engine.records import RunFolder
from .scenarios import build_federation

# seconds of training below which worker processes do not repay their start
WORTH_STARTING_WORKERS = 10.0
TRIAL_STEPS = 3

Observer = Callable[[Event], None]


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    records: list[dict[str, Any]]
    folder: Path | None
    server: Any

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the participants' test splits in the last round, of a method that
        predicts labels.
        """
        return float(self.summary["final"]["local_accuracy"])


class Choice(NamedTuple):
    """An executor, and why it was chosen."""

    name: str
    workers: int
    reason: str


def run(
    source: str | Path | Mapping[str, Any] | Config | None = None,
    *,
    out: str | Path | None = None,
    observe: Observer = ignore,
    **sections: Mapping[str, Any],
) -> Result:
    """Run a federation: from a TOML file, a dict of sections, or sections given by name.

    >>> import concordfl as cf
    >>> cf.run(data={"name": "digits"}, run={"rounds": 1}).summary["rounds"]
    1

    With `out`, a new folder, everything is written there and a killed run can be taken up again by
    `resume`.
    """
    settings = load_config(source, **sections)
    if out is None:
        return _run(settings, None, observe)
    with RunFolder.create(Path(out), settings.to_toml()) as folder:
        return _run(settings, folder, observe)


def resume(out: str | Path, *, observe: Observer = ignore, trust: bool = False) -> Result:
    """Go on with the run in the folder `out` where it stopped, bit for bit.

    A finished run is only read. A model or embedding `package.module:function` is code that the
    folder asks to run: it is refused unless you `trust` the folder.
    """
    with RunFolder.open(Path(out)) as folder:
        settings = configuration.read_run_folder(folder.path, trust=trust)
        return _run(settings, folder, observe)


def load_config(
    source: str | Path | Mapping[str, Any] | Config | None, **sections: Mapping[str, Any]
) -> Config:
    if isinstance(source, Config):
        return source
    table = dict(
        configuration.read_table(Path(source)) if isinstance(source, (str, Path)) else source or {}
    )
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section}
    return Config.from_table(table)


def make_federation(settings: Config) -> Federation:
    key = Key(settings.run.seed, "federation")
    data = settings.data.load(key.child("data"))
    federation = build_federation(
        data, settings.scenario, key, standardise=settings.data.standardise
    )
    return federation.with_pooled_client() if settings.algorithm.pools_data else federation


def make_model(settings: Config, federation: Federation) -> Model:
    """The network with the method's additions, after a look whether its output fits the labels."""
    example = federation.splits(federation.participants[0]).train.inputs(slice(0, 1))
    try:
        model = model_from(settings, federation.input_shape, federation.num_classes)
        outputs = model.logits(model.init(0), example)
    except (RuntimeError, ValueError, TypeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise SettingError(
            f"model {settings.model.name!r} must take examples of shape {federation.input_shape}: "
            f"{reason}"
        ) from None
    if outputs.shape != (1, federation.num_classes):
        rule = f"must give {federation.num_classes} outputs, one per class"
        raise SettingError(f"model {settings.model.name!r} {rule}, got {tuple(outputs.shape[1:])}")
    return model


def model_from(settings: Config, input_shape: tuple[int, ...], num_classes: int) -> Model:
    build = settings.model.builder(input_shape, num_classes)
    return Model(
        build,
        partial(settings.algorithm.network, num_classes=num_classes),
        _device(settings.run.device),
    )


def _run(settings: Config, folder: RunFolder | None, observe: Observer) -> Result:
    finished = folder.read_summary() if folder is not None else None
    if folder is not None and finished is not None:
        return Result(finished, folder.read_records(), folder.path, None)
    began = time.monotonic()
    recorded = None if folder is None else folder.read_executor()
    if recorded is not None:
        settings = replace(settings, run=replace(settings.run, device=recorded["device"]))
    federation = make_federation(settings)
    settings.run.cohort_size(len(federation.participants))  # refuse before any work is done
    model = make_model(settings, federation)
    if recorded is not None:
        choice = Choice(recorded["name"], recorded["workers"], recorded["reason"])
    else:
        choice = choose_executor(settings, federation, model)
        if folder is not None:
            folder.write_executor({**choice._asdict(), "device": model.device.type})
    with _executor(choice, settings, federation, model) as executor:
        experiment = Experiment(
            settings.algorithm,
            model,
            federation,
            settings.training,
            settings.run,
            executor,
            folder,
            observe,
        )
        progress = experiment.restore()
        set_up = time.monotonic() - began
        experiment.run(progress)
        summary = {
            "algorithm": configuration.name_of(settings.algorithm, ALGORITHMS),
            **experiment.summary(progress),
            "executor_reason": choice.reason,
            "task": {
                "input_shape": list(federation.input_shape),
                "num_classes": federation.num_classes,
            },
            "preprocessing": dict(federation.notes),
            "groups": {id: dict(groups) for id, groups in federation.groups.items()},
            "versions": versions(),
        }
        summary["seconds"]["set_up"] = set_up
        if folder is not None:
            folder.write_model("final", settings.algorithm.deployed(progress.server))
            if (
                progress.selected is not None and not settings.algorithm.personal
            ):  # personal parts are the last round's
                folder.write_model(
                    "selected", settings.algorithm.deployed(progress.selected.server)
                )
            for id in federation.participants if settings.algorithm.personal else ():
                if (state := progress.states.get(id)) is not None:
                    folder.write_client_state(id, state)
            folder.write_summary(summary)
    return Result(
        summary, experiment.records, None if folder is None else folder.path, progress.server
    )


def choose_executor(settings: Config, federation: Federation, model: Model) -> Choice:
    """The executor asked for; `auto` takes worker processes where the work repays their start."""
    plan = settings.run
    workers = plan.workers or os.cpu_count() or 1
    if sys.platform == "win32":
        workers = min(workers, 30)  # Windows waits for at most 63 handles, two per worker
    if plan.executor == "serial" or (plan.executor == "auto" and model.device.type != "cpu"):
        return Choice(
            "serial", 1, "asked for" if plan.executor == "serial" else f"device is {model.device}"
        )
    if plan.executor == "processes":
        if model.device.type != "cpu":
            raise SettingError(
                "run.executor must be 'serial' on a GPU, got 'processes' with device "
                f"{model.device}"
            )
        return Choice("processes", workers, "asked for")
    if workers == 1:
        return Choice("serial", 1, "one core")
    seconds = _estimate_seconds(settings, federation, model)
    if seconds < WORTH_STARTING_WORKERS:
        return Choice(
            "serial", 1, f"about {seconds:.1f} s of training, too short for worker processes"
        )
    return Choice(
        "processes", workers, f"about {seconds:.0f} s of training in one process, {workers} workers"
    )


def _estimate_seconds(settings: Config, federation: Federation, model: Model) -> float:
    """Training time in one process, from a few steps on the first client.

    The choice changes no result.
    """
    id = federation.participants[0]
    client = Client(
        id,
        federation.splits(id).train,
        num_classes=federation.num_classes,
        model=model,
        training=settings.training,
        seed=0,
        round=0,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        client.fit(model.init(0), steps=1)
        began = time.perf_counter()
        client.fit(model.init(0), steps=TRIAL_STEPS)
        per_step = (time.perf_counter() - began) / TRIAL_STEPS
    finally:
        torch.set_num_threads(threads)
    steps = sum(
        -(-federation.size(id) // settings.training.batch_size) for id in federation.participants
    )
    share = settings.run.cohort_size(len(federation.participants)) / len(federation.participants)
    return per_step * steps * settings.training.epochs * settings.run.rounds * share


@contextmanager
def _executor(
    choice: Choice, settings: Config, federation: Federation, model: Model
) -> Iterator[Executor]:
    materials = (model, federation, settings.training, settings.run.seed)
    executor: Executor = (
        Serial(Workplace(*materials))
        if choice.name == "serial"
        else Processes(*materials, workers=choice.workers)
    )
    try:
        yield executor
    finally:
        executor.close()


def _device(name: str) -> str:
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        return next(device for device, present in available.items() if present)
    if not available[name]:
        raise SettingError(f"run.device must be present, got {name!r} on a machine without it")
    return name


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "concordfl": version("concordfl"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
