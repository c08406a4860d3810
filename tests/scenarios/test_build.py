from collections import Counter

import numpy as np
import pytest
import torch

from concordfl import DataError, Key, SettingError
from concordfl.config import Config
from concordfl.data import Arrays, Dataset
from concordfl.scenarios import NAMED, Scenario, build_federation
from concordfl.scenarios.build import _choose_clients, _name_shifts
from concordfl.scenarios.partition import Natural, PartWeights
from concordfl.scenarios.shift import Invert, LabelMap, LabelNoise

SIZE = 400
# The feature says which example it is and what its label was.
X = np.stack([np.arange(SIZE), np.arange(SIZE) % 5], axis=1).astype(np.float32)
TEST = Arrays(X[:50] + np.array([10_000, 0], dtype=np.float32), np.arange(50) % 5)
DATA = Dataset(Arrays(X, np.arange(SIZE) % 5), TEST, 5)


def build(seed=0, data=DATA, **scenario):
    return build_federation(data, Scenario(**{"clients": 20, **scenario}), Key(seed, "federation"))


def test_no_example_is_in_two_splits():
    made = build()
    seen = [split.x[:, 0].tolist() for id in made.participants for split in made.splits(id)]
    everything = [item for part in seen for item in part]
    assert len(everything) == len(set(everything)) == SIZE
    assert [len(split) for split in made.splits("client-00")] == [14, 2, 4]
    held_out = [split.x[:, 0].tolist() for split in made.splits("held-out-original")]
    assert sorted(held_out[0] + held_out[2]) == (np.arange(50) + 10_000).tolist()
    assert len(held_out[0]) == len(held_out[2]) == 25


def test_label_maps_go_to_their_share_of_clients_and_are_remembered():
    shifts = (
        LabelMap(map="reverse", share=0.25),
        LabelMap(map="shift", share=0.25),
        LabelMap(map=(0, 0, 1, 1, 2), share=0.1),
    )
    made = build(shifts=shifts)
    groups = Counter(made.groups[id]["concept"] for id in made.participants)
    assert groups == {"original": 8, "reverse": 5, "shift": 5, "map-0-0-1-1-2": 2}
    tables = {
        "original": range(5),
        "reverse": [4, 3, 2, 1, 0],
        "shift": [1, 2, 3, 4, 0],
        "map-0-0-1-1-2": [0, 0, 1, 1, 2],
    }
    for id in (*made.participants, *made.held_out):
        for split in made.splits(id):
            expected = np.array(tables[made.groups[id]["concept"]])[split.x[:, 1].long().numpy()]
            assert split.y.tolist() == expected.tolist()
    assert set(made.held_out) == {f"held-out-{name}" for name in tables}


def test_a_random_map_is_one_permutation_for_all_its_clients():
    made = build(shifts=(LabelMap(map="random", share=1.0),))
    pairs = {
        (int(a), int(b))
        for id in made.participants
        for a, b in zip(made.splits(id).train.x[:, 1], made.splits(id).train.y, strict=True)
    }
    assert len(pairs) == 5
    assert sorted(b for _, b in pairs) == [0, 1, 2, 3, 4]
    assert not np.array_equal(build(seed=1, shifts=(LabelMap(map="random", share=1.0),)).y, made.y)


def test_the_seed_decides_everything():
    shifts = (LabelMap(share=0.5),)
    assert np.array_equal(build(shifts=shifts).y, build(shifts=shifts).y)
    assert build(shifts=shifts).groups != build(seed=1, shifts=shifts).groups


@pytest.mark.parametrize(("share", "adapt_on"), [(0.0, 0), (0.1, 5), (0.99, 49)])
def test_new_clients_adapt_on_their_share_of_the_test_set(share, adapt_on):
    splits = build(adapt_share=share).splits("held-out-original")
    assert [len(split) for split in splits] == [adapt_on, 0, 50 - adapt_on]
    everything = torch.cat([split.x[:, 0] for split in splits]).tolist()
    assert sorted(everything) == (np.arange(50) + 10_000).tolist()


