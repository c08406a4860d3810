"""A user's own data: a folder with one file (or folder of images) per client, or one table with a
client column.

Labels may be any values, strings too; classes are their sorted distinct values over all clients.
Nothing is guessed: what does not fit is one error that names the file and the rule.
"""

import hashlib
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from ..core import DataError, Key, SettingError
from .columns import feature_names
from .csv_table import columns_of
from .dataset import Dataset, Source
from .files import FILE, FOLDER, kind_of, list_folder, reading, working_folder
from .own_tables import (
    JoinedTables,
    groups_of,
    join_tables,
    read_tables,
)
from .row_splits import count_splits, parse_splits, parse_times, require_both
from .samples import (
    ColumnNames,
    ImageReader,
    client_of_file,
    is_csv,
    join_samples,
    make_dataset,
    read_labelled,
    repeat_names,
)
from .text import listing, printable, quote

TABLE_ENDINGS = (".npz", ".csv")

Pixels = Annotated[int, Ge(1), Le(10_000)]


@dataclass(frozen=True)
class OwnData(Source):
    """What a user's own data have in common, in one table or in several files."""

    has_clients: ClassVar[bool] = True

    label: ColumnNames = "y"  # the column of labels, or several of numbers
    drop: tuple[str, ...] | None = None  # columns to leave out
    # a column with a known group of every client, against which found groups are scored
    group: str | None = None
    split: str | None = None  # a column that says train, validation or test of every row
    # a column of dates or numbers: each client's earliest rows train, its latest test
    time: str | None = None
    # where a relative path begins: the run file's folder, from Python the working folder
    relative_to: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split is not None and self.time is not None:
            raise SettingError(
                f"split and time must not both be given, got {quote(self.split)} and "
                f"{quote(self.time)}"
            )
        if not columns_of(self.label):
            raise SettingError("label must name a column or several, got none")
        seen: dict[str, str] = {}  # the setting by the column that it names
        for setting, column in self._named_columns():
            if column in seen:
                raise SettingError(
                    f"{seen[column]} must be another column than {setting}, got {quote(column)} "
                    "for both"
                )
            seen[column] = setting

    def _named_columns(self) -> list[tuple[str, str]]:
        """Settings with the columns that they name, which are no features."""
        roles = [(name, getattr(self, name)) for name in ("group", "split", "time")]
        named = [("label", column) for column in columns_of(self.label)]
        named += [(name, column) for name, column in roles if column is not None]
        return [*named, *(("drop", column) for column in self.drop or ())]

    def required(self) -> dict[str, str]:
        """Columns that must be there, each with what a row must do in it."""
        rules = {
            self.group: "name its client's group",
            self.split: "name its split",
            self.time: "have a time",
        }
        return {column: rule for column, rule in rules.items() if column is not None}

    @property
    @abstractmethod
    def given_path(self) -> str:
        """Where the data are, as the settings have it."""

    @property
    def path(self) -> Path:
        """Where the data are, as short as it can be said in the working folder."""
        if self.relative_to is None or self.relative_to == working_folder():
            return Path(self.given_path)
        return Path(self.relative_to, self.given_path)

    def is_there(self) -> bool:
        """Whether something lies where the data should be."""
        return kind_of(self.path) is not None

    def _elsewhere(self) -> str:
        """The end of a message, where a path that is not found would be in the working folder."""
        if self.is_there() or kind_of(Path(self.given_path)) is None:
            return ""
        return (
            f": a path in a run file begins at the file's folder, not at the working folder, where "
            f"there is {quote(self.given_path)}"
        )

    def _make_dataset(self, tables: JoinedTables, owners: np.ndarray, where: str) -> Dataset:
        data = make_dataset(tables.x, tables.labels, owners, feature_names(tables.columns))
        groups, split, time = self.parse_roles(tables.cells, owners.tolist(), where)
        if split is not None:
            require_both(count_splits(split), str(self.split), where)
        return data._replace(
            targets=columns_of(self.label),
            columns=tables.columns,
            ignored=self.ignored,
            groups=groups,
            split=split,
            time=time,
            notices=tables.notices,
        )

    @property
    def ignored(self) -> tuple[str, ...]:
        """Columns that are neither features nor labels."""
        return tuple(column for name, column in self._named_columns() if name != "label")

    def parse_roles(
        self, cells: Mapping[str, Sequence[str] | np.ndarray], owners: Sequence[str], where: str
    ) -> tuple[dict[str, str], np.ndarray | None, np.ndarray | None]:
        """What the rows' columns say: the owners' groups, and every row's split and time."""
        return (
            groups_of(owners, cells[self.group], self.group, where) if self.group else {},
            parse_splits(cells[self.split], self.split, where) if self.split else None,
            parse_times(cells[self.time], self.time, where) if self.time else None,
        )


