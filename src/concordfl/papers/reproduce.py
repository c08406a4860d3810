"""An item of a paper, computed: every cell's figures beside the paper's number."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..core import DataError, SettingError
from ..core.settings import nearest, received
from ..data.dataset import FileSource
from ..engine.experiment import ignore
from ..report.pictures import Panel, Series
from ..report.side_by_side import Cell, SideBySide
from ..runner import Observer
from ..study import compare, kept_results
from ..study.cells import Cells, ConfigHasher, cells
from ..study.compare import Display
from ..study.kept_results import KeptResults, Line
from ..study.measure import measure
from .entries import CHOICES, Item, Paper, Part, Scale, Table
from .measures import MEASURES

Place = tuple[str, str]  # row and column


@dataclass(frozen=True)
class Reproduction:
    """A table or a figure of a paper with our figures."""

    paper: Paper
    name: str
    scale: Scale
    table: SideBySide
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]  # what a reader must know of how it came about

    @property
    def item(self) -> Item:
        return self.paper.items[self.name]

    @property
    def is_computed(self) -> bool:
        return self.table.is_computed or bool(self.panels)


def reproduce(
    paper: Paper,
    name: str,
    scale: Scale,
    *,
    display: Display,
    seeds: int | None = None,
    only_rows: Sequence[str] = (),
    only_columns: Sequence[str] = (),
    keep: bool = False,
    fresh: bool = False,
    compute: bool = True,
    out: Path = Path("runs"),
) -> Reproduction:
    """The item with our figures: kept ones unless `fresh`; others are computed, if `compute`."""
    item = paper.items[name]
    wanted = {
        (row, column): cell
        for (row, column), cell in item.cells().items()
        if row in _chosen(item.rows, only_rows, "--rows")
        and column in _chosen(item.columns, only_columns, "--columns")
    }
    number = seeds or item.seeds.get(scale, 1)
    folder = out / f"reproduce-{paper.name}"
    folder = compare.new_folder(folder) if fresh else folder
    work = _Work(paper, scale, range(number), display, keep, fresh, compute, folder)
    found: dict[Place, Cell] = {}
    runs: dict[Place, list[Any]] = {}
    for place, cell in wanted.items():
        reached = work.look(cell, ", ".join(part for part in place if part)) or []
        runs[place] = reached
        found[place] = _cell(_printed(item, *place), reached, item, cell)
    title = f"{paper.name}, {spoken(name)}: {item.about}"
    table = SideBySide(title, found, item.order)
    panels = _panels(item, wanted, table, runs)
    return Reproduction(paper, name, scale, table, tuple(panels), tuple(work.notes(item)))


def spoken(name: str) -> str:
    """`table-1` as people write it."""
    return name.replace("-", " ", 1)


def _chosen(known: Mapping[str, Any], only: Sequence[str], option: str) -> Sequence[str]:
    for name in only:
        if name not in known:
            raise SettingError(
                f"{option} must be of {', '.join(known)}, got {received(name)}"
                f"{nearest(name, known)}"
            )
    return only or list(known)


def _printed(item: Item, row: str, column: str) -> str:
    """What the paper has in a cell."""
    numbers = item.paper.get(row, ())
    return numbers[list(item.columns).index(column)] if numbers else ""


# --- computing ------------------------------------------------------------------------------------


@dataclass
class _Work:
    """Cells computed, or found among kept results; the same run serves several cells."""

    paper: Paper
    scale: Scale
    seeds: range
    display: Display
    keep: bool
    fresh: bool
    compute: bool
    folder: Path
    hasher: ConfigHasher = field(default_factory=ConfigHasher)
    kept: dict[Path, KeptResults] = field(default_factory=dict)
    results: dict[tuple[str, ...], list[Any] | None] = field(default_factory=dict)
    settings: dict[str, None] = field(default_factory=dict)  # that were asked for
    parts: dict[str, None] = field(default_factory=dict)  # of data sets that are not whole
    missing: dict[str, str] = field(default_factory=dict)  # data set of a setting without data
    lines: list[Line] = field(default_factory=list)
    num_cells: int = 0
    num_absent: int = 0

    def look(self, cell: Part, title: str) -> list[Any] | None:
        """What the runs of all seeds have come to; None where they cannot be had."""
        table = self.paper.table(cell, self.scale)
        configs = {
            (title, seed): cells(table, [str(cell.method)], [seed])[str(cell.method), seed]
            for seed in self.seeds
        }
        key = (*(self.hasher(config) for config in configs.values()), cell.measure or "")
        if key not in self.results:
            setting = str(cell.setting)
            self.settings.setdefault(setting)
            lacks_data = self._lacks_data(setting, configs)
            self.results[key] = None if lacks_data else self._run(cell, configs)
        return self.results[key]

    def _lacks_data(self, setting: str, configs: Cells) -> bool:
        data = next(iter(configs.values())).data
        if isinstance(data, FileSource):
            try:
                form, _ = data.locate()
            except DataError:
                self.missing[setting] = data.name
                return True
            if form.files != data.forms()[0].files:
                self.parts.setdefault(f"{data.name}: a part of it is at hand, {form.files[0]}")
        return False

    def _run(self, cell: Part, configs: Cells) -> list[Any] | None:
        self.num_cells += len(configs)
        run_file, name = self.paper.run_file(str(cell.setting)), cell.measure
        hashes = [self.hasher(config) for config in configs.values()]
        lines = [self._line(run_file, name, each) for each in hashes]
        if not self.compute and None in lines:
            self.num_absent += len(configs)
            return None
        self.lines += [line for line in lines if line is not None]
        if name is not None:
            look = MEASURES[name]
            found = measure(configs, run_file, name, dict, look, keep=self.keep, fresh=self.fresh)
            return list(found.figures.values())
        compared = compare.compare(
            configs,
            self.folder,
            self.display,
            None if self.fresh else self.kept[run_file],
            hasher=self.hasher,
            keep_beside=run_file if self.keep else None,
            keep_from=0.0,
        )
        return [figures for row in compared.figures.values() for figures in row]

    def _line(self, run_file: Path, measured: str | None, config_hash: str) -> Line | None:
        """The kept result of a configuration, or what was measured in its run."""
        if self.fresh:
            return None
        if run_file not in self.kept:
            self.kept[run_file] = kept_results.read(run_file, self.hasher)
        kept = self.kept[run_file]
        if measured is None:
            return kept.results.get(config_hash)
        return kept.measures.get((measured, config_hash))

    def notes(self, item: Item) -> Iterator[str]:
        """What a reader must know of how the figures came about."""
        by_text: dict[str, list[str]] = {}
        for setting in self.settings:
            for text in self.paper.setting(setting).instead:
                by_text.setdefault(text, []).append(setting)
            if changed := self.paper.scaled(setting, self.scale):
                listed = ", ".join(f"{key} = {value}" for key, value in _flat(changed))
                by_text.setdefault(f"scale {self.scale} has {listed}", []).append(setting)
        for text, settings in by_text.items():
            everywhere = len(settings) == len(self.settings)
            yield text if everywhere else f"{', '.join(settings)}: {text}"
        for setting, data in self.missing.items():
            yield f"{setting}: not computed, data set {data} is not at hand"
        yield from self.parts
        yield from item.notes
        yield from (f"left out: {text}" for text in item.left_out)
        if self.num_absent:
            yield f"not computed yet: {self.num_absent} of {self.num_cells} runs"
        if sentence := kept_results.describe_kept(self.lines, self.num_cells):
            yield sentence


def _flat(table: Table, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and not any(choice in value for choice in CHOICES):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


# --- figures --------------------------------------------------------------------------------------


def _cell(printed: str, reached: Sequence[Mapping[str, Any]], item: Item, cell: Part) -> Cell:
    values = [_value(each, item, cell) for each in reached]
    known = tuple(value for value in values if value is not None)
    if cell.measure is not None:
        return Cell(printed, known)
    sent = tuple(each["bytes"]["down"] + each["bytes"]["up"] for each in reached)
    return Cell(printed, known, sent, tuple(each["seconds"]["total"] for each in reached))


def _value(found: Mapping[str, Any], item: Item, cell: Part) -> float | None:
    """The figure of a cell: `NAME` of the last round, or `PART.NAME`; of a measure by its name."""
    if cell.figure is None:
        return None
    path = cell.figure.split(".")
    if cell.measure is None and len(path) == 1:
        path = ["final", *path]
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(value, int | float):
        return None
    return 100 * value if item.percent else float(value)


# --- pictures -------------------------------------------------------------------------------------


def _panels(
    item: Item,
    wanted: Mapping[Place, Part],
    table: SideBySide,
    runs: Mapping[Place, Sequence[Mapping[str, Any]]],
) -> Iterator[Panel]:
    if item.kind == "pictures":
        for place, reached in runs.items():
            yield from _titled(reached[0]["panels"], place) if reached else ()
    elif item.kind == "curves":
        for column in table.columns:
            series = [
                _curve(row, runs[row, column], wanted[row, column].figure or "", item)
                for row in table.rows
                if runs[row, column]
            ]
            along = "round" if item.along == "round" else "MB sent, down and up"
            yield _panel("lines", column, along, item, series)
    elif item.kind != "table" and table.is_computed:
        yield _panel(item.kind, "", item.axis, item, list(_grid_series(table)))


def _panel(
    kind: Literal["lines", "bars"], title: str, x_label: str, item: Item, series: list[Series]
) -> Panel:
    figure = (item.figure or "").rpartition(".")[2].replace("_", " ")
    return {
        "kind": kind,
        "title": title,
        "x_label": x_label,
        "y_label": figure + " in percent" * item.percent,
        "series": series,
    }


def _titled(panels: Sequence[Panel], place: Place) -> Iterator[Panel]:
    """The pictures that a measure has made, with the names of their cell."""
    for panel in panels:
        title = ", ".join(part for part in (*place, panel["title"]) if part)
        yield {**panel, "title": title}


def _grid_series(table: SideBySide) -> Iterator[Series]:
    """Every row over the columns, and the paper's numbers beside ours."""
    for row in table.rows:
        cells = [table.cells[row, column] for column in table.columns]
        for who, values in (
            ("here", [cell.mean for cell in cells]),
            ("paper", [cell.paper_value for cell in cells]),
        ):
            if any(value is not None for value in values):
                yield {"name": f"{row}, {who}", "x": table.columns, "y": values}


