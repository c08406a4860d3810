"""A finished run, opened again: its settings, what it learned, and how it read its data. Nothing of
the run is changed.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..algorithms import ALGORITHMS
from ..config import Config, read_run_folder
from ..core import CheckpointError, Client, DataError, Examples, Model, SettingError, tree
from ..core.settings import received
from ..data import Arrays, Standard
from ..data.own import Samples, class_name, read_samples, without_colour
from ..engine import checkpoint
from ..engine.checkpoint import Progress
from ..engine.client_states import MemoryStates
from ..engine.experiment import schedule
from ..engine.records import RunFolder
from ..runner import model_from

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

    @classmethod
    def open(cls, folder: Path, *, trust: bool = False) -> "FinishedRun":
        """The run in `folder`. A model or embedding `package.module:function` is code that the
        folder asks to run: it is refused unless you `trust` the folder.
        """
        run = RunFolder.open(folder)
        summary = run.read_summary()
        if summary is None:
            raise CheckpointError(
                f"the run must be finished, got {folder} without summary.json: `concordfl resume "
                f"{folder}` first"
            )
        settings = read_run_folder(run.path, trust=trust)
        model = model_from(settings, *_task_of(summary, folder))
        return cls(
            run.path, settings, summary, checkpoint.load(run.checkpoints, MemoryStates()), model
        )

    @property
    def last_round(self) -> int:
        """The last stage's own count of rounds, on which draws depend: what is predicted now is
        what the run reported.
        """
        return list(schedule(self.settings.algorithm, self.settings.run.rounds))[-1].stage_round

    def require(self, ability: str, verb: str, phrase: str) -> None:
        """Refuse a verb that the method does not support, and say which methods do."""
        if not getattr(self.settings.algorithm, ability):
            able = [name for name, kind in ALGORITHMS.items() if getattr(kind, ability)]
            raise SettingError(
                f"{verb} needs a method that {phrase}, got {self.summary['algorithm']!r}: such "
                f"methods are {', '.join(able)}"
            )

    def client(self, id: str, examples: Examples) -> Client:
        """A client at the end of the run."""
        return Client(
            id,
            examples,
            num_classes=self.summary["task"]["num_classes"],
            model=self.model,
            training=self.settings.training,
            seed=self.settings.run.seed,
            round=self.last_round,
            published=lambda name: tree.unpack(self.progress.publications.data[name]),
        )

    def predict(self, id: str, own: Examples, examples: Examples) -> Tensor:
        """(N, Y) what a participant that has the examples `own` predicts with its personal part."""
        algorithm, client = self.settings.algorithm, self.client(id, own)
        message = algorithm.message(self.progress.server, id)
        kept = RunFolder.open(self.path).read_client_state(id)
        state = algorithm.init_client(client, message) if kept is None else kept
        return algorithm.predict(
            client, algorithm.adapt(client, state, message, new=False), message, examples
        )

    # --- a newcomer's data, read as the run read its own ------------------------------------------

    def read(self, data: Path) -> Samples:
        """A client's examples; its labels may be missing."""
        own = read_samples(
            data,
            getattr(self.settings.data, "label", "y"),
            getattr(self.settings.data, "client", None),
        )
        features = self.summary["preprocessing"].get("features", [])
        if features and own.features and list(own.features) != features:
            raise DataError(
                f"{data}: columns must be {', '.join(features)}, got {', '.join(own.features)}"
            )
        return own

    def knows(self, labels: np.ndarray) -> bool:
        """Whether all labels are classes of the run."""
        return {class_name(label) for label in labels.tolist()} <= set(self._class_names())

    def _class_names(self) -> list[str]:
        top = self.summary["task"]["num_classes"]
        return self.summary["preprocessing"].get("classes") or [
            str(number) for number in range(top)
        ]

    def numbered(self, labels: np.ndarray, data: Path) -> np.ndarray:
        """Labels as the run numbers its classes: by name if they have names, else as they are."""
        names = self._class_names()
        known = {name: number for number, name in enumerate(names)}
        given = [class_name(label) for label in labels.tolist()]
        unknown = sorted(set(given) - set(known))
        if unknown:
            shown = ", ".join(names) if len(names) <= 20 else f"0..{len(names) - 1}"
            raise DataError(f"{data}: labels must be among {shown}, got {', '.join(unknown)}")
        return np.array([known[name] for name in given], dtype=np.int64)

    def prepared(self, arrays: Arrays, data: Path) -> Arrays:
        """As the run prepared its own data, after a look whether they are of the same shape."""
        shape, kind = self.summary["task"]["input_shape"], self.summary["preprocessing"]["type"]
        if shape[:1] == [1]:
            arrays = Arrays(without_colour(arrays.x), arrays.y)
        if (arrays.x.dtype == np.uint8) != (kind == "uint8"):
            raise DataError(f"{data}: x must be of type {kind} as in the run, got {arrays.x.dtype}")
        own = arrays.x.shape[1:]
        seen = (own[2], *own[:2]) if len(own) == 3 else own
        if list(seen) != shape:
            raise DataError(f"{data}: examples must have the shape {shape}, got {list(seen)}")
        standard = self._standard()
        prepared = arrays if standard is None or kind == "uint8" else standard.apply(arrays)
        if prepared.x.dtype.kind == "f" and not np.isfinite(prepared.x).all():
            raise DataError(f"{data}: features must be finite, got NaN or infinity")
        return prepared

    def examples(self, arrays: Arrays) -> Examples:
        standard = self._standard()
        scale = standard.scale() if standard is not None and arrays.x.dtype == np.uint8 else None
        x, y = (
            torch.from_numpy(np.ascontiguousarray(arrays.x)),
            torch.from_numpy(arrays.y.astype(np.int64)),
        )
        return Examples(x, y, scale=scale)

    def _standard(self) -> Standard | None:
        record = self.summary["preprocessing"].get("standardised")
        return None if record is None else Standard.from_record(record)


def _task_of(summary: Any, folder: Path) -> tuple[tuple[int, ...], int]:
    """The shape of an example and the number of classes, as the run's summary has them."""
    task = summary.get("task") if isinstance(summary, dict) else None
    match task:
        case {"input_shape": list(shape), "num_classes": int(classes)} if (
            _is_shape(shape) and 1 <= classes <= MAX_CLASSES
        ):
            return tuple(shape), classes
    raise CheckpointError(
        f"summary.json must give task.input_shape as 1 to {MAX_DIMENSIONS} whole numbers >= 1 of "
        f"at most {MAX_FEATURES:,} features, and task.num_classes as one up to {MAX_CLASSES:,}, "
        f"got {received(task)} in {folder}"
    )


def _is_shape(values: list[Any]) -> bool:
    whole = all(isinstance(length, int) and length >= 1 for length in values)
    return whole and 1 <= len(values) <= MAX_DIMENSIONS and math.prod(values) <= MAX_FEATURES
