"""How a run reads a newcomer's data like its own, and what of it is recorded."""

import json
from pathlib import Path

import numpy as np
import pytest

from concordfl import DataError
from concordfl.data import Arrays, Preprocessing, Standard
from concordfl.data.columns import Column
from concordfl.data.labels import Labels

PATH = Path("new.csv")
ROWS = Preprocessing(
    "float32",
    (2,),
    ("no", "yes"),
    ("age", "weight"),
    Standard(np.array([1.0, 2]), np.array([2.0, 4])),
)
MIXED = Preprocessing(
    "float32",
    (3,),
    ("no", "yes"),
    ("age", "sex=f", "sex=m"),
    columns=(Column("age"), Column("sex", ("f", "m"))),
    ignored=("id", ""),
)
IMAGES = Preprocessing(
    "uint8",
    (1, 4, 5),
    ("0", "1", "2"),
    standard=Standard(np.array([0.5]), np.array([0.25])),
    resize=(4, 5),
)


@pytest.mark.parametrize(
    "preprocessing", [ROWS, MIXED, IMAGES, Preprocessing("float32", (3,), ("0", "1"))]
)
def test_a_record_gives_the_same_back(preprocessing):
    record = json.loads(json.dumps(preprocessing.to_record()))
    again = Preprocessing.from_record(record)
    assert again.to_record() == record
    assert (again.dtype, again.input_shape) == (preprocessing.dtype, preprocessing.input_shape)
    assert again.classes == preprocessing.classes
    assert again.features == preprocessing.features
    assert again.table_columns == preprocessing.table_columns
    assert (again.ignored, again.resize) == (preprocessing.ignored, preprocessing.resize)


RECORD = ROWS.to_record()
COLUMNS = "preprocessing.columns must be tables with a name and perhaps categories"
TWO = "preprocessing.standardised must give a finite mean and a deviation > 0"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (None, "preprocessing must be a table, got 'None'"),
        ([], "preprocessing must be a table"),
        ({}, "preprocessing.type must be a type of numbers, got 'None'"),
        ({**RECORD, "type": "object"}, "preprocessing.type must be a type of numbers"),
        ({**RECORD, "type": "float33"}, "preprocessing.type must be a type of numbers"),
        ({**RECORD, "type": 3}, "preprocessing.type must be a type of numbers"),
        (
            {**RECORD, "input_shape": []},
            "preprocessing.input_shape must be a list of whole numbers",
        ),
        ({**RECORD, "input_shape": [2.0]}, "preprocessing.input_shape must be a list of whole"),
        ({**RECORD, "input_shape": [True]}, "preprocessing.input_shape must be a list of whole"),
        ({**RECORD, "classes": []}, "preprocessing.classes must be a list of different names"),
        ({**RECORD, "classes": ["a", "a"]}, "preprocessing.classes must be a list of different"),
        ({**RECORD, "classes": "yes"}, "preprocessing.classes must be a list of different names"),
        ({**RECORD, "features": ["age"]}, r"preprocessing.features must be \[2\] names, got 1"),
        ({**RECORD, "features": [1, 2]}, "preprocessing.features must be a list of different"),
        ({**RECORD, "columns": 3}, COLUMNS),
        ({**RECORD, "columns": [{"name": 3}]}, COLUMNS),
        ({**RECORD, "columns": [{"name": "age", "categories": None}]}, COLUMNS),
        ({**RECORD, "columns": [{"name": "age", "categories": ["a", "a"]}]}, COLUMNS),
        (
            {**RECORD, "columns": [{"name": "age"}]},
            "preprocessing.columns must give the features age, weight, got age",
        ),
        ({**RECORD, "ignored": "id"}, "preprocessing.ignored must be a list of different names"),
        ({**RECORD, "resize": [3]}, "preprocessing.resize must be two numbers"),
        ({**RECORD, "resize": [3, 0]}, "must be a list of whole numbers > 0"),
        ({**RECORD, "standardised": 3}, TWO),
        ({**RECORD, "standardised": {"mean": [1, 2]}}, TWO),
        ({**RECORD, "standardised": {"mean": [1, 2], "deviation": [1, 0]}}, TWO),
        ({**RECORD, "standardised": {"mean": [1, float("nan")], "deviation": [1, 1]}}, TWO),
        ({**RECORD, "standardised": {"mean": [1, [2]], "deviation": [1, 1]}}, TWO),
        ({**RECORD, "standardised": {"mean": [1, "x"], "deviation": [1, 1]}}, TWO),
        (
            {**RECORD, "standardised": {"mean": [1], "deviation": [1]}},
            r"preprocessing.standardised must be of shape \[2\], got \[1\]",
        ),
    ],
)
def test_a_wrong_record_is_one_line(record, message):
    with pytest.raises(DataError, match=message) as error:
        Preprocessing.from_record(record)
    assert "\n" not in str(error.value)


def test_rows_are_standardised_as_in_the_run():
    x = np.array([[3.0, np.nan]], dtype=np.float32)
    assert ROWS.prepare(Arrays(x, np.zeros(1, int)), PATH).x.tolist() == [[1.0, 0.0]]
    assert ROWS.scale is None
    plain = Preprocessing("float32", (2,), ("no", "yes"))
    with pytest.raises(DataError, match="new.csv: features must be finite, got NaN or infinity"):
        plain.prepare(Arrays(x, np.zeros(1, int)), PATH)


def test_images_are_scaled_where_they_are_used():
    grey = np.repeat(np.full((2, 4, 5, 1), 255, dtype=np.uint8), 3, axis=3)
    arrays = IMAGES.prepare(Arrays(grey, np.array([0, 2])), PATH)
    assert arrays.x.shape == (2, 4, 5, 1)  # the run's images are grey, and so are these
    examples = IMAGES.to_examples(arrays)
    assert examples.inputs().unique().tolist() == [2.0]
    assert examples.y.tolist() == [0, 2]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros((2, 3), np.float32), r"new.csv: examples must have the shape \[2\], got \[3\]"),
        (np.zeros((2, 2), np.uint8), "new.csv: x must be of type float32 as in the run, got uint8"),
    ],
)
def test_other_examples_are_refused(x, message):
    with pytest.raises(DataError, match=message):
        ROWS.prepare(Arrays(x, np.zeros(2, int)), PATH)


def test_labels_are_numbered_by_the_names_of_classes():
    assert ROWS.number(Labels.of(["yes", "no", "yes"]), PATH).tolist() == [1, 0, 1]
    assert IMAGES.number(Labels.of_array(np.array([2.0, 0.0])), PATH).tolist() == [2, 0]
    assert ROWS.knows(Labels.of(["no"]))
    assert not ROWS.knows(Labels.of(["maybe"]))
    with pytest.raises(DataError, match="labels must be among no, yes, got 7, maybe"):
        ROWS.number(Labels.of(["maybe", "no", 7]), PATH)
    many = Preprocessing("float32", (2,), tuple(str(number) for number in range(1000)))
    with pytest.raises(DataError, match="among 0, .*, 19 and 980 more, got x"):
        many.number(Labels.of(["x"]), PATH)
