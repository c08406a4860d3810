"""Examples as Python has them, prepared as a run prepared its own."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import DataError, Examples
from ..data import Arrays, Preprocessing
from ..data.columns import encode, match_columns, say_unknown_categories
from ..data.frames import is_frame, to_table
from ..data.labels import Labels
from ..data.own import _check_inputs, _check_labels
from ..data.own_tables import require_numbers
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
    if is_frame(x) and preprocessing.features:
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


def _by_name(frame: Any, preprocessing: Preprocessing, ignored: Collection[str]) -> np.ndarray:
    """The features of a data frame."""
    columns = preprocessing.table_columns
    names = [column.name for column in columns]
    texts = [column.name for column in columns if column.categories is not None]
    left_out = {*ignored, *preprocessing.ignored} - {*names}
    kept = [name for name in frame.columns if str(name) not in left_out]
    table = to_table(frame[kept], str(WHERE), texts)
    match_columns(names, table, str(WHERE), "the run")
    require_numbers(table)
    say_unknown_categories(columns, table)
    return encode(columns, table)
