"""Examples as Python has them, prepared as a run prepared its own."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from ..core import Examples
from ..data import Arrays, Preprocessing
from ..data.columns import encode, match_columns, say_unknown_categories
from ..data.frames import is_frame, to_table
from ..data.gather import to_array, to_labels
from ..data.labels import Labels
from ..data.own_tables import require_numbers
from ..data.samples import check_inputs

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
        else check_inputs(to_array(x, WHERE), WHERE)
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


def _by_name(frame: Any, preprocessing: Preprocessing, ignored: Collection[str]) -> np.ndarray:
    """The features of a data frame."""
    columns = preprocessing.table_columns
    names = [column.name for column in columns]
    texts = [column.name for column in columns if column.categories is not None]
    left_out = {*ignored, *preprocessing.ignored} - {*names}
    kept = [name for name in frame.columns if str(name) not in left_out]
    table = to_table(frame[kept], WHERE, texts)
    match_columns(names, table.features, WHERE, "the run")
    require_numbers(table)
    say_unknown_categories(columns, table)
    return encode(columns, table)
