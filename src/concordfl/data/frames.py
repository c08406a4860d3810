"""Data frames as tables, with the same rules for their columns; they need not be pandas'."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core import DataError
from .columns import Column, agree, encode, match_columns, notices, text_columns, texts_of
from .csv_table import MISSING, MISSING_CATEGORIES, Cell, CsvTable, NumberReader
from .labels import Labels
from .samples import check_inputs
from .text import listing, quote


class EncodedFrames(NamedTuple):
    """Features of several frames, the same for all."""

    x: list[np.ndarray]  # (N, F) of each
    columns: tuple[Column, ...]
    notices: tuple[str, ...]


def is_frame(given: object) -> bool:
    return hasattr(given, "columns") and hasattr(given, "to_numpy")


def encode_frames(frames: Mapping[str, Any]) -> EncodedFrames:
    """The features of frames, by whose they are: columns by name, text as categories."""
    tables = [to_table(frame, where) for where, frame in frames.items()]
    texts = text_columns(table.first_texts for table in tables)
    if texts:
        tables = [to_table(frame, where, texts) for where, frame in frames.items()]
    names, wheres = tables[0].features, list(frames)
    for table, where in zip(tables, wheres, strict=True):
        match_columns(names, table.features, where, wheres[0])
    columns = agree(names, [texts_of(table) for table in tables], wheres)
    return EncodedFrames([encode(columns, table) for table in tables], columns, notices(tables))


def to_table(frame: Any, where: str, texts: Collection[str] = ()) -> CsvTable:
    """A frame of features; columns in `texts` are read as text, all others as numbers."""
    names = [str(name) for name in frame.columns]
    if len({*names}) < len(names):
        raise DataError(f"{where}: columns must have different names, got {listing(names)}")
    columns = dict(zip(names, (frame[name] for name in frame.columns), strict=True))
    numbers = [name for name in names if name not in texts]
    first_texts: dict[str, Cell] = {}
    values = [_numbers(columns[name], name, where, first_texts) for name in numbers]
    return CsvTable(
        Path(where),
        tuple(names),
        tuple(numbers),
        _stack(values, len(frame), where),
        {name: _texts(columns[name], name, first_texts) for name in names if name in texts},
        first_texts,
        labels=None,
        cells={},
    )


def _stack(columns: Sequence[np.ndarray], count: int, where: str) -> np.ndarray:
    if not columns:
        return np.empty((count, 0), dtype=np.float32)
    return check_inputs(np.stack(columns, axis=1), where)


def _numbers(column: Any, name: str, where: str, first_texts: dict[str, Cell]) -> np.ndarray:
    """(N,) NaN where a value is missing or no number."""
    values = np.asarray(column.to_numpy())
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind not in "OUST":
        raise DataError(
            f"{where}: column {quote(name)} must be numbers or text, got {quote(str(values.dtype))}"
        )
    reader = NumberReader(decimal_commas=False)
    found = np.full(len(values), np.nan)
    for row, text in enumerate(_cells(values)):
        number = reader.parse(text, row)
        if number is None:
            first_texts.setdefault(name, Cell(text, row))
        else:
            found[row] = number
    return found


def _texts(column: Any, name: str, first_texts: dict[str, Cell]) -> Labels:
    reader, texts = NumberReader(decimal_commas=False), []
    for row, text in enumerate(_cells(column.to_numpy())):
        missing = text.lower() in MISSING_CATEGORIES
        texts.append(MISSING if missing else text)
        if name not in first_texts and not missing and reader.parse(text, row) is None:
            first_texts[name] = Cell(text, row)
    return Labels.of(texts)


def _cells(values: np.ndarray) -> list[str]:
    """Values as a .csv file would have them."""
    texts = [MISSING if value is None else str(value).strip() for value in values.tolist()]
    return [MISSING if text == "<NA>" else text for text in texts]  # pandas' missing value
