"""What the examples of a run are: its features, their missing cells, and its classes."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from ..data import Dataset
from ..data.columns import Column

MAX_COLUMNS_SHOWN = 30
MAX_NAMES_SHOWN = 6  # categories of a column
MAX_CLASSES_SHOWN = 20


class ColumnFacts(NamedTuple):
    name: str
    kind: str
    values: str
    missing: int
    constant: bool


def show_data(data: Dataset) -> Iterator[RenderableType]:
    """Features and classes of all examples that come to clients."""
    x = data.train.x
    if data.columns:
        yield from _columns(_facts(data.columns, x), len(x))
    elif x.ndim == 4:
        height, width, channels = x.shape[1:]
        colours = "1 channel" if channels == 1 else f"{channels} channels"
        yield f"{len(x):,} images of {height} x {width} pixels, {colours}"
    else:
        shape = " x ".join(str(length) for length in x.shape[1:])
        missing = int(np.isnan(x).sum()) if x.dtype.kind == "f" else 0
        cells = f", {missing:,} cells missing" if missing else ""
        yield f"{len(x):,} examples of {shape} numbers{cells}"
    yield _targets(data)


def _facts(columns: Sequence[Column], x: np.ndarray) -> list[ColumnFacts]:
    facts, start = [], 0
    for column in columns:
        stop = start + len(column.features)
        facts.append(_fact(column, x[:, start:stop]))
        start = stop
    return facts


def _fact(column: Column, x: np.ndarray) -> ColumnFacts:
    if column.categories is not None:
        missing = int((x == 0).all(axis=1).sum())
        constant = len(column.categories) == 1 and not missing
        values = _shorten(column.categories, MAX_NAMES_SHOWN)
        return ColumnFacts(column.name, "category", values, missing, constant)
    present = x[np.isfinite(x)]
    if not len(present):
        return ColumnFacts(column.name, "number", "", len(x), constant=False)
    low, high = float(present.min()), float(present.max())
    values = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return ColumnFacts(column.name, "number", values, len(x) - len(present), low == high)


def _columns(facts: Sequence[ColumnFacts], count: int) -> Iterator[RenderableType]:
    kinds = [fact.kind for fact in facts]
    title = f"{count:,} examples, {len(facts)} columns of features"
    if "category" in kinds:
        title += f", {kinds.count('category')} of them categories"
    yield title
    table = Table()
    for name in ("column", "kind", "values", "missing"):
        table.add_column(name, justify="right" if name == "missing" else "left")
    for fact in facts[:MAX_COLUMNS_SHOWN]:
        missing = f"{fact.missing:,} ({fact.missing / count:.0%})" if fact.missing else ""
        values = f"{fact.values} (never varies)" if fact.constant else fact.values
        table.add_row(fact.name or "''", fact.kind, values, missing)
    yield table
    others = facts[MAX_COLUMNS_SHOWN:]
    if others:
        with_missing = sum(fact.missing > 0 for fact in others)
        constant = sum(fact.constant for fact in others)
        yield (
            f"{len(others)} more are not shown, {with_missing} of them with missing cells, "
            f"{constant} that never vary"
        )


def _targets(data: Dataset) -> str:
    """Classes with their counts; the range of targets that are numbers."""
    y = data.train.y
    if y.ndim > 1 or y.dtype.kind == "f":
        return f"targets from {y.min():g} to {y.max():g}"
    names = data.classes or tuple(str(number) for number in range(data.num_classes))
    counts = np.bincount(data.train.y, minlength=len(names)).tolist()
    counted = [f"{name} {count:,}" for name, count in zip(names, counts, strict=True)]
    return f"{len(names)} classes: {_shorten(counted, MAX_CLASSES_SHOWN)}"


def _shorten(names: Sequence[str], most: int) -> str:
    first = ", ".join(names[:most])
    return f"{first} and {len(names) - most} more" if len(names) > most else first
