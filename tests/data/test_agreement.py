"""Descriptions of files are enough: they lead to what the loader makes of the files themselves."""

import numpy as np
import pytest

from concordfl import DataError
from concordfl.assemble import make_federation
from concordfl.config import Config
from concordfl.core import FormatError
from concordfl.data import agreement
from concordfl.data.own import Folder
from concordfl.data.own_client import encode_part, find_file, look_at, read_part, values_in


def agreed(folder, kind="auto", **options):
    """What descriptions of the files in `folder` lead to, before standardisation; and what every
    client has told.
    """
    source = Folder(folder=str(folder), **options)
    paths = {path.stem: path for path in folder.iterdir()}
    parts = {name: read_part(source, path, name) for name, path in paths.items()}
    looks = {name: sent(agreement.LOOK, look_at(source, parts[name], kind)) for name in parts}
    reading = sent(agreement.READING, agreement.agree_on_reading(looks, source, kind))
    told = {}
    for name, path in paths.items():
        values = values_in(
            read_part(source, path, name, reading.texts),
            reading.examples,
            classes=reading.kind == "classification",
            with_texts=reading.has_text_targets or kind != "auto",
        )
        told[name] = sent(agreement.VALUES, values)
    return agreement.agree_on_values(looks, told, reading, source, kind), told


def sent(adapter, value):
    """As it arrives."""
    again = agreement.from_record(adapter, agreement.to_record(value))
    assert again == value
    return again


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, columns in files.items():
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, row)) for row in rows)]
        (folder / f"{name}.csv").write_text("\n".join(lines))
    return folder


def loaded(folder, **sections):
    data = {"folder": str(folder), "standardise": False, **sections.pop("data", {})}
    return make_federation(Config.from_table({"data": data, **sections})).preprocessing


def whole(count, first=0):
    return [first + row % count for row in range(30 * count)]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (whole(30), whole(25)),  # many classes that count from 0
        (whole(4), whole(30)),
        (whole(24, 7), ["many", *whole(3)]),  # many whole numbers beside a word
        ([0.5, 1.5] * 9, ["high", "low"] * 9),
        ([0.5, 1.5] * 9, [1, 2] * 9),  # values
        (["b"] * 9, ["a"] * 9),
    ],
)
def test_targets_are_what_the_loader_says(tmp_path, left, right):
    files = {"p": {"x": range(len(left)), "y": left}, "q": {"x": range(len(right)), "y": right}}
    folder = write(tmp_path / "clients", **files)
    read, _ = agreed(folder)
    expected = loaded(folder)
    assert (read.kind, read.classes, read.targets) == (
        expected.kind, expected.classes, expected.targets
    )  # fmt: skip
    without = {**expected.to_record()}
    without.pop("targets_standardised", None)
    assert read.to_record() == without


@pytest.mark.parametrize(
    ("left", "right", "rule"),
    [
        (whole(30, 5), whole(4), "got 34 different ones"),  # which do not count from 0
        (whole(30, 1000), whole(4), "may be classes or values, got 3[04] different ones"),
        ([*np.arange(25) + 0.25], ["word"] * 25, "numbers .*classes.* got .*25 different"),
    ],
)
def test_targets_that_the_loader_refuses_are_refused(tmp_path, left, right, rule):
    files = {"p": {"x": range(len(left)), "y": left}, "q": {"x": range(len(right)), "y": right}}
    folder = write(tmp_path / "clients", **files)
    for decide in (loaded, agreed):
        with pytest.raises(DataError, match=rule):
            decide(folder)


def test_what_cannot_be_agreed_on_is_not_told(tmp_path):
    rng = np.random.default_rng(0)
    folder = write(
        tmp_path / "clients",
        p={"x": [f"{value:.3f}" for value in rng.normal(size=40)], "y": [1, 2] * 20},
        q={"x": ["none here", "1"], "y": [1, 2]},
    )
    rule = "client 'q', line 2: column 'x' must be a number or missing, got 'none here' beside 4"
    with pytest.raises(DataError, match=rule):
        agreed(folder)
    source = Folder(folder=str(folder))
    values = values_in(
        read_part(source, folder / "p.csv", "p", ["x"]), 42, classes=True, with_texts=False
    )
    assert values.texts["x"].names == ()
    many = write(tmp_path / "many", p={"x": range(300), "y": range(1000, 1300)})
    values = values_in(read_part(source, many / "p.csv", "p"), 300, classes=True, with_texts=False)
    assert (values.classes, values.num_withheld) == ((), 300)


def test_times_are_numbers_or_dates_at_all_clients(tmp_path):
    rows = {"x": [1, 2], "y": [0, 1]}
    write(tmp_path / "clients", p={**rows, "t": [20260101, 20260102]})
    write(tmp_path / "clients", q={**rows, "t": ["2026-01-01", "2026-01-02"]})
    agreed(tmp_path / "clients", time="t")  # a number that is a date too
    write(tmp_path / "clients", r={**rows, "t": [1.5, 2.5]})
    with pytest.raises(DataError, match="client 'r': column 't' must be .* got numbers"):
        agreed(tmp_path / "clients", time="t")
    with pytest.raises(DataError, match="column 't' must be numbers alone or dates"):
        loaded(tmp_path / "clients", data={"time": "t"})


def test_what_is_agreed_on_encodes_the_rows_of_the_loader(tmp_path):
    folder = write(
        tmp_path / "clients",
        p={"a": [1, "", 3], "b": ["u", "v", "?"], "y": ["no", "yes", "no"]},
        q={"y": ["yes", "so-so"], "b": ["1", "w"], "a": [4, 5]},
    )
    read, _ = agreed(folder)
    source = Folder(folder=str(folder))
    rows = [encode_part(source, folder / f"{name}.csv", name, read).train for name in ("p", "q")]
    expected = source.read(None).train
    assert np.array_equal(np.concatenate([part.x for part in rows]), expected.x, equal_nan=True)
    assert np.array_equal(np.concatenate([part.y for part in rows]), expected.y)


def test_a_folder_holds_one_client(tmp_path):
    with pytest.raises(DataError, match="got no folder"):
        find_file(tmp_path / "nowhere")
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match="got nothing of these"):
        find_file(tmp_path)
    (tmp_path / "cats").mkdir()
    assert find_file(tmp_path) == tmp_path
    (tmp_path / "a.CSV").write_text("")
    with pytest.raises(DataError, match=r"images, got a\.CSV, cats"):
        find_file(tmp_path)
    (tmp_path / "cats").rmdir()
    assert find_file(tmp_path) == tmp_path / "a.CSV"


@pytest.mark.parametrize("record", [None, 3, {}, {"examples": "many"}, {"texts": {"a": {}}}])
def test_any_other_description_is_refused(record):
    adapter = agreement.VALUES if isinstance(record, dict) and "texts" in record else agreement.LOOK
    with pytest.raises(FormatError, match="a description must have the types of its fields"):
        agreement.from_record(adapter, record)
