"""A .csv file as people have it: columns of numbers and of text, by name, between commas,
semicolons or tabs.
"""

import csv
import re
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core import DataError
from .files import reading, require_file
from .labels import Labels, is_number
from .text import listing, printable, quote

# cells, in any case of letters, that hold no value
MISSING_VALUES = frozenset(("", "?", "na", "nan", "null", "none"))
# among categories, "none" is one of them
MISSING_CATEGORIES = MISSING_VALUES - {"none"}
MISSING = ""  # how a missing cell stands among texts
MAX_FLOAT32 = float(np.finfo(np.float32).max)
DELIMITERS = (",", ";", "\t")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]+(?:[eE][+-]?[0-9]+)?")


class Cell(NamedTuple):
    """What stands somewhere in a file."""

    text: str
    line: int


class CsvTable(NamedTuple):
    """The rows of a .csv file."""

    path: Path
    header: tuple[str, ...]
    numbers: tuple[str, ...]  # the columns of x
    x: np.ndarray  # (N, F) float32, NaN where a value is missing or no number
    texts: Mapping[str, Labels]  # the columns that were asked for as text, MISSING among them
    first_texts: Mapping[str, Cell]  # where a column holds what is no number for the first time
    labels: Labels | None
    cells: Mapping[str, list[str]]  # of the columns that must be there
    decimal_comma: Cell | None = None  # the first number that has one

    @property
    def features(self) -> tuple[str, ...]:
        """The columns that are features, in their order."""
        features = {*self.numbers, *self.texts}
        return tuple(name for name in self.header if name in features)

    def __len__(self) -> int:
        return len(self.x)


class Layout(NamedTuple):
    """Which column of a table is what, by index."""

    header: tuple[str, ...]
    labels: Mapping[str, int]  # none where a table has not all of these columns
    required: Mapping[str, int]
    texts: Mapping[str, int]
    numbers: Mapping[str, int]


def columns_of(label: str | Sequence[str]) -> tuple[str, ...]:
    """The columns of labels, one or several."""
    return (label,) if isinstance(label, str) else tuple(label)


def read_csv(
    path: Path,
    label: str | Sequence[str],
    *,
    required: Mapping[str, str] | None = None,
    ignored: Collection[str] = (),
    texts: Collection[str] = (),
    expected: Collection[str] = (),
) -> CsvTable:
    """All of a .csv file.

    `required` are columns that must be there and filled, each with what a row must do in it; they
    are no features, nor are those in `ignored`. Columns in `texts` are read as text, all others as
    numbers. `expected` are names that help to tell which delimiter the file has.
    """
    require_file(path)
    required = required or {}
    labels = columns_of(label)
    delimiter = _find_delimiter(path, {*labels, *required, *expected})
    rows = _read_rows(path, delimiter)
    header = next(rows, (1, []))[1]
    layout = _find_columns(path, header, labels, required, ignored, texts)
    table = _Collector(path, layout, required, NumberReader(decimal_commas=delimiter != ","))
    for line, row in rows:
        if len(row) != len(header):
            raise DataError(
                f"{printable(path)}, line {line}: must have {len(header)} values as the header, "
                f"got {len(row)}"
            )
        table.add(row, line)
    return table.finish()


def read_header(path: Path, expected: Collection[str]) -> tuple[str, ...]:
    """The names of the columns, some of which are `expected`."""
    require_file(path)
    rows = _read_rows(path, _find_delimiter(path, expected))
    return tuple(next(rows, (1, []))[1])


class _Collector:
    """The rows of a file on their way into a table."""

    def __init__(
        self, path: Path, layout: Layout, required: Mapping[str, str], numbers: "NumberReader"
    ) -> None:
        self._path, self._layout, self._required = path, layout, required
        self._numbers = numbers
        self._number_columns = tuple(layout.numbers.values())
        self._x = array("f")
        self._labels: list[str] = []
        self._rows_of_targets: list[list[float]] = []  # where there are several columns
        self._cells: dict[str, list[str]] = {name: [] for name in layout.required}
        self._texts: dict[str, list[str]] = {name: [] for name in layout.texts}
        self._first_texts: dict[str, Cell] = {}
        self._length = 0

    def add(self, row: Sequence[str], line: int) -> None:
        self._length += 1
        if self._layout.labels:
            self._add_label(row, line)
        for name, index in self._layout.required.items():
            self._cells[name].append(self._require_value(self._required[name], index, row, line))
        for name, index in self._layout.texts.items():
            missing = row[index].lower() in MISSING_CATEGORIES
            self._texts[name].append(MISSING if missing else row[index])
            if name not in self._first_texts and not missing and not is_number(row[index]):
                self._first_texts[name] = Cell(row[index], line)
        numbers = self._numbers.parse_plain([row[index] for index in self._number_columns])
        if numbers is None:  # one by one: the first that is none is to be found
            columns = self._layout.numbers.items()
            numbers = [self._parse(name, row[index], line) for name, index in columns]
        self._x.extend(numbers)

    def _add_label(self, row: Sequence[str], line: int) -> None:
        values = {
            name: self._numbers.note(self._require_value("have a label", index, row, line), line)
            for name, index in self._layout.labels.items()
        }
        if len(values) == 1:
            self._labels.extend(values.values())
            return
        for name, value in values.items():
            if not is_number(value):
                raise DataError(
                    f"{printable(self._path)}, line {line}: a column of several targets must be "
                    f"numbers, got {quote(value)} in column {quote(name)}"
                )
        self._rows_of_targets.append([float(value) for value in values.values()])

    def _all_labels(self) -> Labels | None:
        columns = tuple(self._layout.labels)
        if len(columns) > 1:
            rows = np.array(self._rows_of_targets, dtype=np.float64).reshape(-1, len(columns))
            return Labels.of_rows(rows, columns)
        return Labels.of(self._labels) if columns else None

    def _parse(self, name: str, text: str, line: int) -> float:
        number = self._numbers.parse(text, line)
        if number is None:
            self._first_texts.setdefault(name, Cell(text, line))
            return np.nan
        if abs(number) > MAX_FLOAT32 or "_" in text:
            raise not_a_number(self._path, name, Cell(text, line))
        return number

    def _require_value(self, rule: str, index: int, row: Sequence[str], line: int) -> str:
        """A cell that must hold a value."""
        if row[index].lower() in MISSING_VALUES:
            raise DataError(
                f"{printable(self._path)}, line {line}: every row must {rule} in column "
                f"{quote(self._layout.header[index])}, got {row[index]!r}"
            )
        return row[index]

    def finish(self) -> CsvTable:
        self._numbers.require_one_kind(self._path)
        return CsvTable(
            self._path,
            self._layout.header,
            tuple(self._layout.numbers),
            np.frombuffer(self._x, dtype=np.float32).reshape(
                self._length, len(self._layout.numbers)
            ),
            {name: Labels.of(values) for name, values in self._texts.items()},
            self._first_texts,
            self._all_labels(),
            self._cells,
            self._numbers.first_comma,
        )


