"""Examples as Python has them, prepared as a run prepared its own."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..core import DataError, Examples
from ..data import Arrays, Preprocessing
from ..data.columns import encode, match_columns, say_unknown_categories
from ..data.csv_table import MISSING, MISSING_CATEGORIES, CsvTable
from ..data.gather import is_frame, to_array, to_labels
from ..data.labels import Labels
from ..data.own import _check_inputs
from ..data.text import quote, reason

WHERE = "X"  # what messages call examples that are from no file


def prepare(
    x: Any, preprocessing: Preprocessing, y: Any = None, ignored: Collection[str] = ()
) -> Examples:
    """Examples in the user's own units; labels are 0 where none are given.

    A data frame's columns are matched by name; those in `ignored` need not, but may be there.
    """
    rows = (
        _by_name(x, preprocessing, ignored)
        if is_frame(x) and preprocessing.features
        else _check_inputs(to_array(x, WHERE), WHERE)
    )
    labels = None if y is None else to_labels(y, len(rows), "y")
    return prepare_rows(rows, labels, preprocessing, Path(WHERE))


def prepare_rows(
    x: np.ndarray, labels: Labels | None, preprocessing: Preprocessing, where: Path
) -> Examples:
    """Examples as they were read, prepared; `where` they are from."""
    numbers = (
        preprocessing.no_targets(len(x)) if labels is None else preprocessing.number(labels, where)
    )
    return preprocessing.to_examples(preprocessing.prepare(Arrays(x, numbers), where))


# --- data frames, which need not be pandas' -------------------------------------------------------


def _by_name(frame: Any, preprocessing: Preprocessing, ignored: Collection[str]) -> np.ndarray:
    columns = preprocessing.table_columns
    texts = {column.name for column in columns if column.categories is not None}
    left_out = {*ignored, *preprocessing.ignored} - {column.name for column in columns}
    names = [name for name in frame.columns if str(name) not in left_out]
    numbers = [name for name in names if str(name) not in texts]
    table = CsvTable(
        path=Path(WHERE),
        header=tuple(map(str, names)),
        numbers=tuple(map(str, numbers)),
        x=_numbers(frame, numbers),
        texts={str(name): _texts(frame[name]) for name in names if str(name) in texts},
        first_texts={},
        labels=None,
        cells={},
    )
    match_columns([column.name for column in columns], table, WHERE, "the run")
    say_unknown_categories(columns, table)
    return encode(columns, table)


def _numbers(frame: Any, names: Sequence[Any]) -> np.ndarray:
    if not names:
        return np.zeros((len(frame), 0), np.float32)
    columns = [_number_column(frame[name], str(name)) for name in names]
    return _check_inputs(np.stack(columns, axis=1), WHERE)


def _number_column(column: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{WHERE}: column {quote(name)} must be numbers or missing: {reason(error)}"
        ) from None


def _texts(column: Any) -> Labels:
    return Labels.of(
        MISSING if value is None or str(value).lower() in MISSING_CATEGORIES else str(value)
        for value in column.to_numpy(dtype=object, na_value=None).tolist()
    )
