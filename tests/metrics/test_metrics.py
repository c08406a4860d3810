import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from sklearn import metrics as sk

from concordfl.metrics import (
    CRITERIA,
    METRICS,
    agreement,
    is_better,
    novelty,
    score,
    score_multi_label,
    score_regression,
    separation,
)

NO_LABELS = (np.zeros((0, 2)), np.zeros((0, 2)))


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(2, 5), st.booleans())
def test_against_scikit_learn(seed, size, classes, ties):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(classes), size=size)
    if ties:
        probabilities = np.round(probabilities, 1) + 0.01
        probabilities /= probabilities.sum(axis=1, keepdims=True)
    labels = rng.integers(classes, size=size)
    ours = score(probabilities, labels)
    predicted = probabilities.argmax(axis=1)
    assert ours.accuracy == pytest.approx(sk.accuracy_score(labels, predicted))
    assert ours.loss == pytest.approx(
        sk.log_loss(labels, probabilities, labels=range(classes)), rel=1e-6
    )
    assert ours.f1 == pytest.approx(
        sk.f1_score(labels, predicted, average="weighted", zero_division=0)
    )
    present = np.unique(labels)
    if len(present) == 1:
        assert math.isnan(ours.auc)
    else:
        each = [sk.roc_auc_score(labels == label, probabilities[:, label]) for label in present]
        assert ours.auc == pytest.approx(
            np.average(each, weights=[(labels == label).sum() for label in present])
        )


def test_no_examples():
    nothing = score(np.zeros((0, 3)), np.zeros(0, dtype=int))
    assert nothing.examples == 0
    assert math.isnan(nothing.accuracy)


def test_agreement():
    assert agreement([0, 0, 1, 1], ["b", "b", "a", "a"]) == (1, 1, 1)
    mixed = agreement([0, 0, 0, 1], ["a", "a", "b", "b"])
    assert mixed.purity == 0.75
    assert mixed.ari == pytest.approx(sk.adjusted_rand_score([0, 0, 1, 1], [0, 0, 0, 1]))


def test_novelty_against_counting():
    rng = np.random.default_rng(0)
    familiar, novel = rng.normal(size=200) + 1, rng.normal(size=100)
    found = novelty(familiar, novel)
    assert found.auroc == pytest.approx((familiar[:, None] > novel).mean())
    f1 = [
        2 * (familiar >= cut).sum() / ((familiar >= cut).sum() + (novel >= cut).sum() + 200)
        for cut in familiar
    ]
    assert found.max_f1 == pytest.approx(max(f1))
    ranks = np.array([((familiar >= cut).sum(), (novel >= cut).sum()) for cut in familiar])
    assert found.ap == pytest.approx((ranks[:, 0] / ranks.sum(1)).mean())
    assert found.base_rate == pytest.approx(200 / 300)


def test_what_a_score_gets_that_knows_nothing():
    """A constant calls all samples familiar: AP is their share, and F1 that of this verdict."""
    found = novelty(np.ones(8), np.ones(2))
    assert found.auroc == 0.5
    assert found.ap == found.base_rate == 0.8
    assert found.max_f1 == pytest.approx(found.base_f1)
    assert found.base_f1 == pytest.approx(sk.f1_score([1] * 8 + [0] * 2, [1] * 10))


def test_separation_of_points_into_true_groups():
    rng = np.random.default_rng(0)
    truth = ["a"] * 20 + ["b"] * 20
    apart = np.concatenate([rng.normal(size=(20, 3)), rng.normal(size=(20, 3)) + 1000])
    assert separation(apart, truth) == pytest.approx((1, 1), abs=0.01)
    mixed = separation(rng.normal(size=(40, 3)), truth)
    assert abs(mixed.silhouette) < 0.1
    assert abs(mixed.ari) < 0.1
    # Two points each on a line: (b - a) / max by hand.
    line = separation(np.array([[0.0], [1.0], [4.0], [5.0]]), [0, 0, 1, 1])
    assert line.silhouette == pytest.approx((3.5 / 4.5 + 2.5 / 3.5) / 2)


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(1, 3))
def test_regression_against_scikit_learn(seed, size, targets):
    rng = np.random.default_rng(seed)
    truth, predicted = rng.normal(size=(2, size, targets))
    ours = score_regression(predicted, truth)
    assert ours.rmse == pytest.approx(sk.root_mean_squared_error(truth, predicted))
    assert ours.mae == pytest.approx(sk.mean_absolute_error(truth, predicted))
    assert ours.r2 == pytest.approx(sk.r2_score(truth, predicted))
    if targets == 1:
        assert score_regression(predicted[:, 0], truth[:, 0]) == ours


def test_a_target_that_does_not_vary_has_no_r2():
    assert math.isnan(score_regression(np.ones(3), np.zeros(3)).r2)
    both = score_regression(np.ones((3, 2)), np.array([[0.0, 0], [0, 1], [0, 2]]))
    assert both.r2 == 0


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(2, 5))
def test_several_labels_against_scikit_learn(seed, size, labels):
    rng = np.random.default_rng(seed)
    truth = (rng.random((size, labels)) < 0.4).astype(int)
    probabilities = rng.uniform(0.01, 0.99, (size, labels))
    claimed = (probabilities > 0.5).astype(int)
    ours = score_multi_label(probabilities, truth)
    assert ours.hamming_accuracy == pytest.approx(1 - sk.hamming_loss(truth, claimed))
    assert ours.subset_accuracy == pytest.approx(sk.accuracy_score(truth, claimed))
    expected = sk.f1_score(truth, claimed, average="macro", zero_division=np.nan)
    assert ours.macro_f1 == pytest.approx(expected, nan_ok=True)
    each = [
        sk.log_loss(truth[:, label], probabilities[:, label], labels=[0, 1])
        for label in range(labels)
    ]
    assert ours.loss == pytest.approx(sum(each), rel=1e-6)


def test_no_examples_have_no_figures_of_any_kind():
    for nothing in (score_regression(np.zeros(0), np.zeros(0)), score_multi_label(*NO_LABELS)):
        assert nothing.examples == 0
        assert all(math.isnan(value) for value in nothing[:-1])


def test_which_way_a_metric_is_better():
    assert is_better("accuracy", 0.9, 0.8)
    assert is_better("rmse", 0.8, 0.9)
    assert not is_better("r2", 0.1, 0.1)
    assert {CRITERIA[kind] for kind in CRITERIA} <= set(METRICS)
