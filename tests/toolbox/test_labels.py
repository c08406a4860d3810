"""How much clients' label shares differ, beside clients drawn from a known distribution."""

import functools

import numpy as np
import pytest
import torch

from concordfl.core import tree
from concordfl.toolbox import labels

UNKNOWN = 4.0
COMMON = np.array([0.4, 0.3, 0.2, 0.1])


def sums_of(tables):
    parts = [labels.pairs(torch.as_tensor(table, dtype=torch.float64)) for table in tables]
    return functools.reduce(tree.add, parts)


def prior_of(tables):
    sums = sums_of(tables)
    return labels.share_prior(sums.counts, sums, UNKNOWN)


def drawn(concentration, sizes, seed=0):
    """Label counts of clients: shares from a Dirichlet distribution, then labels."""
    random = np.random.default_rng(seed)
    shares = random.dirichlet(concentration * COMMON, len(sizes))
    return np.stack([random.multinomial(n, p) for n, p in zip(sizes, shares, strict=True)])


@pytest.mark.parametrize("concentration", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("sizes", [[10] * 3000, [5, 50] * 1500])
def test_likeness_is_that_of_the_distribution_whatever_the_sizes(concentration, sizes):
    found = labels.likeness(sums_of(drawn(concentration, sizes)))
    assert found == pytest.approx(1 / (1 + concentration), abs=0.02)


def test_clients_alike_are_drawn_to_the_common_shares():
    random = np.random.default_rng(0)
    sums = sums_of(random.multinomial(50, COMMON, 300))
    assert labels.likeness(sums) < 0.01
    prior = labels.share_prior(sums.counts, sums, UNKNOWN)
    assert prior.sum() > 100
    assert (prior / prior.sum()).numpy() == pytest.approx(COMMON, abs=0.02)


def test_clients_of_one_label_each_are_left_alone():
    sums = sums_of(20 * np.eye(4)[[0, 1, 2, 3] * 5])
    assert labels.likeness(sums) == pytest.approx(1)
    assert labels.share_prior(sums.counts, sums, UNKNOWN).sum() < 0.01


def test_the_prior_leaves_shares_nearer_to_the_true_ones_than_the_counts_are():
    """The mean that is left by the Dirichlet distribution is the best guess in squared error."""
    random = np.random.default_rng(1)
    shares = random.dirichlet(3 * COMMON, 500)
    counts = np.stack([random.multinomial(8, p) for p in shares])
    prior = prior_of(counts).numpy()

    def error(added):
        guess = (counts + added) / (counts + added).sum(1, keepdims=True)
        return ((guess - shares) ** 2).sum(1).mean()

    best = error(3 * COMMON)
    assert error(prior) == pytest.approx(best, rel=0.02)
    assert best < 0.8 * error(np.zeros(4))


@pytest.mark.parametrize(
    "tables", [[[1, 0]], [[5, 5]], [[0, 0], [0, 0]], [[1, 0], [0, 1]], [[4, 0], [7, 0]]]
)
def test_of_one_client_one_example_or_one_label_nothing_is_known(tables):
    assert labels.likeness(sums_of(tables)) is None
    assert float(prior_of(tables).sum()) == pytest.approx(UNKNOWN)


def test_the_common_shares_are_those_of_the_counts():
    """Which need not be of the clients that say how much clients differ."""
    sums = sums_of(drawn(5.0, [20] * 500))
    prior = labels.share_prior(torch.tensor([0.0, 900, 99, 0]), sums, UNKNOWN)
    assert prior.sum() == pytest.approx(1 / labels.likeness(sums) - 1)
    assert (prior / prior.sum()).numpy() == pytest.approx(np.array([1, 901, 100, 1]) / 1003)
