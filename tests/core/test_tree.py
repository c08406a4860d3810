import importlib
import json
import random
from collections import namedtuple
from typing import NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given

from concordfl.core import FormatError, tree
from concordfl.core.tree import Weighted, weighted


@tree.register
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


def test_trees_without_named_tuples_keep_the_bytes_they_always_had():
    value = {"w": torch.tensor([1.0, 2.0]), 3: [None, True, (1, 2.5, "né")]}
    structure = (
        r'["dict",[["w",["tensor","0"]],[3,["list",[["value",null],["value",true],'
        r'["tuple",[["value",1],["value",2.5],["value","n\u00e9"]]]]]]]]'
    )
    assert tree.pack(value) == safetensors.torch.save({"0": value["w"]}, {"tree": structure})
    assert tree.digest(value) == (
        "aac5650af4f7bc3aa8d78d1be9c4a7d9345cfee978b628623cb1e0f63a6fbf8e"
    )


# --- named tuples -------------------------------------------------------------------------------


def test_named_tuples_travel_under_their_short_name():
    packed = tree.pack(Pair(1, 2))
    assert b'[\\"named\\",\\"Pair\\",' in packed
    assert Pair.__module__.encode() not in packed
    assert tree.unpack(packed) == Pair(1, 2)


def test_fields_that_came_later_are_filled_by_their_defaults(monkeypatch):
    later = namedtuple("Pair", ("a", "b", "c"), defaults=("new",))
    without_default = namedtuple("Pair", ("a", "b", "c"))
    packed = tree.pack(Pair(1, 2))
    monkeypatch.setitem(tree._registered, "Pair", later)
    assert tree.unpack(packed) == later(1, 2, "new")
    monkeypatch.setitem(tree._registered, "Pair", without_default)
    with pytest.raises(FormatError, match="a tree's structure must be known"):
        tree.unpack(packed)


def test_a_named_tuple_that_is_not_registered_cannot_be_packed():
    class Stranger(NamedTuple):
        a: int

    with pytest.raises(TypeError, match=r"must be registered, got .*Stranger: write @tree.regis"):
        tree.pack({"x": Stranger(1)})
    lookalike = type("Pair", (Stranger,), {"__module__": "elsewhere"})
    with pytest.raises(TypeError, match="must be registered"):
        tree.pack(lookalike(1))


def pair_of(module):
    kind = namedtuple("Pair", ["a", "b"])
    kind.__module__ = module
    return kind


def test_two_named_tuples_of_one_name_are_refused_but_a_reloaded_one_is_not():
    reloaded, other = pair_of(Pair.__module__), pair_of("elsewhere")
    try:
        assert tree.register(reloaded) is reloaded
        assert type(tree.unpack(tree.pack(Pair(1, 2)))) is reloaded  # instances of the old one too
    finally:
        tree.register(Pair)
    with pytest.raises(TypeError, match=r"different names, got .*Pair and elsewhere.Pair: rename"):
        tree.register(other)
    with pytest.raises(TypeError, match="only a NamedTuple can be registered, got <class 'int'>"):
        tree.register(int)


def test_scripts_are_the_same_module_in_worker_processes():
    class OfAScript(NamedTuple):
        a: int

    OfAScript.__module__ = "__main__"
    tree.register(OfAScript)
    OfAScript.__module__ = "__mp_main__"
    assert tree.unpack(tree.pack(OfAScript(1))) == OfAScript(1)


# --- bytes from strangers -----------------------------------------------------------------------


def with_structure(structure, tensors=None):
    """Bytes of a valid safetensors file with any structure."""
    text = structure if isinstance(structure, str) else json.dumps(structure)
    return safetensors.torch.save(tensors or {}, {"tree": text})


def nested(depth):
    return '["list",[' * depth + '["value",1]' + "]]" * depth


ONE = {"0": torch.ones(1)}


