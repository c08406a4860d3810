"""Labels as users write them: numbers or words, of any length."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of some examples: the names of the classes, and the index of each example's class
    among them.

    Names are kept once, so that one long name costs no more than its length.
    """

    names: tuple[str, ...]
    index: np.ndarray  # (N,)

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
    def join(cls, parts: Sequence["Labels"]) -> "Labels":
        names = tuple(dict.fromkeys(name for part in parts for name in part.names))
        numbers = {name: number for number, name in enumerate(names)}
        return cls(names, np.concatenate([part.number(numbers) for part in parts]))

    def __len__(self) -> int:
        return len(self.index)

    def number(self, numbers: Mapping[str, int]) -> np.ndarray:
        """(N,) the number that `numbers` gives to the class of each example."""
        by_index = np.array([numbers[name] for name in self.names], dtype=np.int64)
        return by_index.take(self.index)


def class_name(value: str | bytes | float) -> str:
    """A label as it is recorded: 1, 1.0 and "1" are the same class; whole numbers are exact,
    however large.
    """
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, str):
        number = _parse_number(value)
        if number is None:
            return value
        value = number
    if isinstance(value, int) or value.is_integer():
        return str(int(value))
    return repr(float(value))


def class_values(names: Sequence[str]) -> np.ndarray:
    """Classes as values: numbers where all of them are numbers, else text."""
    numbers = [_parse_number(name) for name in names]
    return np.array(names if None in numbers else numbers)


def sort_classes(names: Iterable[str]) -> tuple[str, ...]:
    """As numbers where all of them are numbers, so that 10 comes after 9; else as text."""
    numbers = {name: _parse_number(name) for name in names}
    known = {name: number for name, number in numbers.items() if number is not None}
    if len(known) == len(numbers):
        return tuple(sorted(known, key=lambda name: known[name]))
    return tuple(sorted(numbers))


def is_number(text: str) -> bool:
    """Whether a text stands for a finite number."""
    return _parse_number(text) is not None


def _parse_number(text: str) -> int | float | None:
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
