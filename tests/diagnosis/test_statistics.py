"""The statistics against scipy, scikit-learn and simulated nulls."""

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import toys
from concordfl.core import Examples, Key
from concordfl.diagnosis import concept, features
from concordfl.diagnosis.labels import label_test
from concordfl.diagnosis.method import Diagnose, GroupsMessage
from concordfl.toolbox import groupings
from concordfl.toolbox.class_heads import (
    ClassSums,
    gaussian_heads,
    linear_heads,
    own_shares,
    sums_by_class,
)
from concordfl.toolbox.groupings import Candidates

# --- labels ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_monte_carlo_p_is_that_of_scipys_chi_square_for_large_clients(seed):
    table = np.random.default_rng(seed).multinomial(2000, [0.2, 0.3, 0.5], size=6)
    p = label_test(table, 999, Key(seed)).p
    assert p == pytest.approx(stats.chi2_contingency(table).pvalue, abs=0.05)


def test_p_of_labels_is_calibrated_for_tiny_clients_where_chi_square_is_not():
    rng = np.random.default_rng(0)
    p = [
        label_test(rng.multinomial(4, np.full(10, 0.1), size=15), 99, Key(case)).p
        for case in range(100)
    ]
    assert np.mean(np.array(p) <= 0.1) == pytest.approx(0.1, abs=0.06)
    assert np.mean(p) == pytest.approx(0.5, abs=0.1)


def test_small_clients_do_not_look_skewed_but_skewed_ones_do():
    rng = np.random.default_rng(1)
    alike = label_test(rng.multinomial(5, np.full(10, 0.1), size=200), 99, Key(0))
    naive = 1 - 1 / 2  # five examples of ten classes cover at most half of the shares
    assert alike.effect < 0.15 < naive
    skewed = np.array([[100, 0], [0, 100]])
    found = label_test(skewed, 99, Key(0))
    assert found.p == 0.01
    assert found.effect == pytest.approx(0.5, abs=0.01)


def test_one_class_or_empty_clients_are_no_difference():
    assert label_test(np.array([[5, 0], [7, 0]]), 99, Key(0)).p == 1.0
    assert label_test(np.array([[5, 5], [0, 0]]), 99, Key(0)).p == 1.0


# --- heads ----------------------------------------------------------------------------------------


def draw(count=4000, classes=3, dimensions=4, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=count)
    centres = 1.5 * rng.normal(size=(classes, dimensions))
    mixing = np.eye(dimensions) + 0.3 * rng.normal(size=(dimensions, dimensions))
    x = centres[y] + rng.normal(size=(count, dimensions)) @ mixing
    return torch.from_numpy(x), torch.from_numpy(y)


def test_linear_heads_from_sums_are_linear_discriminant_analysis():
    x, y = draw()
    sums = sums_by_class(x, y, 3)
    pooled = ClassSums(sums.counts[None], sums.first[None], sums.second.sum(0)[None])
    logs = linear_heads(pooled, pooled).log_ratios(x)[0] + (sums.counts / len(y)).log()
    oracle = LinearDiscriminantAnalysis().fit(x.numpy(), y.numpy())
    agree = (logs.argmax(1).numpy() == oracle.predict(x.numpy())).mean()
    assert agree > 0.98
    assert np.abs(logs.softmax(1).numpy() - oracle.predict_proba(x.numpy())).mean() < 0.02


def test_gaussian_heads_are_the_densities_of_their_classes():
    x, y = draw(20_000)
    logs = gaussian_heads(sums_by_class(x, y, 3)).log_density(x[:200])
    for label in range(3):
        own = x[y == label].numpy()
        oracle = stats.multivariate_normal(own.mean(0), np.cov(own.T)).logpdf(x[:200].numpy())
        assert np.corrcoef(logs[:, label].numpy(), oracle)[0, 1] > 0.999


def test_a_class_without_examples_is_finite():
    x, y = draw(100)
    sums = sums_by_class(x[y != 2], y[y != 2], 3)
    assert gaussian_heads(sums).log_density(x).isfinite().all()


def test_heads_without_a_client_are_those_of_the_others():
    candidates = Candidates(max_groups=2, restarts=1)
    joined = [torch.tensor([0]), torch.tensor([1]), torch.tensor([0])]
    parts = []
    for seed in range(3):
        sums = sums_by_class(*draw(200, seed=seed), 3)
        parts.append(sums._replace(second=sums.second.sum(0)))
    spread = [groupings.spread(candidates, *pair) for pair in zip(parts, joined, strict=True)]

    def total(some):
        return ClassSums(*(sum(tensors) for tensors in zip(*some, strict=True)))

    others = total(spread[1:])
    parent = ClassSums(*(part.sum(0, keepdim=True) for part in others))
    expected = linear_heads(others, parent)
    taken_out = concept.without(candidates, total(spread), parts[0], joined[0])
    never_in = concept.without(candidates, others, None, joined[0])
    for found in (taken_out, never_in):
        for ours, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("is_in_it", [True, False])
