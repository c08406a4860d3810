"""What a paper prints, as data: `experiments/PAPER/reproduce.toml`.

    [scale.small]                  # what all settings of the paper have at a smaller scale
    run.rounds = 20

    [setting.c2]                   # a federation: a run file at the paper's own scale, and what
    file = "fmnist_c2.toml"        # differs from it
    small.data.limit = 12000
    instead = ["three seeds of ours"]

    [setting.half]                 # without a file: only beside others, as in "c2 + half"; an item,
    set.run.cohort = 0.5           # column or row that says "+ half" adds it to what others say

    [item.table-1]                 # a table or a figure
    about = "One model under label skews"
    figure = "global_accuracy"
    rows."FedAvg" = { method = "fedavg" }
    columns."#C = 2" = { setting = "c2" }
    paper."FedAvg" = ["79.0 ± 4.7"]

A cell is what the item, its column and its row say together; where two say the same, the row wins.
Settings are nested as in a run file. `set.algorithm` is of the cell's own method.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Any, Literal, get_args

import concordfl

from ..config import read_table
from ..core import SettingError, Settings
from ..core.settings import nearest, received
from ..study.cells import method_section

PAPERS = ("fedconcat", "fedconceptem", "fedgmm", "fedvc")
Scale = Literal["tiny", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Kind = Literal["table", "bars", "lines", "curves", "pictures"]
FILE_NAME = "reproduce.toml"
Table = Mapping[str, Any]
# Another choice of these is another thing, of which nothing of the first one is kept.
CHOICES = ("kind", "name")


@dataclass(frozen=True)
class Part(Settings):
    """What an item, a row or a column says of its cells."""

    setting: str | None = None
    method: str | None = None
    set: Table = field(default_factory=dict)
    figure: str | None = None  # of the last round; or `selected.NAME`, `last_ten.NAME`, ...
    figures: Table = field(default_factory=dict)  # which one stands for another `figure`
    measure: str | None = None  # what is looked at in the finished run, by name

    def with_part(self, other: "Part") -> "Part":
        """Both, where what `other` says goes first."""
        joined = ("set", "setting", "figures")
        names = [each.name for each in fields(Part) if each.name not in joined]
        said = {name: getattr(other, name) or getattr(self, name) for name in names}
        return Part(
            **said,
            setting=_joined(self.setting, other.setting),
            set=merge(self.set, other.set),
            figures=merge(self.figures, other.figures),
        )

    @property
    def own_figure(self) -> str | None:
        """The figure that is looked at here."""
        return None if self.figure is None else self.figures.get(self.figure, self.figure)


def _joined(first: str | None, second: str | None) -> str | None:
    """The second setting, or both where one of them is `+ NAME`."""
    if first is None or second is None:
        return second or first
    if second.startswith("+"):
        return f"{first} {second}"
    return f"{second} {first}" if first.startswith("+") else second


@dataclass(frozen=True)
class Item(Part):
    """A table or a figure of a paper."""

    about: str = ""
    kind: Kind = "table"
    rows: Mapping[str, Table] = field(default_factory=dict)
    columns: Mapping[str, Table] = field(default_factory=lambda: {"": {}})
    # by row the paper's numbers, a text per column, empty where there is none
    paper: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # whether the order of rows, or of columns, is compared with the paper's
    order: Literal["rows", "columns"] = "rows"
    apart: tuple[str, ...] = ()  # rows or columns that have no place in that order, as a ceiling
    percent: bool = True  # whether figures are shares
    spread: Literal["seeds", "clients"] = "seeds"  # over what the deviation beside a number is
    along: Literal["round", "MB", "seconds"] = "round"  # of curves
    axis: str = ""  # what the columns of a drawing are
    seeds: Mapping[Scale, int] = field(default_factory=dict)  # 1 where it is not said
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # what of it cannot be had, and why
    # what our figures say, above all where they are in another order than the paper's, and why
    findings: Mapping[Scale, str] = field(default_factory=dict)

    @property
    def has_figures(self) -> bool:
        """Whether there is a table of it; otherwise there are pictures alone."""
        return any(cell.figure is not None for cell in self.cells().values())

    def cells(self) -> dict[tuple[str, str], Part]:
        """Every cell by row and column."""
        return {
            (row, column): self.with_part(Part.from_table(of_column, column)).with_part(
                Part.from_table(of_row, row)
            )
            for row, of_row in self.rows.items()
            for column, of_column in self.columns.items()
        }


@dataclass(frozen=True)
class Setting(Settings):
    """A federation of the paper: a run file, and what differs from it; or a part of one."""

    file: str | None = None
    set: Table = field(default_factory=dict)
    tiny: Table = field(default_factory=dict)
    small: Table = field(default_factory=dict)
    instead: tuple[str, ...] = ()  # what is other than in the paper, whatever the scale

    def with_setting(self, other: "Setting") -> "Setting":
        """Both, where what `other` says goes first."""
        return Setting(
            other.file or self.file,
            merge(self.set, other.set),
            merge(self.tiny, other.tiny),
            merge(self.small, other.small),
            (*self.instead, *other.instead),
        )


@dataclass(frozen=True)
class Paper:
    name: str
    folder: Path
    title: str
    scales: Mapping[str, Table]
    settings: Mapping[str, Setting]
    items: Mapping[str, Item]

    def parts_of(self, setting: str) -> dict[str, Setting]:
        """The settings that `a + b` names, by name; the later go first where two say the same."""
        names = [name.strip() for name in setting.split("+")]
        for name in names:
            if name not in self.settings:
                raise SettingError(
                    f"{self.folder / FILE_NAME} must have every setting that it names, got "
                    f"{received(name)}{nearest(name, self.settings)}"
                )
        return {name: self.settings[name] for name in names}

    def setting(self, name: str) -> Setting:
        return reduce(Setting.with_setting, self.parts_of(name).values())

    def run_file(self, setting: str) -> Path:
        file = self.setting(setting).file
        if file is None:
            raise SettingError(
                f"{self.folder / FILE_NAME} must name a run file for every setting, got none for "
                f"{received(setting)}"
            )
        return self.folder / file

    def table(self, cell: Part, scale: Scale) -> dict[str, Any]:
        """The run file of a cell."""
        setting, method = str(cell.setting), str(cell.method)
        whole = self.setting(setting)
        table = merge(read_table(self.run_file(setting)), whole.set)
        if scale != "paper":
            table = merge(merge(table, self.scales.get(scale, {})), getattr(whole, scale))
        others = {name: values for name, values in cell.set.items() if name != "algorithm"}
        of_method: Table = cell.set.get("algorithm", {})
        for part in reversed(method_section(table, method).split(".")):
            of_method = {part: of_method}
        return merge(merge(table, others), of_method)


def merge(base: Table, changes: Table) -> dict[str, Any]:
    """`base` with nested changes; a table of another kind or name replaces the one before."""
    merged = dict(base)
    for key, value in changes.items():
        before: Any = merged.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        merged[key] = merge(before, value) if both and _same_choice(before, value) else value
    return merged


def _same_choice(before: Table, after: Table) -> bool:
    return all(name not in after or after[name] == before.get(name) for name in CHOICES)


# --- reading --------------------------------------------------------------------------------------


def experiments_folder() -> Path:
    """Where the papers' run files and kept results are: in the package, or beside its source."""
    package = Path(concordfl.__file__).parent
    places = (package / "experiments", package.parents[1] / "experiments")
    for place in places:
        if (place / PAPERS[0] / FILE_NAME).is_file():
            return place
    raise SettingError(
        f"reproduce needs the run files of the papers, got none in {' or '.join(map(str, places))}"
    )