@pytest.mark.parametrize(
    ("structure", "tensors"),
    [
        (["named", "pathlib:Path", []], None),
        (["named", "subprocess:Popen", [["value", "true"]]], None),
        (["named", "Pair", [["value", 1]]], None),
        (["named", "Pair", 7], None),
        (["named", ["Pair"], []], None),
        (["named", "Weighted"], None),
        (["tensor", "0"], None),
        (["tensor", 0], ONE),
        (["tensor", ["0"]], ONE),
        (["list", [["tensor", "0"], ["tensor", "0"]]], ONE),
        (["value", 1], ONE),  # a tensor that nobody asked for
        (["value", [1]], None),
        (["value", {"a": 1}], None),
        (["value"], None),
        (["dict", [["a", ["value", 1]], ["a", ["value", 2]]]], None),
        (["dict", [[1.5, ["value", 1]]]], None),
        (["dict", [[True, ["value", 1]]]], None),
        (["dict", [[None, ["value", 1]]]], None),
        (["dict", [[["a"], ["value", 1]]]], None),
        (["dict", [["a"]]], None),
        (["dict", {"a": ["value", 1]}], None),
        (["dict", 5], None),
        (["list", "ab"], None),
        (["set", []], None),
        ([], None),
        ({}, None),
        (None, None),
        ("list", None),
        ("not JSON", None),
        ('["value", ' + "9" * 5000 + "]", None),
        (nested(tree.MAX_DEPTH + 1), None),
        (nested(20_000), None),
        ("[" * 100_000, None),
    ],
)
def test_a_structure_that_pack_does_not_write_is_refused(structure, tensors):
    with pytest.raises(FormatError) as caught:
        tree.unpack(with_structure(structure, tensors))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_depth_has_one_limit_for_writing_and_reading():
    value = 1
    for _ in range(tree.MAX_DEPTH):
        value = {"a": value}
    assert tree.unpack(tree.pack(value)) == value
    with pytest.raises(TypeError, match="at most 100 levels"):
        tree.pack([value])


def with_header(header: bytes, rest: bytes = b"") -> bytes:
    return len(header).to_bytes(8, "little") + header + rest


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"1234567",
        b"\0" * 8,
        b"\xff" * 8,
        b"\xff" * 64,
        (10**9).to_bytes(8, "little") + b"{}",
        with_header(b"{}"),
        with_header(b"\xff\xfe"),
        with_header(b"[]"),
        with_header(b"[" * 100_000),
        with_header(b'{"__metadata__":7}'),
        with_header(b'{"__metadata__":{"tree":7}}'),
        with_header(b'{"__metadata__":{"tree":"[\\"value\\",1]"}}', b"trailing garbage"),
        with_header(
            b'{"__metadata__":{"tree":"[\\"tensor\\",\\"0\\"]"},'
            b'"0":{"dtype":"F32","shape":[9223372036854775807,4],"data_offsets":[0,4]}}',
            b"1234",
        ),
        with_header(
            b'{"__metadata__":{"tree":"[\\"tensor\\",\\"0\\"]"},'
            b'"0":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}}',  # torch has no such type
            b"123",
        ),
        b"PK\x03\x04 a zip archive, such as torch.save writes",
    ],
)
def test_bytes_that_are_no_tree_are_refused(data):
    with pytest.raises(FormatError) as caught:
        tree.unpack(data)
    assert "\n" not in str(caught.value)


