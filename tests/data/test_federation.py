import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import toys
from concordfl import DataError
from concordfl.algorithms import ALGORITHMS
from concordfl.core import Scale
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


def test_wrong_values_are_found_in_any_split_of_any_client():
    good = splits(2, 1, 1)
    bad = (arrays(2), arrays(1), Arrays(np.array([[1, 2], [np.inf, 0]]), np.zeros(2, int)))
    with pytest.raises(DataError, match="client 'b', test split: features must be finite"):
        Federation.build({"a": good, "b": bad}, {}, 2)
    with pytest.raises(DataError, match="client 'new', validation split: labels must be in 0..1"):
        Federation.build({"a": good}, {"new": (arrays(2), arrays(3, high=3), arrays(1))}, 2)
    with pytest.raises(DataError, match="client 'a', train split: labels must be in 0..1, got 2"):
        Federation.build({"a": good}, {}, 2, later={"a": [(3, splits(3, 1, 1, high=3))]})


# --- the pooled client ----------------------------------------------------------------------------


def test_the_pooled_client_takes_no_other_clients_name():
    made = Federation.build({"pooled": splits(2, 1, 1), "a": splits(3, 1, 1)}, {}, 2)
    assert made.pooled_id is None
    pooled = made.with_pooled_client()
    assert pooled.pooled_id == "pooled-2"
    assert len(pooled.splits("pooled-2").train) == 5
    assert len(pooled.splits("pooled").train) == 2
    both = {"pooled": splits(1, 0, 0)}, {"pooled-2": splits(1, 0, 1)}
    assert Federation.build(*both, 2).with_pooled_client().pooled_id == "pooled-3"
    assert toys.federation().with_pooled_client().pooled_id == "pooled"


def test_a_client_called_pooled_is_evaluated():
    parts = {"pooled": splits(6, 2, 2), "a": splits(6, 2, 2)}
    made = toys.experiment(ALGORITHMS["centralized"](), Federation.build(parts, {}, 2))
    toys.result(made)
    assert set(toys.rows(made)) == {"a", "pooled"}


# --- what is said of a federation -----------------------------------------------------------------


def test_clients_without_test_examples_are_named():
    clients = {"a": splits(2, 1, 1), "b": splits(2, 1, 0), "c": splits(1, 0, 0)}
    made = Federation.build(clients, {"new": splits(1, 0, 0)}, 2)
    assert made.without_test() == ("b", "c")
    assert toys.federation().without_test() == ()


def test_a_federation_describes_its_clients():
    made = Federation.build(
        {"b": splits(3, 1, 2), "a": splits(4, 0, 1)},
        {"new": (arrays(2), arrays(0), arrays(5))},
        3,
        {"a": {"concept": "reverse"}},
        later={"a": [(3, splits(9, 1, 1))]},
    ).with_pooled_client()
    described = made.describe()
    assert json.loads(json.dumps(described)) == described
    assert described["num_classes"] == 3
    assert described["input_shape"] == [2]
    assert described["clients"] == [
        {
            "id": "a",
            "held_out": False,
            "train": 4,
            "validation": 0,
            "test": 1,
            "labels": [2, 2, 0],
            "groups": {"concept": "reverse"},
        },
        {
            "id": "b",
            "held_out": False,
            "train": 3,
            "validation": 1,
            "test": 2,
            "labels": [2, 1, 0],
            "groups": {},
        },
        {
            "id": "new",
            "held_out": True,
            "train": 2,
            "validation": 0,
            "test": 5,
            "labels": [1, 1, 0],
            "groups": {},
        },
    ]


def test_the_description_counts_what_the_clients_hold():
    made = toys.federation()
    for client in made.describe()["clients"]:
        parts = made.splits(client["id"])
        assert [client[name] for name in ("train", "validation", "test")] == list(map(len, parts))
        assert client["labels"] == parts.train.y.bincount(minlength=3).tolist()


CHANGES = {
    "x": lambda made: replace(made, x=made.x + torch.eye(len(made.x), 5)),
    "type": lambda made: replace(made, x=made.x.double()),
    "shape": lambda made: replace(made, x=made.x[..., None]),
    "y": lambda made: replace(made, y=made.y.flip(0)),
    "bounds": lambda made: replace(made, bounds={**made.bounds, "client-0": (0, 1, 2, 3)}),
    "participants": lambda made: replace(made, participants=made.participants[1:]),
    "held out": lambda made: replace(made, held_out=()),
    "classes": lambda made: replace(made, num_classes=4),
    "later": lambda made: replace(made, later={"client-0": ((3, (0, 1, 2, 3)),)}),
    "scale": lambda made: replace(made, scale=Scale(torch.zeros(1, 1, 1), torch.ones(1, 1, 1))),
    "pooled": lambda made: made.with_pooled_client(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_data_have_another_fingerprint(change):
    made = toys.federation()
    assert toys.federation().fingerprint() == made.fingerprint()
    assert CHANGES[change](made).fingerprint() != made.fingerprint()


def test_the_fingerprint_does_not_depend_on_the_order_of_clients_in_a_dict():
    made = toys.federation()
    turned = replace(made, bounds=dict(reversed([*made.bounds.items()])))
    assert turned.fingerprint() == made.fingerprint()


def test_many_clients_are_light():
    one = splits(2, 0, 1)
    made = Federation.build({f"client-{number}": one for number in range(20_000)}, {}, 2)
    described = made.describe()["clients"]
    assert len(described) == 20_000
    assert described[-1]["labels"] == [1, 1]
    assert len(made.fingerprint()) == 64


def test_one_client_alone_has_its_own_examples_and_nobody_elses():
    def draw(count, start):
        return Arrays(
            np.arange(start, start + count, dtype=np.float32)[:, None], np.arange(count) % 2
        )

    splits = {
        id: (draw(4, at), draw(2, at + 4), draw(3, at + 6)) for id, at in (("a", 0), ("b", 20))
    }
    drift = {"b": [(3, (draw(5, 40), draw(1, 45), draw(2, 46)))]}
    whole = Federation.build(splits, {"new": splits["a"]}, 2, {"b": {"concept": "x"}}, later=drift)
    alone = whole.only("b")
    for round in (0, 2, 3, 9):
        for ours, theirs in zip(alone.splits("b", round), whole.splits("b", round), strict=True):
            assert torch.equal(ours.x, theirs.x)
            assert torch.equal(ours.y, theirs.y)
    assert len(alone.x) == 9 + 8
    assert (alone.participants, alone.held_out, alone.groups) == (("b",), (), {})
    assert whole.only("a").later == {}
    with pytest.raises(DataError, match="must be one of the run's, got 'new'"):
        whole.only("new")
