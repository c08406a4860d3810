"""What is to be predicted: classes, numbers, or several labels, as the data show or the user says.

A user's data are read with every distinct value as a class. Here it is decided whether these are
classes at all.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..core import DataError, SettingError
from ..core.objective import Kind
from .arrays import Arrays
from .dataset import Dataset
from .labels import number_of, numbers_of
from .preprocessing import kind_of_targets
from .text import listing, quote

MAX_OBVIOUS_CLASSES = 20  # different whole numbers, which may be classes without a further look
MIN_EXAMPLES_PER_CLASS = 10  # on average, where there are more

HOW_TO_SAY = 'say [objective] kind = "classification" or kind = "regression"'


class TargetFacts(NamedTuple):
    """What must be known of somebody's targets to decide what they are."""

    columns: int  # targets per example, 1 where they are classes
    text: str | None  # one that is no number
    has_fractions: bool
    is_binary: bool  # 0 and 1 alone
    other_label: str | None  # where they must be 0 or 1: one that is not
    only: str | None  # the one value, where there is no other

    @classmethod
    def of(cls, names: Sequence[str], columns: int, kind: Kind | str) -> "TargetFacts":
        """Of the different values that targets take; several columns hold numbers alone."""
        parts = [part for name in names for part in (name.split(" ") if columns > 1 else [name])]
        texts = [part for part in parts if number_of(part) is None]
        known = [number for part in parts if (number := number_of(part)) is not None]
        other = next((number for number in known if number not in (0, 1)), None)
        return cls(
            columns,
            texts[0] if texts else None,
            any(number != int(number) for number in known),
            other is None and not texts,
            f"{other:g}" if kind == "multi-label" and other is not None else None,
            names[0] if len(names) == 1 else None,
        )


def decide_kind(facts: Sequence[TargetFacts], names: Sequence[str], kind: Kind | str) -> Kind:
    """What all clients' targets, called `names`, are: the kind that is asked for, or, by "auto",
    that they show. What shows classes is to be looked at by `require_classes`.
    """
    if max(each.columns for each in facts) > 1:
        return _kind_of_several(facts, names, kind)
    if kind == "multi-label":
        raise SettingError(
            "objective.kind = 'multi-label' needs a column of 0 and 1 per label, label = [...] in "
            "[data], got one column"
        )
    text = next((each.text for each in facts if each.text is not None), None)
    if kind == "regression" and text is not None:
        raise DataError(f"targets must be numbers, got {quote(text)}")
    has_fractions = any(each.has_fractions for each in facts)
    shows_numbers = kind == "auto" and text is None and has_fractions
    return "regression" if kind == "regression" or shows_numbers else "classification"


def _kind_of_several(facts: Sequence[TargetFacts], names: Sequence[str], kind: Kind | str) -> Kind:
    """Several numbers per example: labels if all of them are 0 or 1."""
    binary = all(each.is_binary for each in facts)
    if kind == "classification":
        raise SettingError(
            f"objective.kind = 'classification' needs one column of classes, got {len(names)}"
        )
    if kind == "multi-label" and not binary:
        wrong = next((each.other_label for each in facts if each.other_label), "another")
        raise DataError(f"labels of a multi-label task must be 0 or 1, got {wrong}")
    if kind == "auto" and not binary and not any(each.has_fractions for each in facts):
        raise DataError(
            f"several columns of whole numbers may be several targets or a mistake, got "
            f'{listing(names)}: say [objective] kind = "regression"'
        )
    return "multi-label" if binary and kind != "regression" else "regression"


def decide(data: Dataset, kind: Kind | str) -> Dataset:
    """`data` with targets of the kind that is asked for, or, by "auto", that they show."""
    found = kind_of_targets(data.train.y)
    if found != "classification":
        if kind not in ("auto", found):
            raise SettingError(
                f"objective.kind must fit the data, which are for {found}, got {kind!r}"
            )
        return data._replace(num_classes=0, classes=())
    columns = max(len(data.targets), 1)
    decided = decide_kind([TargetFacts.of(data.classes, columns, kind)], data.targets, kind)
    if decided == "classification":
        if kind == "auto":
            require_classes(data.classes, len(data.train.y))
        return data
    values = _class_values(data)
    if decided == "multi-label":
        return _with_values(data, values.astype(np.int64))
    return _with_values(data, values[:, 0] if columns == 1 else values)


def require_classes(classes: Sequence[str], examples: int) -> None:
    """Refuse names of classes, in their order, that are rather numbers."""
    numbers = [number_of(name) for name in classes]
    fractions = [value for value in numbers if value is not None and value != int(value)]
    texts = [name for name, value in zip(classes, numbers, strict=True) if value is None]
    if texts and len(fractions) > MAX_OBVIOUS_CLASSES:
        raise DataError(
            f"targets must be numbers throughout or classes, got {listing(texts)} beside "
            f"{len(fractions)} different numbers"
        )
    if not texts and len(numbers) > MAX_OBVIOUS_CLASSES and not _are_obvious(classes, examples):
        raise DataError(
            f"targets that are whole numbers may be classes or values, got {len(numbers)} "
            f"different ones ({listing(classes)}): {HOW_TO_SAY}"
        )


def may_be_classes(names: Sequence[str], examples: int, *, with_texts: bool) -> bool:
    """Whether `require_classes` may accept the different targets of one client, whoever else there
    is: all clients have so many `examples`, some of them `with_texts` as targets.
    """
    numbers = [number for name in names if (number := number_of(name)) is not None]
    if with_texts:
        return sum(number != int(number) for number in numbers) <= MAX_OBVIOUS_CLASSES
    largest = examples / MIN_EXAMPLES_PER_CLASS
    return len(numbers) <= MAX_OBVIOUS_CLASSES or (min(numbers) >= 0 and max(numbers) <= largest)


def _are_obvious(classes: Sequence[str], examples: int) -> bool:
    """Whether many whole numbers are those of classes: they count from 0 or 1, and each has some
    examples.
    """
    count = len(classes)
    counted = any(
        tuple(classes) == tuple(str(number) for number in range(first, first + count))
        for first in (0, 1)
    )
    return counted and examples >= MIN_EXAMPLES_PER_CLASS * count


def _class_values(data: Dataset) -> np.ndarray:
    """(Y, D) what the classes' names are as numbers."""
    if not data.classes:  # classes of a known data set, which are called by their numbers
        return np.arange(data.num_classes, dtype=np.float64)[:, None]
    return numbers_of(data.classes, max(len(data.targets), 1), "targets must be numbers")


def _with_values(data: Dataset, values: np.ndarray) -> Dataset:
    """The same with the classes' values as targets."""
    train, test = (Arrays(part.x, values[part.y]) for part in (data.train, data.test))
    return data._replace(train=train, test=test, num_classes=0, classes=(), coarse=None)