def mutations(data: bytes, rng: random.Random, count: int):
    """Flips, truncations, insertions, removals, repetitions and edits of the header's text."""
    header_end = 8 + int.from_bytes(data[:8], "little")
    words = rb"named tensor dict value list Pair os:system null [ ] \" F32 I64 0 -1 { } 9999999999"
    words = words.split()
    for _ in range(count):
        made = bytearray(data)
        kind = rng.randrange(7)
        where = rng.randrange(len(data)) if kind % 2 else rng.randrange(header_end)
        if kind <= 1:
            made[where] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del made[where:]
        elif kind == 3:
            made[where:where] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            del made[where : where + rng.randrange(1, 9)]
        else:
            old, new = rng.sample(words, 2)
            made = bytearray(data.replace(old, new, rng.randrange(1, 4)))
            if kind == 6:  # the header's length is kept true, so that its text is what is read
                end = header_end + len(made) - len(data)
                made[:8] = max(0, end - 8).to_bytes(8, "little")
        yield bytes(made)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_bytes_are_refused_or_another_tree(seed, monkeypatch):
    rng = random.Random(seed)
    value = {
        "p": Pair(torch.arange(4.0), [1, "x", None]),
        7: (weighted({"w": torch.ones(2, 2)}, 3), True, 2.5),
        "empty": {"l": [], "t": (), "z": torch.zeros(0, 2, dtype=torch.int64)},
    }

    def refuse(name, *rest):
        raise AssertionError(f"bytes made us import {name}")

    monkeypatch.setattr(importlib, "import_module", refuse)
    refused = 0
    for data in mutations(tree.pack(value), rng, 1000):
        try:
            back = tree.unpack(data)
        except FormatError:
            refused += 1
        else:
            tree.pack(back)  # a tree like any other
    assert 500 < refused < 1000


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


def test_rows_may_have_weights_of_their_own():
    """A row is the weighted mean of those that count in it, and otherwise what it was."""
    values = [{"w": torch.randn(3, 2), "b": torch.randn(3)} for _ in range(4)]
    weights = [torch.tensor([1.0, 0, 0]), torch.tensor([2.5, 0, 1]), torch.zeros(3), torch.ones(3)]
    weights[3][1] = 0
    old = {"w": torch.full((3, 2), 7.0), "b": torch.full((3,), 8.0)}
    total = weighted(values[0], weights[0])
    for value, weight in zip(values[1:], weights[1:], strict=True):
        total = tree.add(total, weighted(value, weight))
    mean = tree.unpack(tree.pack(total)).mean(otherwise=old)
    for name in ("w", "b"):
        for row in (0, 2):
            expected = np.average(
                [value[name][row].numpy() for value in values],
                axis=0,
                weights=[float(weight[row]) for weight in weights],
            )
            assert mean[name][row].numpy() == pytest.approx(expected, rel=1e-5)
        assert torch.equal(mean[name][1], old[name][1])


def test_bytes_are_those_of_the_leaves():
    value = {
        "a": torch.zeros(3, 2),
        "b": [1, 2.0, True, None, "né", "\udcff"],
        "c": torch.zeros(5, dtype=torch.uint8),
    }
    assert tree.num_bytes(value) == 24 + 3 * 8 + 3 + 3 + 5


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


def test_flat_names_are_keys_field_names_and_numbers():
    nested = {"p": {"x": 1, 7: 2}, "q": [3, (4,)], "r": tree.Weighted({"y": 5}, 6.0)}
    names = ["p.x", "p.7", "q.0", "q.1.0", "r.total.y", "r.weight"]
    assert tree.flatten(nested) == dict(zip(names, (1, 2, 3, 4, 5, 6.0), strict=True))
    assert list(tree.flatten(nested)) == names
    assert tree.flatten(tree.Weighted([1], 2.0)) == {"total.0": 1, "weight": 2.0}
    assert tree.flatten(3) == {"": 3}


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
    from concordfl.engine.tree_sum import TreeSum

    values = [
        {"a": torch.randn(50, generator=torch.Generator().manual_seed(index)) * 10**index}
        for index in range(count)
    ]
    theirs = TreeSum(count)
    for index in reversed(range(count)):
        theirs.put(index, values[index])
    assert tree.equal(tree.total(values), theirs.value)


def test_tensors_of_other_shapes_are_not_added():
    """PyTorch would repeat one of them, without a word."""
    with pytest.raises(ValueError, match=r"one shape, got \(2, 3\) and \(2, 1\)"):
        tree.add({"w": torch.ones(2, 3)}, {"w": torch.ones(2, 1)})
