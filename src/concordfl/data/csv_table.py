"""A .csv file of numbers, with a column of labels and one of clients where it has them."""

import csv
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core import DataError
from .files import reading, require_file
from .labels import Labels
from .text import listing, printable, quote

# cells, in any case of letters, that hold no value
MISSING_VALUES = frozenset(("", "?", "na", "nan", "null", "none"))
MAX_FLOAT32 = float(np.finfo(np.float32).max)


class CsvTable(NamedTuple):
    """The rows of a .csv file."""

    x: np.ndarray  # (N, F) float32, NaN where a value is missing
    features: tuple[str, ...]  # the columns of x
    labels: Labels | None
    clients: list[str]  # of each row, where the table has the column


class Layout(NamedTuple):
    """Which column of a table is what, by index; None where a table has no such column."""

    header: tuple[str, ...]
    label: int | None
    client: int | None

    @property
    def features(self) -> list[int]:
        return [
            index for index in range(len(self.header)) if index not in (self.label, self.client)
        ]


def read_csv(path: Path, label: str, client: str | None, required: Sequence[str] = ()) -> CsvTable:
    """All of a .csv file; the columns in `required` must be there, and the client's be filled."""
    require_file(path)
    rows = _read_rows(path)
    layout = _find_columns(path, next(rows, (1, []))[1], label, client, required)
    features = layout.features
    x, labels, clients = array("f"), [], []
    for line, row in rows:
        where = f"{printable(path)}, line {line}"
        if len(row) != len(layout.header):
            raise DataError(
                f"{where}: must have {len(layout.header)} values as the header, got {len(row)}"
            )
        if layout.label is not None:
            labels.append(_require_value(where, "have a label", layout.header, layout.label, row))
        if layout.client is not None and client in required:
            clients.append(
                _require_value(where, "name its client", layout.header, layout.client, row)
            )
        x.extend(_parse_value(where, layout.header[index], row[index]) for index in features)
    return CsvTable(
        np.frombuffer(x, dtype=np.float32).reshape(-1, len(features)),
        tuple(layout.header[index] for index in features),
        None if layout.label is None else Labels.of(labels),
        clients,
    )


def _read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, each with the number of its line."""
    with (
        reading(path, "be a readable .csv file"),
        open(path, newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.reader(_refuse_nulls(path, file))
        for row in reader:
            values = [value.strip() for value in row]
            if any(values):
                yield reader.line_num, values


def _refuse_nulls(path: Path, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if "\0" in line:
            raise DataError(f"{printable(path)}, line {number}: must be text, got a null byte")
        yield line


def _find_columns(
    path: Path, header: Sequence[str], label: str, client: str | None, required: Sequence[str]
) -> Layout:
    where = printable(path)
    if not header:
        raise DataError(f"{where} must have a header line, got an empty file")
    repeated = [name for name, count in Counter(header).items() if count > 1]
    if repeated:
        names = listing(name or "''" for name in repeated)
        raise DataError(f"{where}: columns must have different names, got several called {names}")
    for name in required:
        if name not in header:
            raise DataError(
                f"{where} must have a column called {quote(name)}, got {listing(header)}"
            )
    layout = Layout(
        tuple(header),
        header.index(label) if label in header else None,
        header.index(client) if client in header else None,
    )
    if not layout.features:
        raise DataError(f"{where} must have a column of features, got {listing(header)} alone")
    return layout


def _require_value(
    where: str, rule: str, header: Sequence[str], index: int, row: Sequence[str]
) -> str:
    """A cell that must hold a value."""
    if row[index].lower() in MISSING_VALUES:
        raise DataError(
            f"{where}: every row must {rule} in column {quote(header[index])}, got {row[index]!r}"
        )
    return row[index]


def _parse_value(where: str, column: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan if text.lower() in MISSING_VALUES else np.inf
    if abs(number) > MAX_FLOAT32 or "_" in text:
        raise DataError(
            f"{where}: column {quote(column)} must be a number or missing, got {quote(text)}"
        )
    return number