@dataclass(frozen=True)
class Folder(OwnData):
    """`folder = "my-clients/"`: a .npz or .csv file per client, or per client a folder of class
    folders of images.
    """

    about: ClassVar[str] = (
        "your own data: a folder with a .npz or .csv per client, or class folders of images per "
        "client"
    )

    folder: str = "."
    resize: tuple[Pixels, Pixels] | None = None  # images to this height and width

    @property
    def given_path(self) -> str:
        return self.folder

    def fingerprint(self) -> str:
        root = self.path
        if kind_of(root) != FOLDER:
            return _digest({})
        with reading(root, "be a readable folder"):
            paths = sorted(path for path in root.rglob("*") if path.is_file())
        return _digest({str(path.relative_to(root)): path for path in paths})

    def read(self, key: Key) -> Dataset:
        root = self.path
        if kind_of(root) != FOLDER:
            raise DataError(
                f"data.folder must be a folder, got {quote(str(root))}{self._elsewhere()}"
            )
        paths = [
            path
            for path in list_folder(root)
            if path.suffix.lower() in TABLE_ENDINGS or kind_of(path) == FOLDER
        ]
        if not paths:
            raise DataError(
                f"{printable(root)} must hold a .npz file, a .csv file or a folder per client, got "
                "none"
            )
        names = [client_of_file(path) for path in paths]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise DataError(
                f"{printable(root)} must hold one file or folder per client, got several called "
                f"{listing(repeated)}"
            )
        if all(is_csv(path) for path in paths):
            return self._read_tables(paths, names)
        return self._read_arrays(paths)

    def _read_tables(self, paths: Sequence[Path], names: Sequence[str]) -> Dataset:
        tables = read_tables(paths, self.label, self.required(), self.drop or ())
        for table, name in zip(tables, names, strict=True):
            if not len(table.x):
                raise DataError(f"client {quote(name)} must have at least one example, got none")
        joined = join_tables(tables, [f"client {quote(name)}" for name in names])
        owners = repeat_names(names, [len(table.x) for table in tables])
        return self._make_dataset(joined, owners, printable(self.path))

    def refuse_columns(self) -> None:
        """Refuse settings that are about columns, where there are none."""
        for setting, column in self._named_columns():
            if setting != "label":
                raise SettingError(
                    f"data.{setting} must be about a folder of .csv files, got {quote(column)} "
                    "for other files"
                )

    def _read_arrays(self, paths: Sequence[Path]) -> Dataset:
        self.refuse_columns()
        reader = ImageReader(self.resize)
        data = join_samples([read_labelled(path, self.label, reader) for path in paths])
        return data._replace(resize=self.resize)


@dataclass(frozen=True)
class Table(OwnData):
    """`table = "all.csv"`, `client = "hospital"`, `label = "y"`: one table, a column of which says
    whose each row is.
    """

    about: ClassVar[str] = "your own data: one .csv with a column that says whose each row is"

    table: str = ""
    client: str = "client"  # the column that says whose each row is

    @property
    def given_path(self) -> str:
        return self.table

    def _named_columns(self) -> list[tuple[str, str]]:
        return [("client", self.client), *super()._named_columns()]

    def fingerprint(self) -> str:
        path = self.path
        return _digest({path.name: path} if kind_of(path) == FILE else {})

    def read(self, key: Key) -> Dataset:
        if not self.is_there():
            raise DataError(
                f"data.table must be a file, got nothing at {quote(str(self.path))}"
                f"{self._elsewhere()}"
            )
        required = {self.client: "name its client", **self.required()}
        tables = read_tables([self.path], self.label, required, self.drop or ())
        where = printable(self.path)
        if not len(tables[0].x):
            raise DataError(f"{where}: there must be at least one example, got none")
        joined = join_tables(tables, [where])
        rows: dict[str, list[int]] = defaultdict(list)  # of each client
        for row, client in enumerate(joined.cells[self.client].tolist()):
            rows[client].append(row)
        clients = sorted(rows)
        order = np.concatenate([rows[client] for client in clients])
        owners = repeat_names(clients, [len(rows[client]) for client in clients])
        return self._make_dataset(joined.take(order), owners, where)


def _digest(files: Mapping[str, Path]) -> str:
    """Of the files' names and contents: edited data are other data."""
    total = hashlib.sha256()
    for name, path in files.items():
        with reading(path, "be a readable file"), open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
