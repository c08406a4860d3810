"""Labels as users write them: numbers or words, of any length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np

from ..core import DataError
from .text import listing, quote


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of some examples: the names of the classes, and the index of each example's class
    among them.

    Names are kept once, so that one long name costs no more than its length.
    """

    names: tuple[str, ...]
    index: np.ndarray  # (N,)
    # of targets that are several numbers each, which `names` then have with spaces between them
    columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Iterable[str | bytes | float]) -> "Labels":
        numbers: dict[str, int] = {}  # of every class name
        by_value: dict[str | bytes | float, int] = {}  # spares naming a value twice
        index = []
        for value in values:
            number = by_value.get(value)
            if number is None:
                number = numbers.setdefault(class_name(value), len(numbers))
                by_value[value] = number
            index.append(number)
        return cls(tuple(numbers), np.array(index, dtype=np.int64))

    @classmethod
    def of_array(cls, values: np.ndarray) -> "Labels":
        if values.dtype.kind in "US":
            return cls.of(values.tolist())
        distinct, inverse = np.unique(values, return_inverse=True)
        labels = cls.of(distinct.tolist())
        return cls(labels.names, labels.index[inverse])

    @classmethod
    def of_rows(cls, values: np.ndarray, columns: Sequence[str] = ()) -> "Labels":
        """Of several numbers per example, (N, D)."""
        rows = cls.of(" ".join(map(class_name, row)) for row in values.tolist())
        named = tuple(columns) or tuple(f"y{index}" for index in range(values.shape[1]))
        return cls(rows.names, rows.index, named)

    @classmethod
    def join(cls, parts: Sequence["Labels"]) -> "Labels":
        # Parts of one table share its names, which may be as many as the table has rows.
        different = {id(part.names): part.names for part in parts}
        names = tuple(dict.fromkeys(name for each in different.values() for name in each))
        numbers = {name: number for number, name in enumerate(names)}
        tables = {key: _table(each, numbers) for key, each in different.items()}
        index = np.concatenate([tables[id(part.names)].take(part.index) for part in parts])
        return cls(names, index, parts[0].columns)

    def take(self, rows: np.ndarray | Sequence[int]) -> "Labels":
        return Labels(self.names, self.index[rows], self.columns)

    def __len__(self) -> int:
        return len(self.index)

    def number(self, numbers: Mapping[str, int]) -> np.ndarray:
        """(N,) the number that `numbers` gives to the class of each example."""
        return _table(self.names, numbers).take(self.index)


def _table(names: Sequence[str], numbers: Mapping[str, int]) -> np.ndarray:
    """(Y,) the number that `numbers` gives to each of the classes."""
    return np.array([numbers[name] for name in names], dtype=np.int64)


def require_alike(columns: int, others: int, where: str, whose: str) -> None:
    """Refuse targets of another number of columns than somebody else's."""
    if columns != others:
        raise DataError(
            f"{where}: targets must be {others} per example as those of {whose}, got {columns}"
        )


def require_several(classes: Sequence[str]) -> None:
    """Refuse targets that are all the same."""
    if len(classes) < 2:
        raise DataError(f"labels must take at least two values, got {listing(classes)}")


def numbers_of(names: Sequence[str], count: int, rule: str) -> np.ndarray:
    """(Y, count) the numbers that classes are called by, several with spaces between them; what is
    none breaks the rule.
    """
    rows = [
        [number_of(part) for part in (name.split(" ") if count > 1 else [name])] for name in names
    ]
    for name, row in zip(names, rows, strict=True):
        if None in row or len(row) != count:
            raise DataError(f"{rule}, got {quote(name)}")
    return np.array(rows, dtype=np.float64).reshape(-1, count)


def class_name(value: str | bytes | float) -> str:
    """A label as it is recorded: 1, 1.0 and "1" are the same class; whole numbers are exact,
    however large.
    """
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        number = number_of(value)
        if number is None:
            return value
        value = number
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    return repr(float(value))


def class_values(names: Sequence[str]) -> np.ndarray:
    """Classes as values: numbers where all of them are numbers, else text."""
    numbers = [number_of(name) for name in names]
    return np.array(names if None in numbers else numbers)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """As numbers where all of them are numbers, so that 10 comes after 9; else as text."""
    numbers = {name: number_of(name) for name in names}
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) == len(numbers):
        return tuple(sorted(known, key=lambda name: known[name]))
    return tuple(sorted(numbers))


def is_number(text: str) -> bool:
    """Whether a text stands for a finite number."""
    return number_of(text) is not None


def number_of(text: str) -> int | float | None:
    """The number that a text stands for; None if it stands for none, as "1_2" or "inf"."""
    try:
        number = float(text)
    except ValueError:
        return None
    if "_" in text or not math.isfinite(number):
        return None
    if not number.is_integer():
        return number
    # A float has rounded whole numbers above 2**53.
    exact = Decimal(text)
    return int(exact) if exact == exact.to_integral_value() else None