@pytest.mark.parametrize("name", [name for name in NAMED if name.startswith("fedconcat-")])
@pytest.mark.parametrize(
    ("own", "train"), [({}, SIZE), ({"split": [0.9, 0.1, 0.0]}, SIZE - SIZE // 10)]
)
def test_fedconcats_scenarios_train_and_test_on_all_unless_the_run_file_splits(name, own, train):
    table = {"scenario": {"name": name, "partition": {"kind": "iid"}, **own}}
    made = build_federation(DATA, Config.from_table(table).scenario, Key(0, "federation"))
    assert len(made.participants) == 40
    assert sum(len(made.splits(id).train) for id in made.participants) == train
    assert [len(split) for split in made.splits("held-out-original")] == [0, 0, 50]


def test_a_single_example_is_there_to_train_on():
    made = build(clients=SIZE)
    assert all([len(split) for split in made.splits(id)] == [1, 0, 0] for id in made.participants)


def test_data_without_a_test_set_have_no_held_out_clients():
    assert build(data=DATA._replace(test=Arrays(X[:0], np.zeros(0, int)))).held_out == ()


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ({"split": (0.5, 0.1, 0.1)}, "split must be three shares that sum to 1"),
        ({"split": (0.0, 0.5, 0.5)}, "the first above 0"),
        (
            {"shifts": (LabelMap(share=0.7), LabelMap(share=0.7))},
            r"shares of concept shifts must sum to <= 1, got 1.4",
        ),
        ({"shifts": (LabelMap(map=(0, 1)),)}, r"map must list 5 labels in 0..4, got \[0, 1\]"),
        ({"clients": 0}, "clients must be >= 1"),
        (
            {"hold_out_split": (0.5, 0.0, 0.4)},
            r"hold_out_split must be three shares that sum to 1, .* got \[0.5, 0.0, 0.4\]",
        ),
        (
            {"shifts": (LabelMap(share=0.7, share_of="pool"),) * 2},
            "shares of shifts of the pool must sum to <= 1, got 1.4",
        ),
    ],
)
def test_bad_scenarios(scenario, message):
    with pytest.raises(SettingError, match=message):
        build(**scenario)


def test_shifts_among_one_concept_only():
    shifts = (
        LabelMap(share=0.5),
        LabelNoise(share=0.4, among="reverse"),
        LabelNoise(share=0.2, among="original"),
    )
    made = build(shifts=shifts)
    counted = Counter(
        (made.groups[id]["concept"], made.groups[id]["label"]) for id in made.participants
    )
    assert counted == {
        ("reverse", "original"): 6,
        ("reverse", "label-noise-0.2"): 4,
        ("original", "original"): 8,
        ("original", "label-noise-0.2"): 2,
    }


def test_clients_can_be_held_out():
    made = build(hold_out=0.25)
    assert (len(made.participants), len(made.held_out)) == (15, 5)
    assert not any(id.startswith("held-out") for id in made.held_out)
    assert [len(split) for split in made.splits(made.held_out[0])] == [14, 2, 4]
    with pytest.raises(SettingError, match="hold_out must leave a client to train with"):
        build(clients=2, hold_out=0.9)
    with pytest.raises(SettingError, match="hold_out must hold out a client or 0, got 0.01 of 10"):
        build(clients=10, hold_out=0.01)


def test_clients_can_be_held_out_by_name():
    made = build(hold_out=("client-03", "client-07"))
    assert made.held_out == ("client-03", "client-07")
    assert len(made.participants) == 18
    assert not {*made.participants} & {*made.held_out}


def test_an_unknown_client_cannot_be_held_out():
    with pytest.raises(SettingError) as error:
        build(hold_out=("client-3",))
    assert str(error.value).startswith("scenario.hold_out must name clients, got 'client-3': did")


def test_not_all_clients_can_be_held_out():
    with pytest.raises(SettingError, match="leave a client to train with, got all 2 of them"):
        build(clients=2, hold_out=("client-0", "client-1"))