def _curve(row: str, runs: Sequence[Mapping[str, Any]], figure: str, item: Item) -> Series:
    """The mean over seeds of a figure at every evaluated round."""
    by_round: dict[int, list[tuple[float, float]]] = {}
    for one in (one for run in runs for one in run["history"] or ()):
        value = one.get(figure)
        if value is not None:
            sent = (one["bytes"]["down"] + one["bytes"]["up"]) / 1e6
            along = one["round"] if item.along == "round" else sent
            unit = 100 if item.percent else 1
            by_round.setdefault(one["round"], []).append((along, unit * value))
    several = [by_round[round] for round in sorted(by_round)]
    return {
        "name": row,
        "x": [statistics.mean(x for x, _ in each) for each in several],
        "y": [statistics.mean(y for _, y in each) for each in several],
    }


# --- what there is --------------------------------------------------------------------------------


def data_of(paper: Paper, name: str) -> list[str]:
    """The data sets of an item."""
    tables = (paper.table(cell, "paper") for cell in paper.items[name].cells().values())
    return sorted({table["data"]["name"] for table in tables})


class KeptRuns(NamedTuple):
    """Of how many runs of an item results are kept, and how long these took."""

    kept: int
    all: int
    seconds: float
    missing: tuple[str, ...]  # data sets that are not at hand


def kept_runs(paper: Paper, name: str, scale: Scale) -> KeptRuns:
    item = paper.items[name]
    seeds = range(item.seeds.get(scale, 1))
    work = _Work(paper, scale, seeds, no_display, False, False, False, Path())
    for cell in item.cells().values():
        work.look(cell, "")
    seconds = [line["figures"].get("seconds", {}).get("total", 0.0) for line in work.lines]
    missing = tuple(dict.fromkeys(work.missing.values()))
    return KeptRuns(len(work.lines), work.num_cells, sum(seconds), missing)


def no_display(_title: str) -> AbstractContextManager[Observer]:
    return nullcontext(ignore)
