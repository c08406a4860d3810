import numpy as np
import pytest

from concordfl import DataError, Key
from concordfl.data import Arrays, Dataset
from concordfl.scenarios import PARTITIONS

CLASSES, SIZE = 10, 6000
LABELS = np.arange(SIZE) % CLASSES
DATA = Dataset(Arrays(np.arange(SIZE, dtype=np.float32)[:, None], LABELS), Arrays(np.zeros((0, 1)), np.zeros(0, int)), CLASSES)


def assign(kind, clients=60, key=0, data=DATA, **options):
    return PARTITIONS[kind](**options).assign(data, clients, Key(key, "partition"))


def effective_classes(places, labels=LABELS):
    """exp of the entropy of a client's class mix, averaged over clients."""
    values = []
    for place in places.values():
        mix = np.bincount(labels[place], minlength=CLASSES) / len(place)
        values.append(np.exp(-(mix[mix > 0] * np.log(mix[mix > 0])).sum()))
    return np.mean(values)


@pytest.mark.parametrize("kind", [kind for kind in PARTITIONS if kind != "natural"])
def test_no_example_goes_to_two_clients_and_the_key_decides(kind):
    places = assign(kind)
    everything = np.concatenate(list(places.values()))
    assert len(everything) == len(set(everything.tolist())) == SIZE
    assert len(places) == 60
    assert {len(place) for place in places.values()} == {100}
    again, other = assign(kind), assign(kind, key=1)
    assert all(np.array_equal(places[id], again[id]) for id in places)
    assert not all(np.array_equal(places[id], other[id]) for id in places)


def test_effective_number_of_classes():
    assert effective_classes(assign("iid")) > 9
    assert effective_classes(assign("dirichlet-by-client", alpha=1.0)) == pytest.approx(7.0, abs=0.6)
    assert effective_classes(assign("lda", alpha=1.0)) == pytest.approx(2.5, abs=0.5)
    assert effective_classes(assign("dirichlet-by-client", alpha=100.0)) > 9


def test_classes_that_run_out_are_replaced():
    few = DATA._replace(train=Arrays(DATA.train.x[:40], np.where(np.arange(40) < 2, 0, 1)))
    places = assign("lda", clients=4, data=few)
    assert sorted(np.concatenate(list(places.values())).tolist()) == list(range(40))


def test_natural_is_by_owner():
    owned = DATA._replace(owners=np.array(["b", "a", "a"] * 2000))
    places = assign("natural", clients=None, data=owned)
    assert list(places) == ["a", "b"]
    assert len(places["a"]) == 4000
    assert list(assign("natural", clients=1, data=owned)) in (["a"], ["b"])
    with pytest.raises(DataError, match="clients must be <= 2, the owners in these data, got 3"):
        assign("natural", clients=3, data=owned)
    with pytest.raises(DataError, match="needs data that say whose each example is"):
        assign("natural")


def test_impossible_numbers_of_clients():
    with pytest.raises(DataError, match="clients must be <= 6000, the number of examples, got 6001"):
        assign("iid", clients=6001)
    with pytest.raises(DataError, match="clients must be given"):
        assign("lda", clients=None)
