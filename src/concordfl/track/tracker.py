"""The contract of a tracker, and what all of them have in common.

A tracker holds exactly the figures of the run's records, also after a kill: a run that is taken up
again has its records cut back to the last checkpoint, and so has the tracker. No tracker costs a
run: what fails after the beginning is said, and the run goes on without it.
"""

import logging
import math
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from typing_extensions import TypedDict

from ..core import SettingError
from ..engine.experiment import Event
from ..engine.files import SealedJson, make_folder, new_folder
from ..engine.observers import Observer, Watched
from .figures import Point, point

log = logging.getLogger(__name__)


class RunId(TypedDict):
    """What another tool calls a run."""

    run_id: str


RUN_ID = SealedJson(RunId, format=1, advice="remove it, and the run is tracked as a new one")


class Sheet(ABC):
    """What the figures of one run are written to."""

    # whether points cannot be taken back: then they are only written once a checkpoint holds them
    is_final: bool = False

    def held(self) -> list[Point] | None:
        """What it holds when it is opened; None for a sheet that is written anew."""
        return None

    @abstractmethod
    def restart(self, points: Sequence[Point]) -> None:
        """Hold these points and no others."""

    @abstractmethod
    def add(self, points: Sequence[Point]) -> None:
        """Hold these points too."""

    @abstractmethod
    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Write what is still to be written; the `summary` is that of a run that is over."""


class Tracker(ABC):
    """An observer of runs that writes their settings and figures for another tool.

    folder: for runs in memory, each of which gets a new folder below. A run that has a folder of
        its own is tracked there, below `tracked`.
    """

    name: ClassVar[str]
    library: ClassVar[str | None] = None

    def __init__(self, folder: str | Path | None = None) -> None:
        if self.library is not None and find_spec(self.library) is None:
            raise SettingError(
                f"the tracker {self.name} needs the library {self.library}, got none: "
                "pip install 'concordfl[track]'"
            )
        self.folder = None if folder is None else Path(folder).resolve()

    @abstractmethod
    def open(self, run: Watched) -> Sheet:
        """Begin, or take up again, what is tracked of a run."""

    @contextmanager
    def watch(self, run: Watched) -> Iterator[Observer]:
        """Nothing is lost before the first round: what fails there is refused."""
        try:
            keeper = _Keeper(self.name, self.open(run), run)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(
                f"the tracker {self.name} must be able to write, got {_line(error)}"
            ) from error
        try:
            yield keeper.observe
        finally:
            keeper.end()

    def folder_of(self, run: Watched) -> Path:
        """Where files about a run are written, made if it is not there."""
        if run.folder is not None and self.folder is not None:
            raise SettingError(
                f"the tracker {self.name} must have no folder of its own for a run that has one, "
                f"got {str(self.folder)!r}"
            )
        if run.folder is not None:
            folder = run.folder / "tracked" / self.name
        elif self.folder is not None:
            folder = new_folder(self.folder / self.name / run.name)
        else:
            raise SettingError(
                f"the tracker {self.name} needs a folder for a run in memory, got none: give one "
                "to it, or to the run (out)"
            )
        make_folder(folder)
        return folder


class _Keeper:
    """Keeps a sheet equal to the records of a run."""

    def __init__(self, name: str, sheet: Sheet, run: Watched) -> None:
        self.name, self.sheet, self.run = name, sheet, run
        self.is_broken = False
        self.waits_for_checkpoints = sheet.is_final and run.folder is not None
        held = sheet.held()
        self.points = held or []
        self._compare(is_new=held is None)

    def observe(self, event: Event) -> None:
        if event.is_saved or not self.waits_for_checkpoints:
            self._attempt(self._add_new)

    def end(self) -> None:
        if self.run.summary is not None or not self.waits_for_checkpoints:
            self._attempt(self._compare)  # a round in which a run was stopped has a new record
        self._attempt(lambda: self.sheet.close(self.run.summary), even_if_broken=True)

    def _add_new(self) -> None:
        new = [point(record) for record in self.run.records[len(self.points) :]]
        if new:
            self.sheet.add(new)
            self.points += new

    def _compare(self, *, is_new: bool = False) -> None:
        points = [point(record) for record in self.run.records]
        begin = points[: len(self.points)]
        if is_new or len(begin) < len(self.points) or not all(map(_same, begin, self.points)):
            self.sheet.restart(points)
            self.points = points
        else:
            self._add_new()

    def _attempt(self, action: Callable[[], None], *, even_if_broken: bool = False) -> None:
        if self.is_broken and not even_if_broken:
            return
        try:
            action()
        except Exception as error:
            if not self.is_broken:
                folder = shlex.quote(str(self.run.folder))
                way_on = f"`concordfl resume {folder} --track {self.name}` writes the rest"
                log.warning(
                    "Tracking by %s has failed and the run goes on without it: %s%s",
                    self.name,
                    _line(error),
                    "" if self.run.folder is None else f"; {way_on}",
                )
            self.is_broken = True


def _same(left: Point, right: Point) -> bool:
    return (
        left.round == right.round
        and left.figures.keys() == right.figures.keys()
        and all(
            one == right.figures[name] or (math.isnan(one) and math.isnan(right.figures[name]))
            for name, one in left.figures.items()
        )
    )


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or ['no reason'])[0]}"
