"""Runs from configurations: the one place where data, model, method, executor and folder are put
together.
"""

import logging
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from . import config as configuration
from .assemble import (
    identity_of,
    make_federation,
    make_model,
    make_objective,
    make_setup,
    with_files,
)
from .by_name import algorithm_name
from .config import Config
from .core import Algorithm, ClientId, Model, SettingError
from .core.settings import received
from .data import Federation
from .data.preprocessing import Preprocessing
from .deploy.finished import FinishedRun, network_of
from .deploy.kept import InMemory
from .deploy.saving import write_models
from .diagnosis.auto import Auto, described_choice
from .engine import warnings
from .engine.checkpoint import Progress, check_identity
from .engine.choice import Choice, choose
from .engine.executors import fork_server
from .engine.experiment import Experiment
from .engine.observers import OneObserver, OnRound, Watched, Watcher, observers_of, watching
from .engine.records import DIAGNOSIS_FILE, ExecutorChoice, RunFolder, WarningFacts
from .engine.roster import Roster
from .inputs import AlgorithmLike, ModelLike, Source, load_config
from .result import Opened, Result
from .revision import code_revision

if TYPE_CHECKING:
    from .diagnosis.run import Diagnosis

MANY_CLIENTS = 10_000  # above, it is said that a sample of them may be evaluated

log = logging.getLogger(__name__)


def run(
    source: Source | None = None,
    *,
    clients: object = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    model: ModelLike | None = None,
    algorithm: AlgorithmLike | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    out: str | Path | None = None,
    until: int | None = None,
    on_round: OnRound = (),
    **sections: Mapping[str, Any],
) -> Result:
    """Run a federation: from a TOML file, a dict of sections, or settings given by name.

    >>> import concordfl as cf
    >>> cf.run(data={"name": "digits"}, algorithm="fedprox", rounds=1).summary["rounds"]
    1

    clients: examples from memory: a dict of pairs (x, y) or of torch Datasets by the client's name,
        or a data frame, of which `client` and `label` name the columns.
    model: a name, a table, a `torch.nn.Module`, or a function that builds one.
    algorithm: a name, a table, or an object, also of a class that is registered nowhere; "auto" is
        the method that `diagnose` recommends for these clients.
    on_round: called with an `Event` after every round; several functions are called in turn. One
        that raises `Stop` ends the run with that round. Trackers (`track`) go here too.
    sections: the sections of a run file as dicts; those not given have their defaults.

    With `out`, a new folder, everything is written there and a killed run can be taken up again by
    `resume`; so can one that is played only `until` a round.
    """
    observers = observers_of(on_round)
    _check_until(until)
    settings = load_config(
        source,
        clients=clients,
        client=client,
        label=label,
        model=model,
        algorithm=algorithm,
        rounds=rounds,
        seed=seed,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        **sections,
    )
    if out is not None:
        RunFolder.require_new(Path(out))
    settings, diagnosis = _choose_method(settings)
    if out is None:
        return _run(settings, None, observers, until, diagnosis)
    settings, files = with_files(configuration.with_fixed_paths(settings))
    text = settings.to_toml()
    if diagnosis is not None:
        files[DIAGNOSIS_FILE] = diagnosis.to_bytes()
        text = f"# {described_choice(diagnosis.content['chosen'])}\n{text}"
    with RunFolder.create(Path(out), text, files) as folder:
        return _run(settings, folder, observers, until, diagnosis)


def resume(
    out: str | Path,
    *,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
    until: int | None = None,
    on_round: OnRound = (),
    trust: bool = False,
) -> Result:
    """Go on with the run in the folder `out` where it stopped, bit for bit; to its end, or `until`
    a round.

    A finished run is only read. A model or an algorithm that no other process can import, as one of
    a notebook, is given again. A model, method or embedding `package.module:name` is code that the
    folder asks to run: it is refused unless you `trust` the folder.
    """
    observers = observers_of(on_round)
    _check_until(until)
    with RunFolder.open(Path(out)) as folder:
        settings = configuration.read_run_folder(
            folder.path, trust=trust, model=model, algorithm=algorithm
        )
        return _run(settings, folder, observers, until)


def go_on(
    settings: Config,
    out: Path,
    *,
    until: int | None = None,
    on_round: OnRound = (),
) -> Result:
    """Go on with a run that this process has begun in the folder `out` with these settings, which
    may hold objects that no folder can.
    """
    observers = observers_of(on_round)
    with RunFolder.open(out) as folder:
        return _run(settings, folder, observers, until)


