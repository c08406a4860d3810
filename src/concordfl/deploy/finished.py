"""A finished run, opened again: its settings, what it learned, and how it read its data. Nothing of
the run is changed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..algorithms import ALGORITHMS
from ..assemble import make_federation, model_from
from ..config import Config, read_run_folder
from ..core import (
    CheckpointError,
    Classification,
    Client,
    Examples,
    Model,
    Objective,
    Predictor,
    SettingError,
    Tree,
    tree,
)
from ..core.settings import received
from ..data import Federation, Preprocessing
from ..data.own import Samples, read_samples
from ..engine import checkpoint
from ..engine.checkpoint import Progress, check_identity
from ..engine.experiment import schedule
from ..engine.records import RunFolder

MAX_DIMENSIONS = 4  # of an example
MAX_FEATURES = 10**8
MAX_CLASSES = 10**6


@dataclass(frozen=True)
class FinishedRun:
    path: Path
    settings: Config
    summary: dict[str, Any]
    progress: Progress
    model: Model
    objective: Objective
    identity: Mapping[str, str]  # of its settings and data

    @classmethod
    def open(cls, folder: Path, *, trust: bool = False) -> "FinishedRun":
        """The run in `folder`. A model or embedding `package.module:function` is code that the
        folder asks to run: it is refused unless you `trust` the folder.
        """
        run = RunFolder.open(folder)
        settings = read_run_folder(run.path, trust=trust)
        summary = run.read_summary()
        if summary is None:
            raise CheckpointError(
                f"the run must be finished, got {folder} without summary.json: `concordfl resume "
                f"{folder}` first"
            )
        recorded = run.read_federation()
        if recorded is None:
            raise CheckpointError(f"a finished run must hold federation.json, got {folder} without")
        identity = {**recorded["identity"], "config": run.config_digest()}
        progress = _last_progress(run, summary["rounds"], identity)
        shape, objective = _task_of(summary, folder)
        model = model_from(settings, shape, objective)
        return cls(run.path, settings, summary, progress, model, objective, identity)

    @property
    def last_round(self) -> int:
        """The last stage's own count of rounds, on which draws depend: what is predicted now is
        what the run reported.
        """
        turns = list(schedule(self.settings.algorithm, self.settings.run.rounds, self.model))
        last: int = self.summary["rounds"]  # fewer than planned if it stopped early
        return turns[last - 1].stage_round

    def require(self, ability: str, verb: str, phrase: str) -> None:
        """Refuse a verb that the method does not support, and say which methods do."""
        if not getattr(self.settings.algorithm, ability):
            able = [name for name, kind in ALGORITHMS.items() if getattr(kind, ability)]
            raise SettingError(
                f"{verb} needs a method that {phrase}, got {self.summary['algorithm']!r}: such "
                f"methods are {', '.join(able)}"
            )

    def federation(self) -> Federation:
        """The clients of the run, made anew from its data, which must be those that it had."""
        made = make_federation(self.settings)
        check_identity(self.path, self.identity, {**self.identity, "data": made.fingerprint()})
        return made

    def client(self, id: str, examples: Examples, *, has_state: bool = False) -> Client:
        """A client at the end of the run."""
        return Client(
            id,
            examples,
            objective=self.objective,
            model=self.model,
            training=self.settings.training,
            seed=self.settings.run.seed,
            round=self.last_round,
            published=self._published,
            has_state=has_state,
        )

    def _published(self, name: str) -> Tree:
        if name not in self._publications:
            raise SettingError(f"nothing has been published under {name!r}")
        return self._publications[name]

    @cached_property
    def _publications(self) -> dict[str, Tree]:
        data = self.progress.publications.data
        return {name: tree.unpack(packed) for name, packed in data.items()}

    @cached_property
    def _folder(self) -> RunFolder:
        return RunFolder.open(self.path)

    def predictor(self, id: str, train: Examples, *, new: bool) -> Predictor:
        """What a client that has the examples `train` predicts with.

        A participant does so with its personal part, a new client by the method's rule for those.
        """
        algorithm = self.settings.algorithm
        state = None if new else self._folder.read_client_state(id)
        return Predictor.prepare(
            algorithm,
            self.client(id, train, has_state=state is not None),
            state,
            algorithm.message(self.progress.server, None if new else id),
            new=new,
            tune_epochs=self.settings.run.tune_new,
        )

    @property
    def preprocessing(self) -> Preprocessing:
        """How the run read its own data, and reads a newcomer's."""
        return Preprocessing.from_record(self.summary.get("preprocessing"))

    def read(self, data: Path) -> Samples:
        """A client's examples; its labels may be missing."""
        return read_samples(
            data,
            getattr(self.settings.data, "label", "y"),
            getattr(self.settings.data, "client", None),
            like=self.preprocessing,
        )


def _last_progress(run: RunFolder, rounds: int, identity: dict[str, str]) -> Progress:
    """What the run had come to when it ended: an earlier checkpoint would give other answers."""
    progress, problems = checkpoint.load(run.checkpoints, identity=identity)
    if progress.round != rounds:
        damage = "; ".join(problems) or "none of a later one"
        raise CheckpointError(
            f"a finished run must hold a checkpoint of its last round, {rounds}, got one of round "
            f"{progress.round} ({damage}): remove {run.path / 'summary.json'} and `concordfl "
            f"resume {run.path}` plays the rest again"
        )
    return progress


def _task_of(summary: Any, folder: Path) -> tuple[tuple[int, ...], Objective]:
    """The shape of an example and what is predicted, as the run's summary has them."""
    task = summary.get("task") if isinstance(summary, dict) else None
    match task:
        case {"input_shape": list(shape), "num_classes": int(classes)} if (
            _is_shape(shape) and 1 <= classes <= MAX_CLASSES
        ):
            return tuple(shape), Classification(classes)
    raise CheckpointError(
        f"summary.json must give task.input_shape as 1 to {MAX_DIMENSIONS} whole numbers >= 1 of "
        f"at most {MAX_FEATURES:,} features, and task.num_classes as one up to {MAX_CLASSES:,}, "
        f"got {received(task)} in {folder}"
    )


def _is_shape(values: list[Any]) -> bool:
    whole = all(isinstance(length, int) and length >= 1 for length in values)
    return whole and 1 <= len(values) <= MAX_DIMENSIONS and math.prod(values) <= MAX_FEATURES
