import numpy as np
import pytest

from concordfl import DataError, Key
from concordfl.data import Arrays, Dataset
from concordfl.scenarios import PARTITIONS
from concordfl.scenarios.partition import _group_by_number

CLASSES, SIZE = 10, 6000
LABELS = np.arange(SIZE) % CLASSES
NOBODY = Arrays(np.zeros((0, 1)), np.zeros(0, int))
PARTS = np.arange(SIZE) // (SIZE // 2)  # two halves of the pool
DATA = Dataset(
    Arrays(np.arange(SIZE, dtype=np.float32)[:, None], LABELS), NOBODY, CLASSES, parts=PARTS
)
EQUAL_SIZES = ("iid", "dirichlet-by-client", "lda")


def assignment(kind, clients=60, key=0, data=DATA, **options):
    return PARTITIONS[kind](**options).assign(data, clients, Key(key, "partition"))


def assign(*arguments, **options):
    return assignment(*arguments, **options).indices


def effective_classes(parts, labels=LABELS):
    """exp of the entropy of a client's class mix, averaged over clients."""
    values = []
    for part in parts.values():
        mix = np.bincount(labels[part], minlength=CLASSES) / len(part)
        values.append(np.exp(-(mix[mix > 0] * np.log(mix[mix > 0])).sum()))
    return np.mean(values)


def sizes(parts):
    return np.array([len(part) for part in parts.values()])


@pytest.mark.parametrize(
    "kind", [kind for kind in PARTITIONS if kind not in ("natural", "domains", "pachinko")]
)
def test_no_example_goes_to_two_clients_and_the_key_decides(kind):
    parts = assign(kind)
    everything = np.concatenate(list(parts.values()))
    assert len(everything) == len(set(everything.tolist()))
    assert len(everything) == SIZE or kind == "groups"  # which leaves over what fits no group's mix
    assert len(parts) == 60
    if kind in EQUAL_SIZES:
        assert set(sizes(parts)) == {100}
    again, other = assign(kind), assign(kind, key=1)
    assert all(np.array_equal(parts[id], again[id]) for id in parts)
    assert not all(np.array_equal(parts[id], other[id]) for id in parts)


def test_effective_number_of_classes():
    assert effective_classes(assign("iid")) > 9
    assert effective_classes(assign("dirichlet-by-client", alpha=1.0)) == pytest.approx(
        7.0, abs=0.6
    )
    assert effective_classes(assign("lda", alpha=1.0)) == pytest.approx(2.5, abs=0.5)
    assert effective_classes(assign("dirichlet-by-client", alpha=100.0)) > 9
    by_class = [
        effective_classes(assign("dirichlet-by-class", clients=20, alpha=alpha))
        for alpha in (0.1, 0.5, 10.0)
    ]
    assert by_class == sorted(by_class)
    assert by_class[0] < 4


def test_dirichlet_by_class_keeps_everybody_above_the_smallest():
    parts = assign("dirichlet-by-class", clients=20, alpha=0.1)
    assert sizes(parts).min() >= 10
    with pytest.raises(
        DataError,
        match="every client must get at least 10 examples, got fewer in each of 1000 draws",
    ):
        assign("dirichlet-by-class", clients=500, alpha=0.01)


def test_labels_per_client():
    for labels in (1, 2, 3):
        parts = assign("labels-per-client", clients=40, labels=labels)
        for number, part in enumerate(parts.values()):
            held = set(LABELS[part])
            assert len(held) == labels
            assert number % CLASSES in held
        # Every label's examples are split equally among its holders.
        for label in range(CLASSES):
            counts = [
                int((LABELS[part] == label).sum())
                for part in parts.values()
                if label in LABELS[part]
            ]
            assert max(counts) - min(counts) <= 1
    with pytest.raises(DataError, match="labels must be <= 10, the classes, got 11"):
        assign("labels-per-client", labels=11)