def not_a_number(path: Path, column: str, cell: Cell) -> DataError:
    return DataError(
        f"{printable(path)}, line {cell.line}: column {quote(column)} must be a number or missing, "
        f"got {quote(cell.text)}"
    )


class NumberReader:
    """Cells as numbers; where commas do not separate columns, a number may have a decimal comma."""

    def __init__(self, *, decimal_commas: bool) -> None:
        self._decimal_commas = decimal_commas
        self.first_comma: Cell | None = None
        self._first_point: Cell | None = None

    def parse(self, text: str, line: int) -> float | None:
        """NaN where a value is missing, None where it is no number."""
        try:
            number = float(text)
        except ValueError:
            if text.lower() in MISSING_VALUES:
                return np.nan
            point = self.with_point(text)
            if point == text:
                return None
            self.first_comma = self.first_comma or Cell(text, line)
            return float(point)
        if self._decimal_commas and self._first_point is None and "." in text:
            self._first_point = Cell(text, line)
        return number

    def parse_plain(self, texts: Sequence[str]) -> list[float] | None:
        """All of a row's cells at once, where each is a number that needs no second look."""
        if self._decimal_commas or "_" in "".join(texts):
            return None
        try:
            numbers = list(map(float, texts))
        except ValueError:
            return None
        # As no single one is larger; not so where one is missing.
        return numbers if sum(map(abs, numbers)) <= MAX_FLOAT32 else None

    def note(self, text: str, line: int) -> str:
        """What `with_point` gives, where the text counts among the numbers of the file."""
        self.parse(text, line)
        return self.with_point(text)

    def with_point(self, text: str) -> str:
        """A number with a decimal comma as one with a point; any other text as it is."""
        if self._decimal_commas and "," in text and DECIMAL_COMMA.fullmatch(text):
            return text.replace(",", ".")
        return text

    def require_one_kind(self, path: Path) -> None:
        """`1,234` beside `1.5` may be a thousand or a fraction."""
        if self.first_comma is not None and self._first_point is not None:
            comma, point = self.first_comma, self._first_point
            raise DataError(
                f"{printable(path)}: numbers must have decimal commas or decimal points alike, got "
                f"{quote(comma.text)} in line {comma.line} and {quote(point.text)} in line "
                f"{point.line}"
            )


# --- lines and columns ----------------------------------------------------------------------------


def _find_delimiter(path: Path, names: Collection[str]) -> str:
    """The one of DELIMITERS that the header line holds; of several, the one between which the most
    of `names` stand, then the one that makes the most columns.
    """
    with (
        reading(path, "be a readable .csv file"),
        open(path, newline="", encoding="utf-8-sig") as file,
    ):
        line = next((line for line in _refuse_nulls(path, file) if line.strip()), "")
        columns = {
            delimiter: [name.strip() for name in next(csv.reader([line], delimiter=delimiter), [])]
            for delimiter in DELIMITERS
            if delimiter in line
        }
    return max(
        columns,
        key=lambda delimiter: (len({*columns[delimiter]} & {*names}), len(columns[delimiter])),
        default=",",
    )


def _read_rows(path: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Rows that are not empty, each with the number of its line."""
    with (
        reading(path, "be a readable .csv file"),
        open(path, newline="", encoding="utf-8-sig") as file,
    ):
        reader = csv.reader(_refuse_nulls(path, file), delimiter=delimiter)
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
    path: Path,
    header: Sequence[str],
    labels: Sequence[str],
    required: Collection[str],
    ignored: Collection[str],
    texts: Collection[str],
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
    indices = {name: index for index, name in enumerate(header)}
    features = [name for name in header if name not in {*labels, *required, *ignored}]
    if not features:
        raise DataError(f"{where} must have a column of features, got {listing(header)} alone")
    return Layout(
        tuple(header),
        {name: indices[name] for name in labels} if indices.keys() >= {*labels} else {},
        {name: indices[name] for name in required if name not in labels},
        {name: indices[name] for name in features if name in texts},
        {name: indices[name] for name in features if name not in texts},
    )
