"""What a paper prints, as data: `experiments/PAPER/reproduce.toml`.

    [scale.small]                  # what all settings of the paper have at a smaller scale
    run.rounds = 20

    [setting.c2]                   # a federation: a run file at the paper's own scale, and what
    file = "fmnist_c2.toml"        # differs from it
    small.data.limit = 12000
    instead = ["three seeds of ours"]

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
    measure: str | None = None  # what is looked at in the finished run, by name

    def with_part(self, other: "Part") -> "Part":
        """Both, where what `other` says goes first."""
        names = [each.name for each in fields(Part) if each.name != "set"]
        said = {name: getattr(other, name) or getattr(self, name) for name in names}
        return Part(**said, set=merge(self.set, other.set))


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
    percent: bool = True  # whether figures are shares
    along: Literal["round", "MB"] = "round"  # of curves
    axis: str = ""  # what the columns of a drawing are
    seeds: Mapping[Scale, int] = field(default_factory=dict)  # 1 where it is not said
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # what of it cannot be had, and why

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
    """A federation of the paper: a run file, and what differs from it."""

    file: str
    set: Table = field(default_factory=dict)
    tiny: Table = field(default_factory=dict)
    small: Table = field(default_factory=dict)
    instead: tuple[str, ...] = ()  # what is other than in the paper, whatever the scale


@dataclass(frozen=True)
class Paper:
    name: str
    folder: Path
    title: str
    scales: Mapping[str, Table]
    settings: Mapping[str, Setting]
    items: Mapping[str, Item]

    def setting(self, name: str | None) -> Setting:
        if name is None or name not in self.settings:
            raise SettingError(
                f"{self.folder / FILE_NAME} must have every setting that it names, got "
                f"{received(name)}{nearest(str(name), self.settings)}"
            )
        return self.settings[name]

    def run_file(self, setting: str) -> Path:
        return self.folder / self.setting(setting).file

    def scaled(self, setting: str, scale: Scale) -> Table:
        """What a smaller scale than the paper's changes in a setting."""
        if scale == "paper":
            return {}
        return merge(self.scales.get(scale, {}), getattr(self.setting(setting), scale))

    def table(self, cell: Part, scale: Scale) -> dict[str, Any]:
        """The run file of a cell."""
        setting, method = str(cell.setting), str(cell.method)
        table = merge(read_table(self.run_file(setting)), self.setting(setting).set)
        table = merge(table, self.scaled(setting, scale))
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
        paper.setting(cell.setting)
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