def test_labels_given_for_every_client():
    parts = assign("labels-per-client", clients=3, labels=((0, 2), (1, 9), (2,)))
    assert [set(LABELS[part].tolist()) for part in parts.values()] == [{0, 2}, {1, 9}, {2}]
    halves = [int((LABELS[part] == 2).sum()) for part in parts.values()]
    assert halves[1] == 0
    assert abs(halves[0] - halves[2]) <= 1
    assert sum(halves) == (LABELS == 2).sum()
    table = {"labels": [[0, 2], [1, 9]]}
    assert PARTITIONS["labels-per-client"].from_table(table).to_table() == table
    for wrong in (((0, 2),), ((0,), (1,), (10,))):
        with pytest.raises(DataError, match="labels below 10 for each of 3 clients, got"):
            assign("labels-per-client", clients=3, labels=wrong)


def test_mixture_weights_spread_every_class_by_a_dirichlet():
    parts = assign("mixture-weights", clients=30, alpha=0.4)
    table = np.array([np.bincount(LABELS[part], minlength=CLASSES) for part in parts.values()]) / (
        SIZE / CLASSES
    )
    assert np.allclose(table.sum(axis=0), 1)
    # The mean of a symmetric Dirichlet's squared weights is (alpha + 1) / (n alpha + 1).
    assert (table**2).sum(axis=0).mean() == pytest.approx(30 * 0.4 * 1.4 / (12 * 13), rel=0.35)


def test_quantity_skews_sizes_and_nothing_else():
    parts = assign("quantity", clients=20, alpha=0.5)
    assert sizes(parts).min() >= 10
    assert sizes(parts).max() > 3 * sizes(parts).mean()
    large = max(parts.values(), key=len)
    assert np.abs(np.bincount(LABELS[large], minlength=CLASSES) / len(large) - 0.1).max() < 0.04


def test_pachinko_mixes_fine_labels_within_coarse_ones():
    coarse = np.arange(CLASSES) // 5
    parts = assign(
        "pachinko",
        clients=30,
        data=DATA._replace(coarse=coarse),
        coarse_alpha=0.1,
        fine_alpha=1000.0,
    )
    first = next(iter(parts.values()))
    counts = np.bincount(LABELS[first], minlength=CLASSES)
    share = counts[:5].sum() / counts.sum()
    assert share > 0.9 or share < 0.1
    inside = counts[:5] if share > 0.5 else counts[5:]
    assert inside.min() > 0.5 * inside.max()
    with pytest.raises(DataError, match="needs data with coarse labels"):
        assign("pachinko")


def test_groups_share_a_class_mix_and_the_last_are_held_out():
    found = assignment("groups", clients=50, groups=5, held_out_groups=2, alpha=0.3)
    assert [list(found.groups.values()).count(f"group-{g}") for g in (1, 2, 3, 4, 5)] == [10] * 5
    assert {found.groups[id] for id in found.held_out} == {"group-4", "group-5"}
    assert len(found.held_out) == 20

    def mix(id):
        return np.bincount(LABELS[found.indices[id]], minlength=CLASSES) / len(found.indices[id])

    for group in range(5):
        first, *others = (mix(f"client-{10 * group + number:02d}") for number in range(10))
        assert all(
            np.abs(first - other).sum() < 0.1 for other in others
        )  # also in the groups that come last
    assert np.abs(mix("client-00") - mix("client-10")).sum() > 0.3
    with pytest.raises(DataError, match=r"groups must be > held_out_groups \(2\) and <= clients"):
        assignment("groups", groups=2)


def test_domains_have_training_held_out_and_mixed_clients():
    owned = DATA._replace(owners=np.repeat(["a", "b", "c"], 2000))
    found = assignment(
        "domains", clients=None, data=owned, per_domain=3, held_out_per_domain=1, mixed=2
    )
    training = [id for id in found.indices if id not in found.held_out]
    assert training == [f"{domain}-{n}" for domain in "abc" for n in range(3)]
    assert set(found.held_out) == {"a-3", "b-3", "c-3", "mixed-0", "mixed-1"}
    for id, indices in found.indices.items():
        counts = np.bincount(LABELS[indices], minlength=CLASSES)
        assert counts.max() - counts.min() <= 3
        assert set(owned.owners[indices]) == (
            {"a", "b", "c"} if id.startswith("mixed") else {id[0]}
        )
    everything = np.concatenate(list(found.indices.values()))
    assert len(everything) == len(set(everything.tolist()))
    with pytest.raises(DataError, match="needs data of several domains"):
        assignment("domains")


