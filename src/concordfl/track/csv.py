"""CSV: `figures.csv` with a row per evaluated round, `settings.csv` with a row per setting."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..engine.files import append, write_atomically
from ..engine.observers import Watched
from .figures import Point, settings
from .tracker import Sheet, Tracker


class CSV(Tracker):
    """Tables for a spreadsheet. Numbers have all their digits."""

    name = "csv"

    def open(self, run: Watched) -> Sheet:
        folder = self.folder_of(run)
        write_atomically(
            folder / "settings.csv", _lines([("setting", "value"), *settings(run).items()])
        )
        return _Table(folder / "figures.csv")


class _Table(Sheet):
    def __init__(self, file: Path) -> None:
        self.file = file

    def restart(self, points: Sequence[Point]) -> None:
        self.points = list(points)
        # a column for whatever has been seen, in the order of its first appearance
        names = {name: None for one in points for name in one.figures}
        self.columns = ["round", *names]
        rows = [self.columns, *map(self._row, points)]
        write_atomically(self.file, _lines(rows))

    def add(self, points: Sequence[Point]) -> None:
        if all(one.figures.keys() <= {*self.columns} for one in points):
            self.points += points
            append(self.file, _lines(map(self._row, points)).encode())
        else:
            self.restart([*self.points, *points])

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """All is written already."""

    def _row(self, one: Point) -> list[Any]:
        return [one.round, *(one.figures.get(name, "") for name in self.columns[1:])]


def _lines(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
