"""A finished run: its settings, what it learned, and how it read its data. It is the one way from a
run to predictions; nothing of the run is changed.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..algorithms import ALGORITHMS
from ..assemble import model_from, network_identity
from ..config import Config, read_run_folder
from ..core import (
    Algorithm,
    CheckpointError,
    Classification,
    Client,
    ClientId,
    Examples,
    Model,
    Objective,
    Predictor,
    Scale,
    SettingError,
    Tree,
    tree,
)
from ..core.objective import objective_of
from ..core.settings import received
from ..data import Arrays, Federation, Preprocessing
from ..data.csv_table import columns_of
from ..data.gather import LABEL
from ..data.samples import Samples, read_samples
from ..data.text import listing, quote
from ..engine import checkpoint
from ..engine.checkpoint import Progress, check_identity
from ..engine.evaluate import none_for_nan
from ..engine.experiment import schedule
from ..engine.records import RunFolder
from ..engine.threads import one_thread
from .kept import InFolder, Kept, Newcomer
from .received import Received, read_received

MAX_DIMENSIONS = 4  # of an example
MAX_FEATURES = 10**8
MAX_OUTPUTS = 10**6
MAX_PREPARED = 16  # clients whose predictors are remembered


class ExamplesWhenNeeded(Examples):
    """A client's training examples, read when somebody looks at them: where a client predicts with
    what it has kept, the run's data need not be there.
    """

    def __init__(self, read: Callable[[], Examples], scale: Scale | None) -> None:
        self._read, self._memo, self.scale = read, {}, scale

    def __getattr__(self, name: str) -> Any:
        if name not in ("x", "y"):
            raise AttributeError(name)
        found = self._read()
        self.x, self.y = found.x, found.y
        return getattr(self, name)


@dataclass(frozen=True)
class FinishedRun:
    settings: Config
    summary: dict[str, Any]
    progress: Progress
    model: Model
    objective: Objective
    kept: Kept
    received: Received | None = None  # in the place of the server's state, at a client

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        trust: bool = False,
        model: object = None,
        algorithm: Algorithm | None = None,
        settings: Config | None = None,
    ) -> "FinishedRun":
        """The run in `folder`. A model, method or embedding `package.module:name` is code that the
        folder asks to run: it is refused unless you `trust` the folder.

        A model or method that cannot be imported is given again; a run of this very process has its
        `settings`.
        """
        run = RunFolder.open(folder)
        if settings is None:
            settings = read_run_folder(run.path, trust=trust, model=model, algorithm=algorithm)
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
        received = read_received(run.path)
        if received is None:
            progress = _last_progress(run, summary["rounds"], identity)
            sha256 = tree.digest(progress.server)
        else:
            progress = Progress(None, summary["rounds"], publications=received.publications())
            sha256 = str(summary["parameters_sha256"])
        network, objective = network_of(run, settings, summary, identity)
        kept = InFolder(run.path, settings, identity, sha256, tuple(recorded["clients"]))
        return cls(settings, summary, progress, network, objective, kept, received)

    @property
    def algorithm(self) -> Algorithm:
        return self.settings.algorithm

    @property
    def name(self) -> str:
        """What the method is called."""
        return str(self.summary["algorithm"])

    @property
    def last_round(self) -> int:
        """The last stage's own count of rounds, on which draws depend: what is predicted now is
        what the run reported.
        """
        population = self.summary.get("clients", len(self.kept.participants))
        turns = list(schedule(self.algorithm, self.settings.run, self.model, population))
        last: int = self.summary["rounds"]  # fewer than planned if it stopped early
        return turns[last - 1].stage_round

    def require(self, ability: str, verb: str, phrase: str) -> None:
        """Refuse a verb that the method does not support, and say which methods do."""
        if not getattr(self.settings.algorithm, ability):
            able = [name for name, kind in ALGORITHMS.items() if getattr(kind, ability) is True]
            raise SettingError(
                f"{verb} needs a method that {phrase}, got {self.name!r}: such methods are "
                f"{', '.join(able)}"
            )

    def federation(self) -> Federation:
        """The clients of the run; its data must be those that it had."""
        return self.kept.federation()

    # --- clients ----------------------------------------------------------------------------------

    def client(self, id: ClientId, examples: Examples, *, has_state: bool = False) -> Client:
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

    def _nobody(self, id: ClientId) -> Client:
        """A client without examples."""
        shape = self.preprocessing.input_shape
        stored = (shape[1], shape[2], shape[0]) if len(shape) == 3 else shape
        nothing = Arrays(np.zeros((0, *stored), np.float32), self.preprocessing.no_targets(0))
        return self.client(id, self.preprocessing.to_examples(nothing))

    # --- what a client predicts with --------------------------------------------------------------

    def message(self, id: ClientId | None) -> Tree:
        """What the server gives a participant to predict with; None is a client that was not in
        training.
        """
        if self.received is not None:
            return self.received.message(id)
        return self.algorithm.message(self.progress.server, id)

    @property
    def own_client(self) -> ClientId | None:
        """Who predicts where nobody is named: at a client it is the client itself."""
        name = None if self.received is None else self.received.client
        return name if name is not None and self.kept.newcomer(name) is not None else None

    def predictor(self, id: ClientId, train: Examples, *, new: bool) -> Predictor:
        """What a client that has the examples `train` predicts with.

        A participant does so with its personal part, a new client by the method's rule for those.
        """
        state = None if new else self.kept.state(id)
        with one_thread():
            return Predictor.prepare(
                self.algorithm,
                self.client(id, train, has_state=state is not None),
                state,
                self.message(None if new else id),
                new=new,
                tune_epochs=self.settings.run.tune_new,
            )

    def predictor_of(self, id: ClientId | None) -> Predictor:
        """What the client of that name predicts with: a participant, one that joined later, or one
        that was held out. None is the client whose folder it is, or else somebody of whom nothing
        is known.
        """
        self.require("classifies", "predict", "predicts labels")
        id = self.own_client if id is None else id
        if id is None:
            return self._unadapted()
        joined = self.kept.newcomer(id)
        if joined is not None:
            return self.joined(id, joined)
        known = (*self.kept.participants, *self.kept.held_out)
        if id not in known:
            everybody = [*self.kept.participants, *self.kept.newcomers(), *self.kept.held_out]
            raise SettingError(
                f"client must be of the run, or have adapted to it, got {quote(id)}: known are "
                f"{listing(everybody)}"
            )
        if id not in self._prepared:
            while len(self._prepared) >= MAX_PREPARED:
                del self._prepared[next(iter(self._prepared))]
            train = ExamplesWhenNeeded(partial(self._train, id), self.preprocessing.scale)
            self._prepared[id] = self.predictor(id, train, new=id in self.kept.held_out)
        return self._prepared[id]

    @cached_property
    def _prepared(self) -> dict[ClientId, Predictor]:
        """Of clients of the run, which may have taken long: nothing that they depend on changes."""
        return {}

    def _train(self, id: ClientId) -> Examples:
        return self.federation().splits(id, self.summary["training_rounds"]).train

    def joined(self, id: ClientId, newcomer: Newcomer) -> Predictor:
        """What a client that joined later predicts with; its examples are no longer needed."""
        message = newcomer.message
        if message is None:
            message = self.message(None)
        return Predictor(self.algorithm, self._nobody(id), newcomer.state, message)

    def unadapted(self) -> Predictor | None:
        """What somebody without examples predicts with, where the method has something for them."""
        if not self.algorithm.accepts_new_clients:
            return None
        message = self.message(None)
        nobody = self._nobody("somebody")
        state = self.algorithm.unadapted(nobody, message)
        return None if state is None else Predictor(self.algorithm, nobody, state, message)

    def _unadapted(self) -> Predictor:
        found = self.unadapted()
        if found is None:
            known = [*self.kept.participants, *self.kept.newcomers()]
            ways = [f"give one of {listing(known)}"] if known else []
            if self.algorithm.accepts_new_clients:
                ways.append("adapt to labelled examples of a new one")
            raise SettingError(
                f"client must be given, as {self.name!r} has no model that serves everybody, got "
                f"none: {', or '.join(ways) or 'it serves those who were in training'}"
            )
        return found

    @one_thread()
    def predictions(self, examples: Examples, id: ClientId | None) -> Tensor:
        """What a client predicts, or somebody of whom nothing is known: (N, Y) class probabilities,
        or what the objective says, in the targets' own unit.
        """
        return self.predictor_of(id).predictions(examples)

    @one_thread()
    def scores(self, examples: Examples, id: ClientId | None) -> dict[str, Any]:
        """The objective's metrics of these predictions; None where one is undefined."""
        return none_for_nan(self.predictor_of(id).scores(examples))

    # --- data -------------------------------------------------------------------------------------

    @cached_property
    def preprocessing(self) -> Preprocessing:
        """How the run read its own data, and reads a newcomer's."""
        made = Preprocessing.from_record(self.summary.get("preprocessing"))
        names, expected = made.classes or made.targets, self.objective
        if (made.kind, len(names)) != (expected.kind, expected.num_predicted):
            raise CheckpointError(
                f"summary.json must give a preprocessing of {expected.num_predicted} targets for "
                f"{expected.kind}, got {len(names)} for {made.kind}"
            )
        return made

    @property
    def columns_aside(self) -> tuple[str, ...]:
        """Columns of a table that are no features."""
        client = getattr(self.settings.data, "client", None)
        return self._label_columns if client is None else (*self._label_columns, client)

    @property
    def _label_columns(self) -> tuple[str, ...]:
        """Columns of labels in a table; none where nobody named one and a feature is called as it
        would be.
        """
        named = getattr(self.settings.data, "label", None)
        if named is not None:
            return columns_of(named)
        features = {column.name for column in self.preprocessing.table_columns}
        return () if LABEL in features else (LABEL,)

    def read(self, data: Path) -> Samples:
        """A client's examples; its labels may be missing."""
        return read_samples(
            data,
            self._label_columns,
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


def network_of(
    run: RunFolder, settings: Config, summary: Mapping[str, Any], identity: Mapping[str, str]
) -> tuple[Model, Objective]:
    """The network of a finished run, which must be the one that it began with, and what it
    predicts.
    """
    shape, objective = _task_of(summary, run.path)
    network = model_from(settings, shape, objective)
    check_identity(run.path, identity, {**identity, **network_identity(settings, network)})
    return network, objective


def _task_of(summary: Any, folder: Path) -> tuple[tuple[int, ...], Objective]:
    """The shape of an example and what is predicted, as the run's summary has them."""
    task: Any = summary.get("task") if isinstance(summary, dict) else None
    match task:
        case {"input_shape": list(shape), "num_classes": int(classes)} if _is_shape(shape):
            with suppress(SettingError):
                objective = (
                    objective_of(task["objective"], task.get("objective_settings"))
                    if "objective" in task
                    else Classification(classes)  # of a run before there were others
                )
                if classes == objective.num_classes and objective.num_outputs <= MAX_OUTPUTS:
                    return tuple(shape), objective
    raise CheckpointError(
        f"summary.json must give task.input_shape as 1 to {MAX_DIMENSIONS} whole numbers >= 1 of "
        f"at most {MAX_FEATURES:,} features, and task.num_classes and task.objective of at most "
        f"{MAX_OUTPUTS:,} outputs, "
        f"got {received(task)} in {folder}"
    )


def _is_shape(values: list[Any]) -> bool:
    whole = all(isinstance(length, int) and length >= 1 for length in values)
    return whole and 1 <= len(values) <= MAX_DIMENSIONS and math.prod(values) <= MAX_FEATURES