def _check_until(until: int | None) -> None:
    if until is not None and (type(until) is not int or until < 1):
        raise SettingError(f"until must be a round >= 1, got {received(until)}")


def _choose_method(settings: Config) -> tuple[Config, "Diagnosis | None"]:
    """The settings with a method in the place of `auto`, and the diagnosis that chose it."""
    if not isinstance(settings.algorithm, Auto):
        return settings, None
    from .diagnosis.choose import choose_method  # scipy's tests take a while to import

    return choose_method(settings, settings.algorithm)


def _diagnosed(folder: RunFolder) -> "Diagnosis | None":
    """What a run that is resumed was chosen by."""
    if not (folder.path / DIAGNOSIS_FILE).is_file():
        return None
    from .diagnosis.run import load_diagnosis

    return load_diagnosis(folder.path)


def _run(
    settings: Config,
    folder: RunFolder | None,
    observers: Sequence[OneObserver],
    until: int | None,
    diagnosis: "Diagnosis | None" = None,
) -> Result:
    finished = folder.read_summary() if folder is not None else None
    if folder is not None and finished is not None:
        _require_network(folder, settings, finished)
        _show_finished(folder, settings, finished, observers)
        return Result.of_folder(folder, settings, finished)
    began = time.monotonic()
    if folder is not None:
        folder.show_running()
        diagnosis = diagnosis or _diagnosed(folder)
    recorded = None if folder is None else folder.read_executor()
    if recorded is not None:
        _require_simulation(recorded, folder)
        settings = replace(settings, run=replace(settings.run, device=recorded["device"]))
    if (settings.run.executor if recorded is None else recorded["name"]) == "processes":
        fork_server.begin()  # imports while the data are read
    federation = make_federation(settings)
    _require_figures(settings, federation)  # refuse before any work is done
    model = make_model(settings, federation)
    setup = make_setup(settings, model, make_objective(settings, federation))
    identity = {} if folder is None else _identify(folder, settings, federation, model)
    if recorded is not None:
        choice = Choice(recorded["name"], recorded["workers"], recorded["reason"])
    else:
        choice = choose(setup, federation, settings.run)
    if folder is not None and recorded is None:
        folder.write_executor({**choice._asdict(), "device": model.device.type})
    with closing(choice.make(setup, federation, settings.run, folder)) as executor:
        roster = Roster.from_federation(federation, setup)
        experiment = Experiment(setup, roster, settings.run, executor, folder, identity=identity)
        _say_evaluation(experiment)
        progress = experiment.restore()
        set_up = time.monotonic() - began
        watched = _watched(settings, folder, experiment.records)
        with watching(observers, watched) as experiment.observe:
            experiment.run(progress, until)
            data = _data_facts(settings, federation, experiment)
            summary = summarise(settings, experiment, progress, choice.reason, data)
            summary["seconds"]["set_up"] = set_up
            if diagnosis is not None and "chosen" in diagnosis.content:
                summary["auto"] = {**diagnosis.content["chosen"], "found": diagnosis.sentences}
            if folder is not None and experiment.is_over(progress):
                write_models(folder, settings.algorithm, progress, executor.personal_parts())
                folder.write_summary(summary)
            watched.summary = summary if experiment.is_over(progress) else None
        if folder is not None:
            return Result.of_folder(folder, settings, summary)
        states = dict(executor.personal_parts()) if settings.algorithm.personal else {}
    kept = InMemory(federation, states)
    run = FinishedRun(settings, summary, progress, model, setup.objective, kept)
    return Result(summary, experiment.records, None, Opened(run), experiment.client_rows)


def _require_simulation(recorded: ExecutorChoice, folder: RunFolder | None) -> None:
    if recorded["name"] == "flower":
        raise SettingError(
            "a run whose clients are elsewhere must be gone on with by Flower, with the same out, "
            f"got {folder and folder.path}"
        )


def _watched(
    settings: Config,
    folder: RunFolder | None,
    records: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None = None,
) -> Watched:
    if folder is not None:
        path = folder.path.resolve()
        return Watched(path.name, settings.to_table(), path, records, summary)
    name = f"{algorithm_name(settings.algorithm)}-seed{settings.run.seed}"
    return Watched(name, settings.to_table(), None, records)


