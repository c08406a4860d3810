"""An item of a paper, computed: every cell's figures beside the paper's number."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..config import Config
from ..core import DataError, SettingError
from ..core.settings import received
from ..data.dataset import FileSource
from ..engine.experiment import ignore
from ..engine.files import new_folder
from ..engine.observers import Observer
from ..report.pictures import Panel, Series
from ..report.side_by_side import Cell, SideBySide
from ..report.tables import last_ten_of
from ..study import compare, kept_results
from ..study.cells import Cells, ConfigHasher, cells
from ..study.compare import Display
from ..study.kept_results import KeptResults, Line
from ..study.measure import measure
from .entries import CHOICES, Item, Paper, Part, Scale, Table
from .measures import MEASURES

Place = tuple[str, str]  # row and column
LAST_TEN = "last_ten"  # evaluated rounds: their mean
ALONG = {"round": "round", "MB": "MB sent, down and up", "seconds": "seconds"}  # of curves


@dataclass(frozen=True)
class Reproduction:
    """A table or a figure of a paper with our figures."""

    paper: Paper
    name: str
    scale: Scale
    table: SideBySide
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]  # what a reader must know of how it came about
    absent: tuple[Config, ...]  # runs that are not kept, where nothing was to be computed

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
    folder = new_folder(folder) if fresh else folder
    work = _Work(paper, scale, range(number), display, keep, fresh, compute, folder)
    found: dict[Place, Cell] = {}
    runs: dict[Place, list[Any]] = {}
    for place, cell in wanted.items():
        reached = work.look(cell, ", ".join(part for part in place if part)) or []
        runs[place] = reached
        found[place] = _cell(_printed(item, *place), reached, item, cell)
    title = f"{paper.name}, {spoken(name)}: {item.about}"
    table = SideBySide(title, found, item.order, item.apart)
    panels = tuple(_panels(item, wanted, table, runs))
    is_whole = number == item.seeds.get(scale, 1) and not (only_rows or only_columns or fresh)
    told = [item.findings[scale]] if is_whole and scale in item.findings else []
    notes = (*(told if table.is_computed or panels else ()), *work.notes(item))
    return Reproduction(paper, name, scale, table, panels, notes, tuple(work.absent))


def spoken(name: str) -> str:
    """`table-1` as people write it."""
    return name.replace("-", " ", 1)


def _chosen(known: Mapping[str, Any], only: Sequence[str], option: str) -> Sequence[str]:
    for name in only:
        if name not in known:
            raise SettingError(f"{option} must be of `{'; '.join(known)}`, got {received(name)}")
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
    missing: dict[str, list[str]] = field(default_factory=dict)  # settings by the data they lack
    lines: list[Line] = field(default_factory=list)
    absent: list[Config] = field(default_factory=list)  # what was not to be computed
    num_cells: int = 0

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
                lacking = self.missing.setdefault(data.name, [])
                lacking += [setting] if setting not in lacking else []
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
            self.absent += configs.values()
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
        """What a reader must know of the figures, and of how they came about."""
        asked = {
            name: part
            for setting in self.settings
            for name, part in self.paper.parts_of(setting).items()
        }
        if self.scale == "tiny":
            yield "scale tiny shows that everything works: its figures and their order mean nothing"
        if changed := self.paper.scales.get(self.scale):
            yield self._scale_sentence(changed)
        by_text: dict[str, list[str]] = {}
        of_scale: dict[str, list[str]] = {}
        for name, part in asked.items():
            for text in part.instead:
                by_text.setdefault(text, []).append(name)
            if changed := getattr(part, self.scale, None):
                of_scale.setdefault(self._scale_sentence(changed), []).append(name)
        for text, names in of_scale.items():
            yield f"{', '.join(names)}: {text}"
        for text, names in by_text.items():
            yield text if len(names) == len(asked) else f"{', '.join(names)}: {text}"
        for data, settings in self.missing.items():
            yield f"{', '.join(settings)}: not computed, data set {data} is not at hand"
        yield from self.parts
        yield from item.notes
        yield from (f"left out: {text}" for text in item.left_out)
        if self.absent:
            yield f"not computed yet: {len(self.absent)} of {self.num_cells} runs"
        if sentence := kept_results.describe_kept(self.lines, self.num_cells):
            yield sentence

    def _scale_sentence(self, changed: Table) -> str:
        listed = ", ".join(f"{key} = {value}" for key, value in _flat(changed))
        return f"scale {self.scale} has {listed}"


def _flat(table: Table, path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and not any(choice in value for choice in CHOICES):
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


# --- figures --------------------------------------------------------------------------------------


def _cell(printed: str, reached: Sequence[Mapping[str, Any]], item: Item, cell: Part) -> Cell:
    figure = cell.own_figure
    known = tuple(_values(reached, item, figure, cell.measure))
    if cell.measure is not None:
        return Cell(printed, known)
    spread = None
    over_rounds = len(known) == 1 and str(figure).startswith(LAST_TEN)
    if over_rounds or item.spread == "clients":  # not over seeds
        deviations = list(_values(reached, item, f"{figure}_std", None))
        spread = statistics.mean(deviations) if deviations else None
    sent = tuple(each["bytes"]["down"] + each["bytes"]["up"] for each in reached)
    seconds = tuple(each["seconds"]["total"] for each in reached)
    return Cell(printed, known, sent, seconds, spread)


def _values(
    reached: Sequence[Mapping[str, Any]], item: Item, figure: str | None, measured: str | None
) -> Iterator[float]:
    """The figure in every run: `NAME` of the last round, `PART.NAME`, or a measure's own."""
    if figure is None:
        return
    path = figure.split(".") if measured or "." in figure else ["final", figure]
    for found in reached:
        value: Any = {LAST_TEN: last_ten_of(found)} if path[0] == LAST_TEN else found
        for key in path:
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            yield 100 * value if item.percent else float(value)


