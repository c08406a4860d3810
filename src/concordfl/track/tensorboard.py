"""TensorBoard: figures as scalars, which its files hold in single precision; settings, hparams."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.files import remove
from ..engine.observers import Watched
from .figures import Point, Value, selected, settings
from .tracker import Sheet, Tracker


class TensorBoard(Tracker):
    """Event files: `tensorboard --logdir runs` shows those of all runs below."""

    name = library = "tensorboard"

    def open(self, run: Watched) -> Sheet:
        return _Events(self.folder_of(run), settings(run))


class _Events(Sheet):
    """One event file, which is written anew rather than continued: what a killed run has left may
    end in the middle of an event, and hold rounds that are played again.
    """

    def __init__(self, folder: Path, hparams: Mapping[str, str | Value]) -> None:
        self.folder, self.hparams = folder, hparams
        self.writer: Any = None  # a SummaryWriter

    def restart(self, points: Sequence[Point]) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from torch.utils.tensorboard import SummaryWriter

        if self.writer is not None:
            self.writer.close()
        for file in self.folder.glob("events.out.tfevents.*"):
            remove(file)
        self.writer = SummaryWriter(str(self.folder))
        self.writer.file_writer.add_summary(hparams_pb(dict(self.hparams)))
        self.add(points)

    def add(self, points: Sequence[Point]) -> None:
        for one in points:
            self._write(one.figures, one.round)
        self.writer.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None and summary["selected"]:
            self._write(selected(summary), summary["selected"]["round"])
        self.writer.close()

    def _write(self, figures: Mapping[str, Value], round: int) -> None:
        for name, value in figures.items():
            self.writer.add_scalar(name, value, round)
