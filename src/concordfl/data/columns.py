"""The columns of a table as features: numbers, and text as categories that all clients agree on.

A categorical column becomes an indicator per category, which is 1 in the rows that have it. A cell
that is missing, or has a category that nobody had in training, is 0 in all of them.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import DataError
from .csv_table import MISSING, Cell, CsvTable
from .labels import Labels, is_number, sort_classes
from .text import listing, printable, quote

log = logging.getLogger(__name__)
MAX_CATEGORIES = 100
# A column of text that is another one in every row of so many tells rows apart, not kinds of rows.
MAX_ROWS_ALL_DIFFERENT = 20
# Text beside more different numbers than this is rather a mistake in a column of numbers.
MAX_NUMBERS_AMONG_CATEGORIES = 20
EXACT_FLOAT32 = 2.0**24  # whole numbers beyond may be rounded to the same float
IDENTIFIER = re.compile(r"(?i)(?:.*[^a-z])?(?:ids?|uuid|guid|index|idx|key|nr|no|number|row)")
IDENTIFIER_IN_CAPITALS = re.compile(r".*[a-z](?:Id|ID|Nr|No|Key|Index|Number)")  # patientId
INDEX = re.compile(r"(?:Unnamed: [0-9]+)?")  # a column without a name, as it is or as pandas has it


class Column(NamedTuple):
    """A column of a table, and its categories where it is text."""

    name: str
    categories: tuple[str, ...] | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """What the features that it becomes are called."""
        if self.categories is None:
            return (self.name,)
        return tuple(f"{self.name}={category}" for category in self.categories)

    def only(self, features: Collection[str]) -> "Column":
        """The column with the categories of these features alone."""
        if self.categories is None:
            return self
        pairs = zip(self.features, self.categories, strict=True)
        return Column(self.name, tuple(category for name, category in pairs if name in features))


def feature_names(columns: Iterable[Column]) -> tuple[str, ...]:
    return tuple(name for column in columns for name in column.features)


def indicators(columns: Iterable[Column]) -> np.ndarray:
    """(F,) whether each feature says that a row has a category."""
    of_columns = [[column.categories is not None] * len(column.features) for column in columns]
    return np.array([each for column in of_columns for each in column], dtype=bool)


def to_record(column: Column) -> dict[str, Any]:
    record: dict[str, Any] = {"name": column.name}
    return record if column.categories is None else {**record, "categories": [*column.categories]}


def columns_from_record(records: Any) -> tuple[Column, ...]:
    """What `to_record` gave for each of several columns; anything else is refused."""
    columns = []
    for record in records if isinstance(records, list) else [records]:
        match record:
            case {"name": str(name), "categories": list(categories)} if _are_names(categories):
                columns.append(Column(name, tuple(categories)))
            case {"name": str(name)} if "categories" not in record:
                columns.append(Column(name))
            case _:
                raise DataError(
                    "preprocessing.columns must be tables with a name and perhaps categories, got "
                    f"{quote(str(record))}"
                )
    return tuple(columns)


def _are_names(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values) and len({*values}) == len(values)


def drop_advice(name: str) -> str:
    return f"drop = [{printable(json.dumps(name, ensure_ascii=False))}] in [data] leaves it out"


# --- matching and encoding ------------------------------------------------------------------------


def match_columns(names: Sequence[str], features: Sequence[str], where: str, whose: str) -> None:
    """Refuse features that lack one of the columns, or have another; their order does not
    matter.
    """
    missing = sorted({*names} - {*features}, key=names.index)
    extra = sorted({*features} - {*names}, key=features.index)
    if missing:
        raise DataError(
            f"{where}: columns must be those of {whose}, got none called {listing(missing)}"
        )
    if extra:
        raise DataError(
            f"{where}: columns must be those of {whose} ({listing(names)}), got "
            f"{listing(name or quote(name) for name in extra)} beside them"
        )


def encode(columns: Sequence[Column], table: CsvTable) -> np.ndarray:
    """(N, F) float32, NaN where a number is missing."""
    names = tuple(column.name for column in columns)
    if table.numbers == names:
        return table.x
    indices = {name: index for index, name in enumerate(table.numbers)}
    parts = [
        table.x[:, indices[column.name], None]
        if column.categories is None
        else _indicate(table.texts[column.name], column.categories)
        for column in columns
    ]
    return np.concatenate(parts, axis=1)


def _indicate(texts: Labels, categories: Sequence[str]) -> np.ndarray:
    """(N, K) 1 where a row has the category."""
    numbers = {name: number for number, name in enumerate(categories)}
    number = np.array([numbers.get(name, -1) for name in texts.names], dtype=np.int64)
    encoded = np.zeros((len(texts), len(categories)), dtype=np.float32)
    found = number.take(texts.index) if len(texts) else np.empty(0, dtype=np.int64)
    rows = np.flatnonzero(found >= 0)
    encoded[rows, found[rows]] = 1
    return encoded


def say_unknown_categories(columns: Sequence[Column], table: CsvTable) -> None:
    """Log a sentence for every column with categories that were not agreed on."""
    for column in columns:
        if column.categories is None:
            continue
        unknown = {*table.texts[column.name].names} - {*column.categories, MISSING}
        if unknown:
            log.warning(
                "%s: column %s has categories that the run does not know and counts as missing: %s",
                printable(table.path),
                quote(column.name),
                listing(sorted(unknown)),
            )


# --- agreeing on columns --------------------------------------------------------------------------


class TextValues(NamedTuple):
    """What a column that is read as text holds at one client."""

    names: tuple[str, ...]  # its different values; none where they are too many for categories
    present: int  # cells that are not missing
    different: int  # values
    numbers: int  # among the different values
    first: Cell | None  # where it is no number for the first time

    @classmethod
    def of(cls, table: CsvTable, name: str) -> "TextValues":
        texts = table.texts[name]
        names = sort_classes(each for each in texts.names if each != MISSING)
        numbers = sum(map(is_number, names))
        first = table.first_texts.get(name)
        return cls(names, _present(texts), len(names), numbers, first)

    def withheld(self) -> "TextValues":
        """Without the values, where there are so many that they cannot be categories."""
        if self.different <= MAX_CATEGORIES and self.numbers <= MAX_NUMBERS_AMONG_CATEGORIES:
            return self
        return self._replace(names=(), first=self.first and Cell("...", self.first.line))


Texts = Mapping[str, TextValues]  # by column


def text_columns(found: Iterable[Iterable[str]]) -> frozenset[str]:
    """The columns that are not numbers alone at some client; `found` are those of every client."""
    return frozenset(name for columns in found for name in columns)


def texts_of(table: CsvTable) -> dict[str, TextValues]:
    return {name: TextValues.of(table, name) for name in table.texts}


def agree(
    names: Sequence[str], texts: Sequence[Texts], wheres: Sequence[str]
) -> tuple[Column, ...]:
    """The columns of all clients, in the order of `names`; categories are those that any client
    has. `texts` are the clients' columns of text, `wheres` say whose they are.
    """
    columns = tuple(
        Column(name, _categories(name, [each[name] for each in texts], wheres))
        if name in texts[0]
        else Column(name)
        for name in names
    )
    features = feature_names(columns)
    if len({*features}) < len(features):
        twice = sorted(name for name, count in Counter(features).items() if count > 1)
        raise DataError(f"features must have different names, got several called {listing(twice)}")
    return columns


def _categories(
    column: str, values: Sequence[TextValues], wheres: Sequence[str]
) -> tuple[str, ...]:
    categories = sort_classes({name for each in values for name in each.names})
    where, (text, line) = next(
        (where, each.first)
        for where, each in zip(wheres, values, strict=True)
        if each.first is not None
    )
    numbers = max(sum(map(is_number, categories)), *(each.numbers for each in values))
    if numbers > MAX_NUMBERS_AMONG_CATEGORIES:
        raise DataError(
            f"{where}, line {line}: column {quote(column)} must be a number or missing, got "
            f"{quote(text)} beside {numbers:,} different numbers"
        )
    count = max(len(categories), *(each.different for each in values))
    all_different = count == sum(each.present for each in values) > MAX_ROWS_ALL_DIFFERENT
    if count > MAX_CATEGORIES or all_different:
        found = "another one in every row" if all_different else f"{count:,}"
        raise DataError(
            f"{where}: column {quote(column)} must be numbers, or text of at most "
            f"{MAX_CATEGORIES} categories, got {found}, such as {quote(text)}: "
            f"{drop_advice(column)}"
        )
    return categories


def _present(texts: Labels) -> int:
    """How many cells are not missing."""
    present = texts.number({name: int(name != MISSING) for name in texts.names})
    return int(present.sum())


# --- what a user should know of them --------------------------------------------------------------


def notices(tables: Sequence[CsvTable]) -> tuple[str, ...]:
    """A sentence on every column that is hardly meant to be a feature, or not read as it looks."""
    of_columns = (_notice(name, tables) for name in tables[0].features)
    comma = next((table.decimal_comma for table in tables if table.decimal_comma), None)
    of_numbers = comma and f"numbers have decimal commas: {comma.text} is {_with_point(comma.text)}"
    return tuple(notice for notice in (*of_columns, of_numbers) if notice)


def _with_point(text: str) -> str:
    return text.replace(",", ".")


def _notice(name: str, tables: Sequence[CsvTable]) -> str | None:
    if INDEX.fullmatch(name) and _counts_rows(name, tables):
        return f"column {quote(name)} only counts the rows: {drop_advice(name)}"
    if _looks_like_identifier(name) and all(_all_different(name, table) for table in tables):
        return f"column {quote(name)} looks like an identifier: {drop_advice(name)}"
    if name in tables[0].texts:
        texts = Labels.join([table.texts[name] for table in tables])
        text, line = next(table.first_texts[name] for table in tables if name in table.first_texts)
        if any(map(is_number, texts.names)):
            return (
                f"column {quote(name)} is taken as categories although it has numbers, since "
                f"{quote(text)} in line {line} is none"
            )
    return None


def _looks_like_identifier(name: str) -> bool:
    return bool(IDENTIFIER.fullmatch(name) or IDENTIFIER_IN_CAPITALS.fullmatch(name))


def _counts_rows(name: str, tables: Sequence[CsvTable]) -> bool:
    """Whether a column is 0, 1, 2, ... or 1, 2, 3, ... in every file."""
    if name in tables[0].texts:
        return False
    columns = [table.x[:, table.numbers.index(name)] for table in tables]
    return any(
        all(np.array_equal(column, np.arange(len(column)) + start) for column in columns)
        for start in (0, 1)
    )


def _all_different(name: str, table: CsvTable) -> bool:
    """Whether a column of whole numbers or of text is another one in every row of a file."""
    if name in table.texts:
        texts = table.texts[name]
        return len({*texts.names} - {MISSING}) == _present(texts) > 1
    numbers = table.x[:, table.numbers.index(name)]
    distinct = len(np.unique(numbers))
    # Large ones are rounded, some of them to the same number.
    share = 1 if np.abs(numbers).max(initial=0) < EXACT_FLOAT32 else 0.9
    return bool((numbers % 1 == 0).all()) and len(numbers) > 1 and distinct >= share * len(numbers)