def test_a_client_takes_out_its_part_only_where_it_has_one(monkeypatch, is_in_it):
    """Of the round before: the sums of others, with or without its own."""
    judged = []
    monkeypatch.setattr(
        concept, "linear_heads", lambda sums, parent: judged.append(sums) or heads(sums, parent)
    )
    heads = linear_heads
    method = Diagnose(max_groups=2, restarts=1)
    x, y = draw(60)
    network = toys.model_for(method, toys.federation(), hidden=[8])
    client = toys.client(Examples(x.float(), y), network, classes=3)
    client.examples.cached("features", lambda: x)
    shares = torch.full((2, 3), 1 / 3, dtype=torch.float64)
    state, reply = method.join_groups(client, {}, GroupsMessage(None, -1, shares, is_last=False))
    own = reply["sums"].value
    others = ClassSums(*(3 * part + 1 for part in own))
    total = ClassSums(*(a + b for a, b in zip(own, others, strict=True))) if is_in_it else others
    round = state["round"] if is_in_it else state["round"] + 1
    method.join_groups(client, state, GroupsMessage(total, round, shares, is_last=False))
    assert len(judged) == 2
    for half, sums in enumerate(judged):
        for found, expected in zip(sums, others, strict=True):
            torch.testing.assert_close(found, expected[half])


def test_own_shares_tend_to_the_pooled_ones_where_there_are_no_examples():
    pooled = torch.tensor([0.2, 0.8], dtype=torch.float64)
    torch.testing.assert_close(own_shares(torch.zeros(2, dtype=torch.float64), pooled), pooled)


# --- the test of the concept ----------------------------------------------------------------------


def test_one_sided_is_the_t_test_against_the_margin():
    values = np.random.default_rng(0).normal(0.05, 0.5, 2000)
    p = groupings.one_sided([values.sum(), (values**2).sum()], len(values), 0.02)
    oracle = stats.ttest_1samp(values, 0.02, alternative="greater").pvalue
    assert p == pytest.approx(oracle, rel=0.02)


def test_groups_of_two_halves_are_matched_by_the_clients_they_share():
    joined = np.array([[0, 1], [0, 1], [1, 0], [1, 0], [1, 0]])
    assert concept._alike(joined, 2) == [1, 0]


# --- features -------------------------------------------------------------------------------------


def compare(clients, draws=99):
    """The test on clients (x, y) of one group."""
    all_of = [sums_by_class(x, y, 2) for x, y in clients]
    total = ClassSums(*(torch.stack(parts).sum(0)[None] for parts in zip(*all_of, strict=True)))
    cells = features.cells_of(total, total)
    displaced = {
        str(number): features.displacement(x, y, 0, cells, draws, Key(number, float(x[0, 0]).hex()))
        for number, (x, y) in enumerate(clients)
    }
    labels = np.stack([np.bincount(y, minlength=2) for _, y in clients])
    return features.feature_test(displaced, labels, [0] * len(clients))


def heavy_tailed(rng, clients, examples, moved=0.0):
    for number in range(clients):
        y = rng.integers(2, size=examples)
        x = rng.standard_t(5, size=(examples, 6)) + 2 * y[:, None] * np.eye(6)[0]
        x[:, 4] += moved * (number == 0)
        yield torch.from_numpy(x), torch.from_numpy(y)


def test_p_of_features_is_calibrated_for_small_clients_with_heavy_tails():
    rng = np.random.default_rng(0)
    found = [compare(list(heavy_tailed(rng, 5, 12))) for _ in range(40)]
    means = np.array([test.each[features.OTHER_MEANS] for test in found])
    assert np.mean(means <= 0.1) < 0.2
    assert 0.35 < means.mean() < 0.7
    assert np.mean([test.p <= 0.05 for test in found]) <= 0.1
    assert np.mean([min(test.by_client.values()) <= 0.05 for test in found]) <= 0.12


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        ([[40]] * 4, [0, 0, 1, 1]),  # displacements of two clients are opposites of each other
        ([[2, 9], [1, 3], [6, 0], [3, 4]], [0, 0, 0, 0]),
        ([[5, 5], [5, 5], [5, 5], [5, 5], [5, 5]], [0, 1, 0, 1, 1]),
    ],
)
def test_the_null_of_features_is_as_wide_as_that_of_normal_examples(labels, groups):
    labels, rng, runs = np.array(labels), np.random.default_rng(0), 20_000
    found, drawn, expected = (np.zeros(runs) for _ in range(3))
    for group in set(groups):
        for counts in labels[np.array(groups) == group].T:
            own, size = counts[counts > 0], counts.sum()
            x = rng.normal(size=(runs, size))
            x -= x.mean(1, keepdims=True)
            signs = rng.choice([-1.0, 1.0], size=(runs, size))
            for n, end in zip(own, own.cumsum(), strict=True):
                at, scale = slice(end - n, end), (size - n) / (size - 1) / n
                found += x[:, at].sum(1) ** 2 / n
                drawn += (signs * x)[:, at].sum(1) ** 2 * scale
                expected += (x[:, at] ** 2).sum(1) * scale
    ratio = np.sqrt(((found - expected) ** 2).mean() / ((drawn - expected) ** 2).mean())
    assert features._wider(labels, groups) == pytest.approx(ratio, rel=0.03)


def test_the_client_that_is_displaced_is_named():
    test = compare(list(heavy_tailed(np.random.default_rng(1), 5, 100, moved=1.0)))
    assert test.p <= 0.05
    assert min(test.by_client, key=test.by_client.__getitem__) == "0"
    assert test.by_client["0"] < 0.001


def test_holm_by_hand():
    assert features.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
