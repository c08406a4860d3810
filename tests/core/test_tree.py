from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from concordfl.core import tree
from concordfl.core.tree import Weighted, weighted


class Pair(NamedTuple):
    a: object
    b: object


numbers = st.floats(-1e6, 1e6, width=32)
tensors = st.lists(numbers, max_size=4).map(torch.tensor)
leaves = st.one_of(
    tensors, st.integers(-5, 5), numbers, st.text(max_size=3), st.none(), st.booleans()
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(-3, 3)), inner, max_size=3),
        st.tuples(inner, inner).map(lambda pair: Pair(*pair)),
    ),
    max_leaves=8,
)


@given(trees)
def test_unpack_gives_back_what_was_packed(value):
    back = tree.unpack(tree.pack(value))
    assert tree.pack(back) == tree.pack(value)
    assert type(back) is type(value)
    assert str(back) == str(value)  # the order of keys and the types of containers too


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
    ],
)
def test_every_dtype_survives(dtype):
    value = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    back = tree.unpack(tree.pack({"x": value, "alias": value, "empty": value[:0]}))
    assert back["x"].dtype == dtype
    assert torch.equal(back["x"], value)
    assert torch.equal(back["alias"], value)
    assert back["empty"].shape == (0, 2)


def test_channels_last_tensors_are_packed_by_value():
    plain = torch.arange(24.0).reshape(1, 2, 3, 4)
    assert tree.pack(plain) == tree.pack(plain.contiguous(memory_format=torch.channels_last))


@pytest.mark.parametrize("bad", [{1.5: 0}, {"a": object()}, {"a": {1, 2}}])
def test_what_is_not_a_tree_is_refused(bad):
    with pytest.raises(TypeError, match="a tree's"):
        tree.pack(bad)


def test_only_named_tuples_are_rebuilt_by_name():
    evil = (
        tree.pack(Pair(1, 2))
        .replace(b"Pair", b"Path")
        .replace(Pair.__module__.encode(), b"pathlib".ljust(len(Pair.__module__)))
    )
    with pytest.raises((TypeError, ImportError, AttributeError, ValueError)):
        tree.unpack(evil)


def test_adding_dicts_is_the_union_of_keys():
    total = tree.add({"a": torch.ones(2), 0: 1}, {"a": torch.ones(2), 1: [torch.zeros(1), None]})
    assert list(total) == ["a", 0, 1]
    assert total["a"].tolist() == [2, 2]
    assert tree.add((1, None), (2, None)) == (3, None)


def test_weighted_mean():
    total = tree.add(
        weighted({"w": torch.tensor([1.0])}, 1), weighted({"w": torch.tensor([4.0])}, 3)
    )
    assert total.weight == 4
    assert total.mean()["w"].item() == pytest.approx((1 + 3 * 4) / 4)
    assert isinstance(tree.unpack(tree.pack(total)), Weighted)
    assert weighted({"w": torch.ones(1)}, 0).mean(otherwise="kept") == "kept"


def test_bytes_are_those_of_the_leaves():
    value = {
        "a": torch.zeros(3, 2),
        "b": [1, 2.0, True, None, "né"],
        "c": torch.zeros(5, dtype=torch.uint8),
    }
    assert tree.num_bytes(value) == 24 + 3 * 8 + 3 + 5


@pytest.mark.parametrize(
    ("value", "finite"),
    [
        ({"a": torch.ones(2)}, True),
        ({"a": torch.tensor([1.0, float("nan")])}, False),
        ([torch.tensor([float("inf")])], False),
        ([torch.tensor([3e38, 3e38])], True),  # the sum overflows, the values do not
        ((float("nan"),), False),
        ({"a": 3, "b": "x", "c": None, "d": torch.tensor([1])}, True),
    ],
)
def test_is_finite(value, finite):
    assert tree.is_finite(value) is finite


def test_small_functions():
    a, b = (
        {"x": torch.tensor([1.0, 2.0]), "y": torch.tensor([0.0])},
        {"x": torch.tensor([0.0, 0.0]), "y": torch.tensor([2.0])},
    )
    assert tree.sq_dist(a, b).item() == 1 + 4 + 4
    assert tree.subtract(a, b)["x"].tolist() == [1, 2]
    assert tree.mean([a, b])["y"].item() == 1
    assert tree.stack([a, b])["x"].shape == (2, 2)
    assert list(tree.subset(a, ["y", "z"])) == ["y"]
    assert set(tree.flatten({"p": a, "q": [1]})) == {"p.x", "p.y", "q.0"}
    assert tree.equal(a, dict(a))
    assert not tree.equal(a, b)
    assert tree.digest(a) != tree.digest(b)
    with pytest.raises(ValueError, match="shorter|longer"):
        tree.map(lambda x, y: x, [1, 2], [1])


def test_distances_go_by_key_not_by_order():
    a = {"x": torch.zeros(2), "y": torch.ones(2)}
    assert tree.sq_dist(a, {"y": torch.ones(2), "x": torch.zeros(2)}).item() == 0


def test_the_normal_form_is_what_unpacking_gives():
    value = {
        "t": torch.arange(6.0).reshape(2, 3).T,
        "g": torch.ones(2, requires_grad=True) * 2,
        1: (None, [1.5, "x"]),
    }
    normal = tree.normal(value)
    assert normal["t"].is_contiguous()
    assert not normal["g"].requires_grad
    assert tree.equal(normal, tree.unpack(tree.pack(value)))
    with pytest.raises(TypeError, match="leaves must be"):
        tree.normal({"a": np.float64(1.0)})


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_a_total_is_added_as_executors_add(count):
    from concordfl.engine.executors.job import TreeSum

    values = [
        {"a": torch.randn(50, generator=torch.Generator().manual_seed(place)) * 10**place}
        for place in range(count)
    ]
    theirs = TreeSum(count)
    for place in reversed(range(count)):
        theirs.put(place, values[place])
    assert tree.equal(tree.total(values), theirs.total)
