"""A finished run, opened again: its settings, what it learned, and how it read its data. Nothing of
the run is changed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import config as configuration
from .algorithms import ALGORITHMS
from .config import Config
from .core import CheckpointError, Client, DataError, Examples, Model, Predictor, SettingError, tree
from .data import Arrays, Standard
from .data.own import Samples, class_name, read_samples, without_colour
from .engine import checkpoint
from .engine.checkpoint import Progress
from .engine.experiment import schedule
from .engine.records import RunFolder
from .runner import model_from


@dataclass(frozen=True)
class FinishedRun:
    path: Path
    settings: Config
    summary: dict[str, Any]
    progress: Progress
    model: Model

    @classmethod
    def open(cls, folder: Path) -> "FinishedRun":
        run = RunFolder.open(folder)
        summary = run.read_summary()
        if summary is None:
            raise CheckpointError(
                f"the run must be finished, got {folder} without summary.json: `concordfl resume "
                f"{folder}` first"
            )
        settings = Config.from_table(configuration.read_table(run.path / "config.toml"))
        model = model_from(
            settings, tuple(summary["task"]["input_shape"]), summary["task"]["num_classes"]
        )
        progress = checkpoint.load(run.checkpoints).progress
        return cls(run.path, settings, summary, progress, model)

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

    def client(self, id: str, examples: Examples, *, has_state: bool = False) -> Client:
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
            has_state=has_state,
        )

    def predictor(self, id: str, train: Examples, *, new: bool) -> Predictor:
        """What a client that has the examples `train` predicts with.

        A participant does so with its personal part, a new client by the method's rule for those.
        """
        algorithm = self.settings.algorithm
        state = None if new else RunFolder.open(self.path).read_client_state(id)
        return Predictor.prepare(
            algorithm,
            self.client(id, train, has_state=state is not None),
            state,
            algorithm.message(self.progress.server, None if new else id),
            new=new,
            tune_epochs=self.settings.run.tune_new,
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