def _show_finished(
    folder: RunFolder,
    settings: Config,
    summary: Mapping[str, Any],
    observers: Sequence[OneObserver],
) -> None:
    """Let watchers see a run that was finished before."""
    watchers = [one for one in observers if isinstance(one, Watcher)]
    if watchers:
        with watching(watchers, _watched(settings, folder, folder.read_records(), summary)):
            pass


def _require_network(folder: RunFolder, settings: Config, summary: Mapping[str, Any]) -> None:
    """Refuse another network than a finished run has recorded, before anybody predicts by it."""
    recorded = folder.read_federation()
    if recorded is not None and "network" in recorded["identity"]:
        network_of(folder, settings, summary, recorded["identity"])


def _require_figures(settings: Config, federation: Federation) -> None:
    """A run that could not be evaluated, or whose cohort is too large, is refused."""
    settings.run.cohort_size(len(federation.participants))
    settings.run.evaluation_size(len(federation.participants))
    if len(federation.without_test()) == len(federation.participants) and not federation.held_out:
        raise SettingError(
            "scenario.split must leave test examples to at least one client, got "
            f"{list(settings.scenario.split)}"
        )
    selects = settings.run.select_on == "training" or federation.has_validation()
    if settings.run.patience is not None and not selects:
        raise SettingError(
            "run.patience needs validation examples at one client or more, got none: give some in "
            'scenario.split, or run.select_on = "training"'
        )


def _say_evaluation(experiment: Experiment) -> None:
    """Before the first round: where rounds ask few of many clients, evaluating all takes longer."""
    count, plan = len(experiment.evaluated), experiment.plan
    if plan.evaluate_clients is None and count > MANY_CLIENTS:
        log.info(
            "all %s clients are evaluated every %s rounds; run.evaluate_clients = 1000 evaluates a "
            "sample, always the same",
            f"{count:,}",
            plan.evaluate_every,
        )


def _identify(
    folder: RunFolder, settings: Config, federation: Federation, model: Model
) -> dict[str, str]:
    """What a run must be resumed with; recorded when it begins, with who takes part."""
    identity = {
        "config": folder.config_digest(),
        **folder.diagnosis_digest(),
        **identity_of(settings, federation, model),
    }
    recorded = folder.read_federation()
    if recorded is None:
        source = settings.to_table()["data"]
        folder.write_federation({"identity": identity, "source": source, **federation.describe()})
    else:
        check_identity(folder.path, recorded["identity"], identity)
        identity = recorded["identity"]  # without what runs did not record when this one began
    return identity


class DataFacts(NamedTuple):
    """What a summary says of the clients' data, or depends on."""

    preprocessing: Preprocessing
    clients_without_test: int
    warnings: Sequence[WarningFacts] = ()
    guess: Mapping[str, float] = {}
    groups: Mapping[ClientId, str] = {}


def _data_facts(settings: Config, federation: Federation, experiment: Experiment) -> DataFacts:
    # Where clients are the data's own, nobody knows whether they differ.
    simulated = settings.scenario.partition.needs_clients
    ids = federation.participants
    return DataFacts(
        federation.preprocessing,
        len(federation.without_test()),
        warnings.of_data(federation),
        warnings.guess_of(federation, experiment.evaluated, experiment.task.objective),
        warnings.true_groups(federation.groups, ids, simulated=simulated),
    )


def summarise(
    settings: Config, experiment: Experiment, progress: Progress, reason: str, data: DataFacts
) -> dict[str, Any]:
    """What `summary.json` says; `reason` is why the executor was chosen."""
    name = algorithm_name(settings.algorithm)
    rows = experiment.last_rows()
    facts = warnings.Facts(name, experiment, progress, rows, data.guess, data.groups)
    return {
        "algorithm": name,
        **experiment.summary(progress),
        "executor_reason": reason,
        "task": {
            "input_shape": list(experiment.task.input_shape),
            "num_classes": experiment.task.num_classes,
            "objective": experiment.task.objective.kind,
            "objective_settings": experiment.task.objective.to_table(),
        },
        "preprocessing": data.preprocessing.to_record(),
        "clients_without_test": data.clients_without_test,
        "damaged_checkpoints": list(experiment.problems),
        "warnings": [*data.warnings, *warnings.find(facts)],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    from importlib.metadata import version

    revision = code_revision()
    return {
        "concordfl": version("concordfl"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **({} if revision is None else {"revision": revision}),
    }
