import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn.metrics import adjusted_rand_score

from concordfl import Key
from concordfl.toolbox import clustering

KEY = Key(0, "clusters")


def planted(groups, size, spread=0.02, seed=0):
    """Label shares of `groups` groups of `size` clients: each group has a class of its own."""
    rng = np.random.default_rng(seed)
    truth = np.repeat(np.arange(groups), size)
    return np.eye(groups)[truth] * 0.9 + spread * rng.random((len(truth), groups)), truth


@pytest.mark.parametrize("groups", [2, 3, 5])
def test_planted_groups_are_found(groups):
    points, truth = planted(groups, 8)
    assert adjusted_rand_score(truth, clustering.kmeans(points, groups, KEY)) == 1


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 7])
def test_the_elbow_is_the_planted_number(groups):
    assert clustering.elbow(planted(groups, 6)[0], KEY) == groups


@pytest.mark.parametrize("groups", [3, 4, 5, 6])
def test_the_elbow_of_clients_that_are_exactly_alike(groups):
    assert clustering.elbow(np.repeat(np.eye(groups), 4, axis=0), KEY) == groups


@pytest.mark.parametrize("cluster", [clustering.kmeans, clustering.balanced])
def test_as_many_groups_as_points_are_one_each(cluster):
    for count in (3, 4):
        assert cluster(np.array([[0.0], [0.0], [1.0]]), count, KEY).tolist() == [0, 1, 2]


def test_the_elbow_of_little():
    assert clustering.elbow(np.zeros((5, 3)), KEY) == 1
    assert clustering.elbow(np.eye(2), KEY) == 2


def test_groups_are_numbered_by_their_first_member():
    points, truth = planted(4, 5)
    order = np.random.default_rng(1).permutation(len(points))
    groups = clustering.kmeans(points[order], 4, KEY)
    assert list(dict.fromkeys(groups.tolist())) == [0, 1, 2, 3]
    assert adjusted_rand_score(truth[order], groups) == 1


def test_fewer_points_than_groups():
    assert sorted(set(clustering.kmeans(np.eye(3)[[0, 1, 1, 0]], 3, KEY).tolist())) == [0, 1]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 100))
def test_balanced_groups_respect_the_cap(size, count, seed):
    points = np.random.default_rng(seed).normal(size=(size, 3)) ** 3
    groups = clustering.balanced(points, count, KEY)
    found = len(set(groups.tolist()))
    assert np.bincount(groups).max() <= max(
        -(-size // min(count, size)), int(1.2 * size / min(count, size) + 1e-9)
    )
    assert found <= count


def test_balancing_moves_the_farthest():
    points = np.array([[0.0], [0.1], [0.2], [0.3], [0.9], [5.0], [5.1], [5.2]])
    plain, even = clustering.kmeans(points, 2, KEY), clustering.balanced(points, 2, KEY)
    assert np.bincount(plain).tolist() == [5, 3]
    assert even.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
