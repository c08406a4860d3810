"""Examples as Python has them, prepared as a run prepared its own."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import DataError, Examples
from ..data import Arrays, Preprocessing
from ..data.columns import encode, match_columns, say_unknown_categories
from ..data.csv_table import MISSING, MISSING_CATEGORIES, CsvTable
from ..data.labels import Labels
from ..data.own import _check_inputs, _check_labels
from ..data.text import reason

WHERE = Path("X")  # what messages call examples that are from no file


def prepare(
    x: Any, preprocessing: Preprocessing, y: Any = None, ignored: Collection[str] = ()
) -> Examples:
    """Examples in the user's own units; labels are 0 where none are given.

    A data frame's columns are matched by name; those in `ignored` need not, but may be there.
    """
    rows = to_rows(x, preprocessing, ignored)
    labels = None if y is None else to_labels(y, len(rows))
    return prepare_rows(rows, labels, preprocessing, WHERE)


def prepare_rows(
    x: np.ndarray, labels: Labels | None, preprocessing: Preprocessing, where: Path
) -> Examples:
    """Examples as they were read, prepared; `where` they are from."""
    numbers = np.zeros(len(x), np.int64) if labels is None else preprocessing.number(labels, where)
    return preprocessing.to_examples(preprocessing.prepare(Arrays(x, numbers), where))


def to_rows(x: Any, preprocessing: Preprocessing, ignored: Collection[str] = ()) -> np.ndarray:
    if _is_frame(x) and preprocessing.features:
        return _by_name(x, preprocessing, ignored)
    try:
        array = _to_array(x)
    except (TypeError, ValueError) as error:
        raise DataError(f"{WHERE} must be an array of numbers: {reason(error)}") from None
    return _check_inputs(array, WHERE)


def to_labels(y: Any, count: int) -> Labels:
    values = np.asarray(_to_array(y) if not isinstance(y, (list, tuple)) else y)
    if values.dtype == object:
        values = values.astype(str)
    return _check_labels(values, count, Path("y"))


def _to_array(values: Any) -> np.ndarray:
    if isinstance(values, torch.Tensor):
        array = values.detach().cpu().numpy()
        # torch's images have their channels first
        return array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
    return np.asarray(values.to_numpy() if hasattr(values, "to_numpy") else values)


# --- data frames, which need not be pandas' -------------------------------------------------------


def _is_frame(x: Any) -> bool:
    return hasattr(x, "columns") and hasattr(x, "to_numpy")


def _by_name(frame: Any, preprocessing: Preprocessing, ignored: Collection[str]) -> np.ndarray:
    columns = preprocessing.table_columns
    texts = {column.name for column in columns if column.categories is not None}
    left_out = {*ignored, *preprocessing.ignored} - {column.name for column in columns}
    names = [name for name in frame.columns if str(name) not in left_out]
    numbers = [name for name in names if str(name) not in texts]
    table = CsvTable(
        path=WHERE,
        header=tuple(map(str, names)),
        numbers=tuple(map(str, numbers)),
        x=_numbers(frame, numbers),
        texts={str(name): _texts(frame[name]) for name in names if str(name) in texts},
        first_texts={},
        labels=None,
        cells={},
    )
    match_columns([column.name for column in columns], table, str(WHERE), "the run")
    say_unknown_categories(columns, table)
    return encode(columns, table)


def _numbers(frame: Any, names: Sequence[Any]) -> np.ndarray:
    columns = [_number_column(frame[name], str(name)) for name in names]
    rows = np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0), np.float32)
    return _check_inputs(rows, WHERE) if columns else rows


def _number_column(column: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(column.to_numpy(), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{WHERE}: column {name!r} must be numbers or missing: {reason(error)}"
        ) from None


def _texts(column: Any) -> Labels:
    return Labels.of(
        MISSING if value is None or str(value).lower() in MISSING_CATEGORIES else str(value)
        for value in column.to_numpy().tolist()
    )