def test_held_out_is_a_share_or_names():
    with pytest.raises(SettingError, match="hold_out must be < 1 or a list, got 1.5"):
        Scenario(hold_out=1.5)
    assert Scenario.from_table({"hold_out": ["a"]}).to_table()["hold_out"] == ["a"]


def test_standardisation_from_sums_is_that_of_the_pooled_training_examples():
    rng = np.random.default_rng(0)
    x = rng.normal(3, 5, size=(SIZE, 4)).astype(np.float32)
    x[rng.random(x.shape) < 0.1] = np.nan
    x[:, 3] = 7
    scenario, key = Scenario(clients=20), Key(0, "federation")
    numbers = Arrays(np.arange(SIZE, dtype=np.float32)[:, None], DATA.train.y)
    made = build_federation(
        Dataset(Arrays(x, DATA.train.y), Arrays(x[:0], TEST.y[:0]), 5),
        scenario,
        key,
        standardise=True,
    )
    raw = build_federation(Dataset(numbers, numbers.take(np.arange(0)), 5), scenario, key)
    rows = np.concatenate([raw.splits(id).train.x[:, 0].numpy() for id in raw.participants]).astype(
        int
    )
    pooled = x[rows].astype(np.float64)
    record = made.preprocessing.to_record()["standardised"]
    assert np.allclose(record["mean"], np.nanmean(pooled, axis=0), atol=1e-9)
    assert np.allclose(record["deviation"][:3], np.nanstd(pooled, axis=0)[:3], atol=1e-9)
    train = np.concatenate([made.splits(id).train.x.numpy() for id in made.participants])
    assert np.isfinite(train).all()
    assert (train[:, 3] == 0).all()
    assert np.allclose(train[:, :3].mean(axis=0), 0, atol=1e-5)


@pytest.mark.parametrize("name", NAMED)
def test_every_named_mix_makes_clients(name):
    images = Arrays(np.zeros((3000, 8, 8, 1), dtype=np.uint8), np.arange(3000) % 10)
    data = Dataset(images, images.take(np.arange(40)), 10, owners=np.repeat(["a", "b", "c"], 1000))
    config = Config.from_table({"scenario": {"name": name}})
    made = build_federation(data, config.scenario, Key(0))
    assert made.participants
    assert made.held_out


@pytest.mark.parametrize("clients", [100, 300])
@pytest.mark.parametrize(("number", "concepts"), [("one", 1), ("three", 3), ("five", 5)])
def test_as_many_clients_are_corrupted_whatever_the_number_of_concepts(number, concepts, clients):
    """Section 7.1 with three concepts: 20% and a fifth of twice 25%; table 5 varies the concepts
    alone.
    """
    images = Arrays(np.zeros((3000, 8, 8, 1), dtype=np.uint8), np.arange(3000) % 10)
    table = {"name": f"fedconceptem-{number}-concepts", "clients": clients}
    scenario = Config.from_table({"scenario": table}).scenario
    made = build_federation(Dataset(images, images.take(np.arange(40)), 10), scenario, Key(0))
    groups = [made.groups[id] for id in made.participants]
    assert len({group["concept"] for group in groups}) == concepts
    assert sum(group["feature"] != "original" for group in groups) == 0.3 * clients


def test_two_random_maps_are_two_concepts():
    shifts = (LabelMap(map="random", share=0.25), LabelMap(map="random", share=0.25))
    made = build(shifts=shifts)
    assert Counter(made.groups[id]["concept"] for id in made.participants) == {
        "original": 10,
        "random": 5,
        "random-2": 5,
    }
    assert set(made.held_out) == {"held-out-original", "held-out-random", "held-out-random-2"}
    assert not np.array_equal(
        made.splits("held-out-random").test.y, made.splits("held-out-random-2").test.y
    )


def test_shares_that_sum_to_one_always_fit():
    made = build(
        clients=6, shifts=tuple(LabelMap(map="shift", by=by, share=0.25) for by in (1, 2, 3, 4))
    )
    assert len({made.groups[id]["concept"] for id in made.participants}) == 4