def read_paper(name: str, folder: Path | None = None) -> Paper:
    """The entries of a paper; every cell names a setting and a method that there are."""
    if name not in PAPERS:
        raise SettingError(f"the paper must be one of {', '.join(PAPERS)}, got {received(name)}")
    place = (folder or experiments_folder()) / name
    table = read_table(place / FILE_NAME)
    paper = Paper(
        name,
        place,
        table.get("title", name),
        table.get("scale", {}),
        {key: Setting.from_table(each, key) for key, each in table.get("setting", {}).items()},
        {key: _item(each, key) for key, each in table.get("item", {}).items()},
    )
    for key, item in paper.items.items():
        _check_item(paper, key, item)
    return paper


def _item(table: Table, name: str) -> Item:
    numbers = {row: tuple(values) for row, values in table.get("paper", {}).items()}
    return Item.from_table({**table, "paper": numbers}, name)


def _check_item(paper: Paper, name: str, item: Item) -> None:
    where = f"{paper.folder / FILE_NAME}: {name}"
    for (row, column), cell in item.cells().items():
        if cell.method is None or cell.setting is None:
            raise SettingError(f"{where} must name a setting and a method for {row}, {column}")
        paper.run_file(cell.setting)
    for row, values in item.paper.items():
        if row not in item.rows or len(values) != len(item.columns):
            raise SettingError(
                f"{where} must have a number of the paper for each of {len(item.columns)} columns "
                f"of a row, got {len(values)} for {received(row)}"
            )


def find_item(paper: Paper, wanted: str) -> str:
    """The name of an item, however it is written: `table 1`, `Table-1`, `table1`."""
    plain = {_letters(name): name for name in paper.items}
    found = plain.get(_letters(wanted))
    if found is None:
        raise SettingError(
            f"an item of {paper.name} must be one that `concordfl reproduce --list` shows, got "
            f"{received(wanted)}{nearest(wanted, paper.items)}"
        )
    return found


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower().replace("fig.", "figure"))
