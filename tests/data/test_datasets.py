import gzip

import numpy as np
import pytest
from concordfl.data.datasets.idx import read_idx
from sklearn.datasets import load_digits

from concordfl import DataError, Key, SettingError
from concordfl.data.datasets import DATASETS

KEY = Key(0, "data")


def load(name, **options):
    return DATASETS[name](**options).load(KEY)


def test_digits_are_those_of_scikit_learn():
    data = load("digits")
    theirs = load_digits()
    assert len(data.train.y) + len(data.test.y) == 1797
    assert np.array_equal(np.bincount(np.concatenate([data.train.y, data.test.y])), np.bincount(theirs.target))
    both = np.concatenate([data.train.x, data.test.x]).reshape(-1, 64)
    ours = {row.tobytes() for row in both}
    assert ours == {np.rint(row * 255 / 16).astype(np.uint8).tobytes() for row in theirs.data}
    assert np.bincount(data.test.y).min() >= 30


def test_limits_draw_a_part_by_the_key():
    data = load("digits", limit=100, test_limit=10)
    assert (len(data.train.y), len(data.test.y)) == (100, 10)
    assert np.array_equal(data.train.x, load("digits", limit=100).train.x)
    assert not np.array_equal(data.train.x, DATASETS["digits"](limit=100).load(Key(1)).train.x)
    assert len(load("digits", limit=10**6).train.y) == 1433


def write_idx(path, array):
    header = b"\0\0\x08" + bytes([array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


def write_fashion_mnist(folder, train=12, test=6):
    rng = np.random.default_rng(0)
    for part, size in (("train", train), ("t10k", test)):
        write_idx(folder / f"{part}-images-idx3-ubyte.gz", rng.integers(256, size=(size, 28, 28)))
        write_idx(folder / f"{part}-labels-idx1-ubyte.gz", np.arange(size) % 10)


def test_fashion_mnist_from_files_in_the_official_format(tmp_path, monkeypatch):
    write_fashion_mnist(tmp_path)
    monkeypatch.setenv("CONCORDFL_DATA", str(tmp_path))
    data = load("fashion-mnist")
    assert data.train.x.shape == (12, 28, 28, 1)
    assert data.test.y.tolist() == [0, 1, 2, 3, 4, 5]


def test_missing_data_say_where_they_were_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CONCORDFL_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("concordfl.data.datasets.fashion_mnist.SYSTEM", ())
    with pytest.raises(DataError, match=f"'fashion-mnist' must be on this machine, got none of its files in {tmp_path}"):
        load("fashion-mnist")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\0\0\x08", "must be an idx file"),
        (b"hello", "must be an idx file"),
        (b"\0\0\x08\x01\0\0\0\x05ab", "must hold 5 bytes"),
    ],
)
def test_damaged_idx_files(tmp_path, content, message):
    (tmp_path / "plain").write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_idx(tmp_path / "plain")
    (tmp_path / "x.gz").write_bytes(b"not gzip")
    with pytest.raises(DataError, match="must be a readable idx file"):
        read_idx(tmp_path / "x.gz")


@pytest.mark.parametrize("distribution", ["gaussian", "laplace", "beta"])
def test_the_synthetic_mixture_follows_its_definition(distribution):
    options = {"clients": 4, "examples_per_client": 500, "dimensions": 8, "distribution": distribution, "alpha": 0.05}
    data = load("synthetic-mixture", **options)
    assert data.train.x.shape == (2000, 8)
    assert sorted(set(data.owners)) == ["client-0", "client-1", "client-2", "client-3"]
    assert data.num_classes == 2
    # With alpha this small nearly every client has one component, which a half-space through its mean separates.
    for owner in set(data.owners):
        x, y = data.train.x[data.owners == owner], data.train.y[data.owners == owner]
        weights = np.linalg.lstsq(np.c_[x, np.ones(len(x))], 2 * y - 1, rcond=None)[0]
        assert ((np.c_[x, np.ones(len(x))] @ weights > 0) == y).mean() > 0.85
    assert 0.3 < data.test.y.mean() < 0.7


def test_the_first_clients_may_stay_gaussian():
    data = load("synthetic-mixture", clients=2, examples_per_client=400, distribution="beta", gaussian_clients=1)
    gaussian, beta = data.train.x[:400], data.train.x[400:]
    assert gaussian.min() < -1
    assert 0 <= beta.min() <= beta.max() <= 1
    with pytest.raises(SettingError, match="gaussian_clients must be <= 2"):
        load("synthetic-mixture", clients=2, gaussian_clients=3)