def test_among_must_name_an_earlier_concept():
    with pytest.raises(
        SettingError,
        match=r"among must name the concept of an earlier shift, "
        r"got 'revers': did you mean 'reverse'\?",
    ):
        build(shifts=(LabelMap(share=0.5), LabelNoise(share=0.4, among="revers")))


def test_images_are_standardised_by_channel_from_sums():
    rng = np.random.default_rng(0)
    images = Arrays(rng.integers(256, size=(200, 4, 4, 3), dtype=np.uint8), np.arange(200) % 5)
    data = Dataset(images, images.take(np.arange(0)), 5)
    made = build_federation(data, Scenario(clients=4), Key(0), standardise=True)
    inputs = torch.cat([made.splits(id).train.inputs() for id in made.participants])
    assert torch.allclose(inputs.mean(dim=(0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(inputs.std(dim=(0, 2, 3), correction=0), torch.ones(3), atol=1e-5)
    assert made.x.dtype == torch.uint8
    index = torch.tensor([3, 1])
    assert torch.equal(
        made.splits("client-0").train.inputs(index), made.splits("client-0").train.inputs()[index]
    )


def test_a_client_may_not_take_the_name_of_a_held_out_one():
    owners = np.where(np.arange(SIZE) < 200, "a", "held-out-original")
    with pytest.raises(DataError, match="got both for .'held-out-original'."):
        build(data=DATA._replace(owners=owners), clients=None, partition=Natural())


def test_preprocessing_says_what_the_data_are():
    named = DATA._replace(classes=tuple("vwxyz"), features=("number", "label"))
    record = build(data=named).preprocessing.to_record()
    assert record == {
        "type": "float32",
        "input_shape": [2],
        "classes": ["v", "w", "x", "y", "z"],
        "features": ["number", "label"],
    }
    assert build().preprocessing.classes == ("0", "1", "2", "3", "4")


def test_shifts_of_one_family_never_meet():
    shifts = (
        LabelMap(share=0.3),
        LabelNoise(share=0.5, rate=0.1),
        LabelMap(map="shift", share=0.3),
        LabelNoise(share=0.5, rate=0.3),
        LabelNoise(share_of="examples", share=0.5, rate=0.2),
    )
    named = _name_shifts(shifts)
    ids = [f"client-{number:02d}" for number in range(20)]
    chosen = _choose_clients(ids, named, Key(0))
    for own_shifts in chosen.values():
        families = [each.shift.family for each in own_shifts if each.shift.share_of == "clients"]
        assert len(families) == len(set(families))
        assert named[4] in own_shifts  # a share of the examples is of everybody's
    assert Counter(each.index for own_shifts in chosen.values() for each in own_shifts) == {
        0: 6,
        1: 10,
        2: 6,
        3: 10,
        4: 20,
    }


def test_pooled_data_drift_too():
    made = build(shifts=(LabelMap(share=1.0, from_round=3),)).with_pooled_client()
    before, after = (made.splits("pooled", round).train.y for round in (2, 3))
    assert np.array_equal(4 - before, after)


# --- shares of the examples, and of the pool ------------------------------------------------------


def reversed_share(split):
    """The share of the examples whose label is the reverse of what it was (2 is its own)."""
    before = split.x[:, 1].long()
    told = before != 2
    return float((split.y == 4 - before)[told].float().mean())


def all_splits(made, id):
    return [split for split in made.splits(id) if len(split)]


def test_clients_from_the_test_set_have_the_shifts_that_everybody_has():
    made = build(shifts=(LabelMap(share=0.5, share_of="examples"),), clients=2)
    for id in (*made.participants, *made.held_out):
        examples = [reversed_share(split) * len(split) for split in all_splits(made, id)]
        assert sum(examples) / sum(len(split) for split in made.splits(id)) == pytest.approx(
            0.5, abs=0.1
        ), id


def test_clients_from_the_test_set_drift_with_everybody():
    shifts = (
        LabelMap(share=0.5, from_round=2),
        LabelMap(map="shift", share=1.0, share_of="examples", from_round=3),
    )
    made = build(shifts=shifts)
    before, after = (made.splits("held-out-reverse", round).test for round in (2, 3))
    assert reversed_share(before) == 1  # whenever participants come to have the concept
    assert np.array_equal((before.y + 1) % 5, after.y)


def test_a_share_of_the_pool_is_changed_before_it_is_dealt_out():
    shift = LabelMap(share=0.5, share_of="pool")
    made = build(shifts=(shift,), clients=4)
    shares = [reversed_share(split) for id in made.participants for split in all_splits(made, id)]
    sizes = [len(split) for id in made.participants for split in all_splits(made, id)]
    assert np.average(shares, weights=sizes) == pytest.approx(0.5, abs=0.05)
    assert {made.groups[id]["concept"] for id in made.participants} == {"original"}
    # the official test set is of the same pool
    held_out = all_splits(made, "held-out-original")
    assert np.mean([reversed_share(split) for split in held_out]) == pytest.approx(0.5, abs=0.1)


def test_parts_of_the_pool_do_not_overlap():
    shifts = tuple(LabelMap(map=(label,) * 5, share=0.25, share_of="pool") for label in (0, 1))
    made = build(data=DATA._replace(train=Arrays(X, np.full(SIZE, 4))), shifts=shifts)
    labels = torch.cat([split.y for id in made.participants for split in made.splits(id)])
    assert torch.bincount(labels).tolist() == [100, 100, 0, 0, 200]


def test_clients_differ_in_how_much_of_a_part_they_have():
    """Half of every client's examples would be changed if the shift came after the dealing."""
    scenario = {"partition": PartWeights(alpha=0.4), "clients": 10}
    made = build(shifts=(LabelMap(share=0.5, share_of="pool"),), **scenario)
    shares = [reversed_share(made.splits(id).train) for id in made.participants]
    assert np.std(shares) > 0.2
    assert min(shares) < 0.2
    assert max(shares) > 0.8


@pytest.mark.parametrize("name", ["fedgmm-joint", "fedgmm-novelty"])
def test_papers_shares_of_the_samples(name):
    """FedGMM 4.1: half of the images; C.3: a quarter of the images, and a quarter of the labels."""
    rng = np.random.default_rng(0)
    images = Arrays(np.full((4000, 8, 8, 1), 1, dtype=np.uint8), rng.integers(10, size=4000))
    data = Dataset(images, images.take(np.arange(1000)), 10)
    scenario = Config.from_table({"scenario": {"name": name, "clients": 20}}).scenario
    made = build_federation(data, scenario, Key(0))
    dark = {
        id: torch.cat([(split.x[:, 0, 0, 0] == 254).float() for split in made.splits(id)])
        for id in (*made.participants, *made.held_out)
    }
    everything = torch.cat([dark[id] for id in made.participants])
    assert everything.mean() == (0.5 if name == "fedgmm-joint" else 0.25)
    shares = [float(dark[id].mean()) for id in made.participants]
    if name == "fedgmm-joint":  # so that clients' weights differ
        assert np.std(shares) > 0.2
    else:  # a quarter of the samples, not of the clients
        assert 0 < min(shares) < max(shares) < 1
    test = dark["held-out-original"]
    assert test.mean() == pytest.approx(0.5 if name == "fedgmm-joint" else 0.25)


def test_a_shift_of_the_pool_has_no_round_and_no_concept_to_choose_from():
    with pytest.raises(SettingError, match="from_round must be left out for a share of the pool"):
        Invert(share_of="pool", from_round=3)
    with pytest.raises(SettingError, match="among must be left out for a share of the pool, got a"):
        Invert(share_of="pool", among="a")


def test_held_out_clients_may_have_another_split():
    made = build(hold_out=0.25, split=(0.6, 0.2, 0.2), hold_out_split=(0.5, 0.0, 0.5))
    assert [len(split) for split in made.splits(made.participants[0])] == [12, 4, 4]
    assert [len(split) for split in made.splits(made.held_out[0])] == [10, 0, 10]
    alike = build(hold_out=0.25, split=(0.6, 0.2, 0.2))
    assert [len(split) for split in alike.splits(alike.held_out[0])] == [12, 4, 4]
