"""Examples given in Python: checked like those in files, and kept without loss."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

import concordfl as cf
from concordfl.data.gather import gather
from concordfl.data.memory import Memory, read_given

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3))
Y = np.array([0, 1, 0, 1, 2, 2])


def dataset(clients, **columns):
    return Memory(given=gather(clients, **columns)).load(cf.Key(0))


def test_clients_come_in_the_order_of_their_names_and_rows_in_their_own():
    data = dataset({"b": (X, Y), "a": (X + 1, Y)})
    assert data.owners.tolist() == ["a"] * 6 + ["b"] * 6
    np.testing.assert_array_equal(data.train.x, np.concatenate([X + 1, X]).astype(np.float32))
    assert data.classes == ("0", "1", "2")


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (list("yesnno"), ("e", "n", "o", "s", "y")),
        (np.array(list("yesnno"), dtype=object), ("e", "n", "o", "s", "y")),
        ([True, False] * 3, ("0", "1")),
        ([10, 9, 10, 9, 1, 2], ("1", "2", "9", "10")),
        ([1, "1", 1.0, "b", "b", "b"], ("1", "b")),
        (torch.tensor(Y), ("0", "1", "2")),
        (pd.Series(Y, dtype="category"), ("0", "1", "2")),
        ([2**60, 2**60 + 1] * 3, (str(2**60), str(2**60 + 1))),
    ],
    ids=str,
)
def test_labels_may_be_of_any_kind(labels, classes):
    data = dataset({"a": (X, labels)})
    assert data.classes == classes
    assert len(data.train.y) == 6


def test_torch_and_numpy_images_are_the_same():
    """Torch has channels first, numpy has them last."""
    images = RNG.integers(256, size=(6, 4, 5, 3), dtype=np.uint8)
    first = torch.from_numpy(images).permute(0, 3, 1, 2)

    class Items(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            return first[index], torch.tensor(Y[index])

    class Stream(IterableDataset):
        def __iter__(self):
            return zip(images, Y, strict=True)

    wanted = dataset({"a": (images, Y)})
    for given in ((first, Y), TensorDataset(first, torch.tensor(Y)), Items(), Stream()):
        found = dataset({"a": given})
        np.testing.assert_array_equal(found.train.x, wanted.train.x)
        np.testing.assert_array_equal(found.train.y, wanted.train.y)
        assert found.train.x.dtype == np.uint8


def test_a_data_frame_is_taken_apart_by_its_client_column():
    frame = pd.DataFrame(X, columns=["u", "v", "w"]).assign(site=[2, 1, 2, 1, 10, 10], y=Y)
    data = dataset(frame, client="site", label="y")
    assert data.features == ("u", "v", "w")
    assert data.owners.tolist() == ["1", "1", "10", "10", "2", "2"]
    np.testing.assert_array_equal(data.train.x, X[[1, 3, 4, 5, 0, 2]].astype(np.float32))


def test_missing_numbers_of_a_data_frame_are_missing():
    frame = pd.DataFrame({"u": pd.array([1, None, 3], dtype="Int64"), "y": [0, 1, 0]})
    data = dataset(frame.assign(client="a"))
    np.testing.assert_array_equal(data.train.x[:, 0], np.float32([1, np.nan, 3]))


def test_a_frame_of_features_names_them():
    frame = pd.DataFrame(X, columns=["u", "v", "w"])
    assert dataset({"a": (frame, pd.Series(Y))}).features == ("u", "v", "w")


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ([(X, Y)], "clients must be a dict of examples by client, or a data frame, got list"),
        ({}, "clients must be at least one, got none"),
        ({"a": X}, r"client 'a': examples must be a pair \(x, y\) or a torch Dataset, got ndarray"),
        ({"a": (X, Y[:5])}, "client 'a': x and y must be equally long, got 6 and 5"),
        ({"a": (X, list("abcde"))}, "client 'a': x and y must be equally long, got 6 and 5"),
        ({"a": (X[:0], Y[:0])}, "client 'a' must have at least one example, got none"),
        ({"a": (X[:, 0], Y)}, r"x must be uint8 images or rows of numbers, got shape \(6,\)"),
        ({"a": ([[1], [1, 2]], [0, 1])}, "client 'a': x must be an array of numbers"),
        ({"a": (np.where(X > 9, X, np.inf), Y)}, "features must be finite or NaN for missing"),
        ({"a": (X.astype(str), Y)}, "x must be uint8 images or rows of numbers"),
        ({"a": (X, [None] * 6)}, "client 'a': labels must be numbers or text, got 'None'"),
        ({"a": (X, [np.nan] * 6)}, "client 'a': labels must be finite, got NaN or infinity"),
        ({"a": (X, ["", *"abcde"])}, "client 'a': every label must not be blank"),
        ({"a": (X, [b"\xff"] * 6)}, "client 'a' must have labels that are UTF-8 text"),
        ({"a": (X, Y), "b": (X[:, :2], Y)}, r"client 'b': examples must have the shape \(3,\)"),
        ({" ": (X, Y)}, "a client's name must not be blank"),
        ({1.5: (X, Y)}, "a client's name must be text or a whole number, got '1.5'"),
        ({1: (X, Y), "1": (X, Y)}, "clients must have different names, got 1, 1"),
        ({"a": (X, np.zeros(6))}, "labels must take at least two values, got 0"),
        ({"a": TensorDataset(torch.zeros(3, 2))}, r"examples must be pairs \(x, y\), got tuple"),
        (pd.DataFrame({"u": [1.0], "y": [0]}), "must have a column called 'client', got u, y"),
        (pd.DataFrame({"client": ["a"], "y": [0]}), "must have a column of features"),
        (
            pd.DataFrame({"client": ["a", None], "u": [1.0, 2.0], "y": [0, 1]}),
            "row 1: every row must name its client in column 'client', got nan",
        ),
        (
            pd.DataFrame({"client": ["a"], "u": pd.to_datetime(["2026-01-01"]), "y": [0]}),
            "the data frame: column 'u' must be numbers or text, got 'datetime64",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(clients, message):
    with pytest.raises(cf.DataError, match=message) as error:
        dataset(clients)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "x", [X, RNG.integers(256, size=(6, 4, 4), dtype=np.uint8)], ids=["f", "i"]
)
def test_what_is_kept_comes_back_the_same(tmp_path, x):
    given = gather({"b\0": (x, list("yesnno")), "a": (x, list("nnnnno"))})
    file = tmp_path / "examples.npz"
    file.write_bytes(given.to_bytes())
    assert read_given(file).digest() == given.digest()
    kept, wanted = Memory(memory=str(file)), Memory(given=given)
    assert kept.fingerprint() == wanted.fingerprint()
    for mine, theirs in zip(kept.load(cf.Key(0)), wanted.load(cf.Key(0)), strict=True):
        np.testing.assert_equal(mine, theirs)


def test_the_fingerprint_tells_data_apart():
    base = gather({"a": (X, Y)}).digest()
    changed = X.copy()
    changed[0, 0] += 1
    for other in (
        {"a": (changed, Y)},
        {"b": (X, Y)},
        {"a": (X, Y[::-1])},
        {"a": (X, list("ababcc"))},
    ):
        assert gather(other).digest() != base


def test_a_file_that_was_changed_anywhere_is_refused_or_the_same(tmp_path):
    file, given = tmp_path / "examples.npz", gather({"a": (X, Y), "b": (X + 1, Y)})
    content, rng = given.to_bytes(), np.random.default_rng(1)
    refused = []
    for _ in range(300):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        file.write_bytes(damaged)
        try:
            assert read_given(file).digest() == given.digest()
        except cf.ConcordError as error:
            refused.append(str(error))
    assert len(refused) > 150
    assert not any("\n" in line for line in refused)


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"clients": [["a", 5], ["b", 6]]},
        {"clients": [["a", 12], ["b", 0]]},
        {"clients": [["a", -1], ["b", 13]]},
        {"clients": [["a", 6], ["a", 6]]},
        {"clients": [["a", 6], [3, 6]]},
        {"classes": ["0"]},
        {"classes": 3},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_refused_in_one_line(tmp_path, change):
    file = tmp_path / "examples.npz"
    file.write_bytes(gather({"a": (X, Y), "b": (X + 1, Y)}).to_bytes())
    with np.load(file) as found:
        arrays = dict(found)
    header = json.loads(arrays["header"].tobytes()) | change
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(file, **arrays)
    with pytest.raises(cf.DataError) as error:
        read_given(file)
    assert "\n" not in str(error.value)


def test_damaged_files_are_refused_in_one_line(tmp_path):
    file = tmp_path / "examples.npz"
    good = gather({"a": (X, Y)}).to_bytes()
    np.savez(tmp_path / "other.npz", header=np.zeros(3, np.uint8), x=X, y=Y)
    for content in (b"", good[:100], good[:-40], (tmp_path / "other.npz").read_bytes()):
        file.write_bytes(content)
        with pytest.raises(cf.DataError) as error:
            read_given(file)
        assert "\n" not in str(error.value)
    with pytest.raises(cf.SettingError, match="memory must name a file where no examples are"):
        Memory().load(cf.Key(0))