def test_classes_that_run_out_are_replaced():
    few = DATA._replace(train=Arrays(DATA.train.x[:40], np.where(np.arange(40) < 2, 0, 1)))
    assert sorted(
        np.concatenate(list(assign("lda", clients=4, data=few).values())).tolist()
    ) == list(range(40))


def test_natural_is_by_owner():
    owned = DATA._replace(owners=np.array(["b", "a", "a"] * 2000))
    parts = assign("natural", clients=None, data=owned)
    assert list(parts) == ["a", "b"]
    assert len(parts["a"]) == 4000
    assert list(assign("natural", clients=1, data=owned)) in (["a"], ["b"])
    with pytest.raises(DataError, match="clients must be <= 2, the owners in these data, got 3"):
        assign("natural", clients=3, data=owned)
    with pytest.raises(DataError, match="needs data that say whose each example is"):
        assign("natural")


def test_impossible_numbers_of_clients():
    with pytest.raises(
        DataError, match=r"clients must be <= 6000, the number of examples \(6000\), got 6001"
    ):
        assign("iid", clients=6001)
    with pytest.raises(
        DataError, match=r"must be <= 600, .* divided by 10, the smallest client, got 601"
    ):
        assign("quantity", clients=601)
    with pytest.raises(DataError, match="clients must be given"):
        assign("lda", clients=None)


def test_many_owners_are_one_pass_over_the_examples():
    owners = np.array([f"o{number % 3000:04d}" for number in range(SIZE)], dtype=object)
    parts = assign("natural", clients=None, data=DATA._replace(owners=owners))
    assert list(parts) == [f"o{number:04d}" for number in range(3000)]
    assert parts["o0007"].tolist() == [7, 3007]


def test_drawn_owners_keep_their_examples():
    owners = np.array([f"o{number % 50:02d}" for number in range(SIZE)])
    data = DATA._replace(owners=owners)
    everybody, some = assign("natural", clients=None, data=data), assign("natural", 9, data=data)
    assert len(some) == 9
    assert list(some) == sorted(some)
    assert all(np.array_equal(some[id], everybody[id]) for id in some)
    assert list(some) != list(assign("natural", 9, key=1, data=data))


def test_clients_that_get_nothing_are_counted():
    numbers = np.array([2, 0, 2, 2])
    groups = _group_by_number(numbers, 4)
    assert [group.tolist() for group in groups] == [[1], [], [0, 2, 3], []]


def test_parts_of_the_pool_are_dealt_by_weights_of_their_own():
    """The share of a part that a client has is a component of Dir(alpha, ..., alpha), which has the
    mean 1/n and the variance (1/n)(1 - 1/n) / (n alpha + 1); and one part says nothing of another.
    """
    clients = 10
    shares = np.array(
        [
            [(PARTS[rows] == part).mean() * len(rows) / (SIZE / 2) for part in (0, 1)]
            for key in range(200)
            for rows in assign("part-weights", clients, key, alpha=2.0).values()
        ]
    )
    expected = 0.1 * 0.9 / (clients * 2.0 + 1)
    assert shares.mean(axis=0) == pytest.approx([0.1, 0.1])
    assert shares.var(axis=0) == pytest.approx([expected, expected], rel=0.1)
    assert abs(np.corrcoef(shares.T)[0, 1]) < 0.1


def test_classes_of_a_part_may_have_weights_of_their_own():
    """Without, a client's classes are as even as the pool's; with, they are skewed in each part."""

    def spread(**options):
        parts = assign("part-weights", 10, alpha=0.4, smallest=20, **options).values()
        return np.mean(
            [np.std(np.bincount(LABELS[rows], minlength=10) / len(rows)) for rows in parts]
        )

    assert spread() < 0.05
    assert spread(by_class=True) > 0.05


def test_parts_need_a_shift_of_the_pool():
    with pytest.raises(DataError, match='needs a shift with share_of = "pool", got none'):
        assign("part-weights", data=DATA._replace(parts=None))
    with pytest.raises(DataError, match="by_class must be false where targets are no classes"):
        assign("part-weights", data=DATA._replace(num_classes=0), by_class=True)
