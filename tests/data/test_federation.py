import numpy as np
import pytest
import torch

import toys
from concordfl import DataError
from concordfl.data import Arrays, Federation


def arrays(size, shape=(2,), high=2, dtype=np.float32):
    return Arrays(np.ones((size, *shape), dtype=dtype), np.arange(size) % high)


def splits(*sizes, **more):
    return tuple(arrays(size, **more) for size in sizes)


def test_every_client_gets_back_what_it_brought():
    left, right = splits(3, 1, 2), splits(4, 0, 1)
    made = Federation.build({"b": left, "a": right}, {"new": splits(2, 0, 2)}, 2)
    assert made.participants == ("a", "b")
    assert made.held_out == ("new",)
    assert [len(part) for part in made.splits("b")] == [3, 1, 2]
    assert made.splits("a").train.y.tolist() == right[0].y.tolist()
    assert made.size("a") == 4
    assert made.input_shape == (2,)
    assert Federation.build({"a": splits(1, 1, 1, shape=(4, 5, 3))}, {}, 2).input_shape == (3, 4, 5)


def test_the_pooled_client_holds_all_training_examples():
    made = toys.federation()
    pooled = made.with_pooled_client()
    expected = torch.cat([made.splits(id).train.x for id in made.participants])
    assert torch.equal(pooled.splits("pooled").train.x, expected)
    assert len(pooled.splits("pooled").test) == 0
    assert pooled.participants == made.participants


@pytest.mark.parametrize(
    ("clients", "held_out", "message"),
    [
        ({}, {}, "at least one client, got none"),
        (
            {"a": splits(2, 0, 0)},
            {"a": splits(1, 0, 1)},
            r"either a participant or held out, got both for \['a'\]",
        ),
        (
            {"a": splits(0, 1, 1)},
            {},
            "client 'a': must have at least one training example, got none",
        ),
        (
            {"a": (arrays(2), arrays(1), arrays(1, shape=(3,)))},
            {},
            "'a', test split: examples must have the shape",
        ),
        (
            {"a": (Arrays(np.ones((2, 1)), np.zeros(3, int)), *splits(0, 0, shape=(1,)))},
            {},
            "equally long, got 2 and 3",
        ),
        ({"a": splits(5, 0, 0, high=5)}, {}, r"train split: labels must be in 0..1, got 2"),
        (
            {"a": (Arrays(np.full((2, 2), np.nan), np.zeros(2, int)), *splits(0, 0))},
            {},
            "features must be finite",
        ),
    ],
)
def test_what_does_not_fit_is_refused(clients, held_out, message):
    with pytest.raises(DataError, match=message):
        Federation.build(clients, held_out, 2)