# --- pictures -------------------------------------------------------------------------------------


def _panels(
    item: Item,
    wanted: Mapping[Place, Part],
    table: SideBySide,
    runs: Mapping[Place, Sequence[Mapping[str, Any]]],
) -> Iterator[Panel]:
    if item.kind == "curves":
        yield from _curves(item, wanted, table, runs)
    elif item.kind == "pictures":
        yield from _curves(item, wanted, table, runs)
        yield from _pictures(runs)
    elif item.kind != "table" and table.is_computed:
        yield from _grids(item.kind, item, wanted, table)


def _curves(
    item: Item,
    wanted: Mapping[Place, Part],
    table: SideBySide,
    runs: Mapping[Place, Sequence[Mapping[str, Any]]],
) -> Iterator[Panel]:
    """A panel for every column whose runs have a history, which a measure may give too."""
    for column in table.columns:
        rows = [row for row in table.rows if any("history" in run for run in runs[row, column])]
        figures = [wanted[row, column].own_figure or "" for row in rows]
        series = [
            _curve(row, runs[row, column], figure, item)
            for row, figure in zip(rows, figures, strict=True)
        ]
        known = [each for each in series if each["x"]]
        if known:
            yield _panel("lines", column, ALONG[item.along], figures[0], item, known)


def _grids(
    kind: Literal["lines", "bars"], item: Item, wanted: Mapping[Place, Part], table: SideBySide
) -> Iterator[Panel]:
    """A panel for every figure that rows have: the rows over the columns."""
    by_figure: dict[str, list[str]] = {}
    for row in table.rows:
        by_figure.setdefault(wanted[row, table.columns[0]].figure or "", []).append(row)
    for figure, rows in by_figure.items():
        series = list(_grid_series(table, rows))
        yield _panel(kind, "", item.axis, figure, item, series)


def _panel(
    kind: Literal["lines", "bars"],
    title: str,
    x_label: str,
    figure: str,
    item: Item,
    series: list[Series],
) -> Panel:
    return {
        "kind": kind,
        "title": title,
        "x_label": x_label,
        "y_label": figure.rpartition(".")[2].replace("_", " ") + " in percent" * item.percent,
        "series": series,
    }


def _pictures(runs: Mapping[Place, Sequence[Mapping[str, Any]]]) -> Iterator[Panel]:
    """What measures have drawn, with the names of its cell; once where columns share it."""
    sharing: dict[tuple[str, int], list[str]] = {}
    for (row, column), reached in runs.items():
        sharing.setdefault((row, id(reached)), []).append(column)
    for (row, _), columns in sharing.items():
        names = (row, *columns) if len(columns) == 1 else (row,)
        for found in runs[row, columns[0]][:1]:
            yield from _titled(found["panels"], names)


def _titled(panels: Sequence[Panel], names: Sequence[str]) -> Iterator[Panel]:
    for panel in panels:
        title = ", ".join(part for part in (*names, panel["title"]) if part)
        yield {**panel, "title": title}


def _grid_series(table: SideBySide, rows: Sequence[str]) -> Iterator[Series]:
    """Rows over the columns, and the paper's numbers beside ours."""
    for row in rows:
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
        if value is not None and (item.along == "MB" or item.along in one):
            sent = (one["bytes"]["down"] + one["bytes"]["up"]) / 1e6
            along = sent if item.along == "MB" else one[item.along]
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
    return KeptRuns(len(work.lines), work.num_cells, sum(seconds), tuple(work.missing))


def no_display(_title: str) -> AbstractContextManager[Observer]:
    return nullcontext(ignore)
