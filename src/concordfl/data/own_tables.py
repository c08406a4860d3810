"""Several .csv files as one: columns matched by name, categories agreed on."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core import DataError, SettingError
from ..core.settings import nearest
from . import columns as column_types
from .columns import Column
from .csv_table import CsvTable, columns_of, not_a_number, read_csv
from .labels import Labels
from .text import printable, quote


class JoinedTables(NamedTuple):
    """The rows of all files, one file after the other."""

    x: np.ndarray  # (N, F)
    labels: Labels
    columns: tuple[Column, ...]
    cells: Mapping[str, np.ndarray]  # (N,) texts of the columns that must be there
    notices: tuple[str, ...]

    def take(self, rows: np.ndarray) -> "JoinedTables":
        labels = self.labels.take(rows)
        cells = {name: values[rows] for name, values in self.cells.items()}
        return self._replace(x=self.x[rows], labels=labels, cells=cells)


def read_table(
    path: Path,
    label: str | Sequence[str],
    required: Mapping[str, str],
    drop: Collection[str],
    texts: Collection[str] = (),
) -> CsvTable:
    """One file; the columns in `texts` are read as text, which they are at some client."""
    needed = {**dict.fromkeys(columns_of(label), "have a label"), **required}
    return read_csv(path, label, required=needed, ignored=drop, texts=texts)


def read_tables(
    paths: Sequence[Path],
    label: str | Sequence[str],
    required: Mapping[str, str],
    drop: Collection[str],
) -> list[CsvTable]:
    """A table of every file; a column that holds text in one of them is read as text in all."""
    tables = [read_table(path, label, required, drop) for path in paths]
    require_known(drop, (table.header for table in tables))
    texts = column_types.text_columns(table.first_texts for table in tables)
    if not texts:
        return tables
    return [read_table(path, label, required, drop, texts) for path in paths]


def require_known(drop: Iterable[str], headers: Iterable[Iterable[str]]) -> None:
    """Refuse to drop a column that nobody has."""
    known = {name for header in headers for name in header}
    for name in drop:
        if name not in known:
            raise SettingError(
                f"data.drop must name columns of the data, got {quote(name)}{nearest(name, known)}"
            )


def join_tables(tables: Sequence[CsvTable], names: Sequence[str]) -> JoinedTables:
    """All rows with the columns of the first table; `names` say whose the tables are."""
    first = tables[0]
    for table, name in zip(tables, names, strict=True):
        column_types.match_columns(first.features, table.features, name, names[0])
    wheres = [printable(table.path) for table in tables]
    texts = [column_types.texts_of(table) for table in tables]
    columns = column_types.agree(first.features, texts, wheres)
    encoded = [column_types.encode(columns, table) for table in tables]
    return JoinedTables(
        np.concatenate(encoded) if len(encoded) > 1 else encoded[0],
        Labels.join([table.labels for table in tables if table.labels is not None]),
        columns,
        {
            name: np.array([cell for table in tables for cell in table.cells[name]], dtype=object)
            for name in first.cells
        },
        column_types.notices(tables),
    )


def read_like(
    path: Path, label: str | Sequence[str], columns: Sequence[Column], ignored: Collection[str]
) -> tuple[CsvTable, np.ndarray]:
    """A newcomer's table, and its examples with the columns of a run."""
    names = [column.name for column in columns]
    texts = [column.name for column in columns if column.categories is not None]
    table = read_csv(path, label, ignored=ignored, texts=texts, expected=names)
    column_types.match_columns(names, table.features, printable(path), "the run")
    require_numbers(table)
    return table, column_types.encode(columns, table)


def require_numbers(table: CsvTable) -> None:
    """Refuse text in a column of numbers."""
    for name in table.numbers:
        if name in table.first_texts:
            raise not_a_number(table.path, name, table.first_texts[name])


def groups_of(
    owners: Iterable[str], groups: Iterable[str], column: str, where: str
) -> dict[str, str]:
    """The group of every client, which must be the same in all its rows."""
    found: dict[str, str] = {}
    for owner, group in zip(owners, groups, strict=True):
        if found.setdefault(owner, group) != group:
            raise DataError(
                f"{where}: every client must have one group in column {quote(column)}, got "
                f"{quote(found[owner])} and {quote(group)} for client {quote(owner)}"
            )
    return found
