"""What is to be predicted: classes, numbers, or several labels, as the data show or the user says.

A user's data are read with every distinct value as a class. Here it is decided whether these are
classes at all.
"""

import numpy as np

from ..core import DataError, SettingError
from ..core.objective import Kind
from .arrays import Arrays
from .dataset import Dataset
from .labels import number_of, numbers_of
from .preprocessing import kind_of_targets
from .text import listing

MAX_OBVIOUS_CLASSES = 20  # different whole numbers, which may be classes without a further look
MIN_EXAMPLES_PER_CLASS = 10  # on average, where there are more

HOW_TO_SAY = 'say [objective] kind = "classification" or kind = "regression"'


def decide(data: Dataset, kind: Kind | str) -> Dataset:
    """`data` with targets of the kind that is asked for, or, by "auto", that they show."""
    found = kind_of_targets(data.train.y)
    if found != "classification":
        if kind not in ("auto", found):
            raise SettingError(
                f"objective.kind must fit the data, which are for {found}, got {kind!r}"
            )
        return data._replace(num_classes=0, classes=())
    if len(data.targets) > 1:
        return _of_several_columns(data, kind)
    if kind == "multi-label":
        raise SettingError(
            "objective.kind = 'multi-label' needs a column of 0 and 1 per label, label = [...] in "
            "[data], got one column"
        )
    if kind == "regression" or (kind == "auto" and _shows_numbers(data)):
        return _with_values(data, _class_values(data)[:, 0])
    return data


def _of_several_columns(data: Dataset, kind: Kind | str) -> Dataset:
    """Several numbers per example: labels if all of them are 0 or 1."""
    values = _class_values(data)
    binary = np.isin(values, (0, 1)).all()
    if kind == "classification":
        raise SettingError(
            f"objective.kind = 'classification' needs one column of classes, got "
            f"{len(data.targets)}"
        )
    if kind == "multi-label" and not binary:
        wrong = values[~np.isin(values, (0, 1))][0]
        raise DataError(f"labels of a multi-label task must be 0 or 1, got {wrong:g}")
    if kind == "auto" and not binary and (values == np.round(values)).all():
        raise DataError(
            f"several columns of whole numbers may be several targets or a mistake, got "
            f'{listing(data.targets)}: say [objective] kind = "regression"'
        )
    labels = binary and kind != "regression"
    return _with_values(data, values.astype(np.int64) if labels else values)


def _shows_numbers(data: Dataset) -> bool:
    """Whether the names of a user's classes are rather numbers; what may be either is refused."""
    numbers = [number_of(name) for name in data.classes]
    fractions = [value for value in numbers if value is not None and value != int(value)]
    texts = [name for name, value in zip(data.classes, numbers, strict=True) if value is None]
    if texts:
        if len(fractions) > MAX_OBVIOUS_CLASSES:
            raise DataError(
                f"targets must be numbers throughout or classes, got {listing(texts)} beside "
                f"{len(fractions)} different numbers"
            )
        return False
    if fractions:
        return True
    if len(numbers) > MAX_OBVIOUS_CLASSES and not _are_obvious(data):
        raise DataError(
            f"targets that are whole numbers may be classes or values, got {len(numbers)} "
            f"different ones ({listing(data.classes)}): {HOW_TO_SAY}"
        )
    return False


def _are_obvious(data: Dataset) -> bool:
    """Whether many whole numbers are those of classes: they count from 0 or 1, and each has some
    examples.
    """
    count = len(data.classes)
    counted = any(
        data.classes == tuple(str(number) for number in range(first, first + count))
        for first in (0, 1)
    )
    return counted and len(data.train.y) >= MIN_EXAMPLES_PER_CLASS * count


def _class_values(data: Dataset) -> np.ndarray:
    """(Y, D) what the classes' names are as numbers."""
    if not data.classes:  # classes of a known data set, which are called by their numbers
        return np.arange(data.num_classes, dtype=np.float64)[:, None]
    return numbers_of(data.classes, max(len(data.targets), 1), "targets must be numbers")


def _with_values(data: Dataset, values: np.ndarray) -> Dataset:
    """The same with the classes' values as targets."""
    train, test = (Arrays(part.x, values[part.y]) for part in (data.train, data.test))
    return data._replace(train=train, test=test, num_classes=0, classes=(), coarse=None)
