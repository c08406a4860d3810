"""What a benchmark has found: tables as data, as files and as a picture."""

import csv
import io
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from ..engine.choice import available_cores
from ..engine.files import make_folder, write_atomically
from ..report import pictures
from ..report.pictures import Panel
from .turns import Timing

Cell = str | float | int | None  # None: not measured


@dataclass(frozen=True)
class FindingsTable:
    """Rows of figures; a column's name says its unit."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    labels: int = 1  # how many columns say what a row is about


@dataclass(frozen=True)
class Findings:
    name: str  # of the benchmark
    tables: tuple[FindingsTable, ...]
    notes: tuple[str, ...]
    panels: tuple[Panel, ...]
    repeats: int

    def to_table(self) -> dict[str, Any]:
        """As JSON has it, with what the figures depend on."""
        return {**asdict(self), "machine": machine()}

    def to_csv(self) -> str:
        """A line per cell, as tables have different columns."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["table", "row", "column", "value"])
        for table in self.tables:
            for row in table.rows:
                about = " ".join(str(cell) for cell in row[: table.labels])
                for column, value in list(zip(table.columns, row, strict=True))[table.labels :]:
                    writer.writerow([table.title, about, column, "" if value is None else value])
        return text.getvalue()

    def write(self, folder: Path) -> list[Path]:
        """A file of each kind into `folder`, complete or not at all."""
        contents: dict[str, bytes | str] = {
            f"{self.name}.json": json.dumps(self.to_table(), indent=1) + "\n",
            f"{self.name}.csv": self.to_csv(),
            f"{self.name}.svg": pictures.draw(f"concordfl bench {self.name}", self.panels, "svg"),
        }
        make_folder(folder)
        for name, content in contents.items():
            write_atomically(folder / name, content)
        return [folder / name for name in contents]


def bars(title: str, y_label: str, series: Mapping[str, Mapping[str, float]]) -> Panel:
    """A bar per name, in groups where there are several series."""
    return {
        "kind": "bars",
        "title": title,
        "x_label": "",
        "y_label": y_label,
        "series": [
            {"name": name, "x": list(values), "y": list(values.values())}
            for name, values in series.items()
        ],
    }


def timing_bars(title: str, timings: Mapping[str, Timing]) -> Panel:
    """A bar per name with the spread of its repeats."""
    panel = bars(title, "seconds", {"": {name: one.median for name, one in timings.items()}})
    panel["series"][0]["spread"] = [one.deviation for one in timings.values()]
    return panel


def machine() -> dict[str, str | int]:
    return {
        "cores": available_cores(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "concordfl": version("concordfl"),
    }


def rounded(values: Sequence[Cell], digits: int = 4) -> tuple[Cell, ...]:
    """Figures with so many digits after the point."""
    return tuple(round(value, digits) if isinstance(value, float) else value for value in values)
