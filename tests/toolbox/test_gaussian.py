import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA

from concordfl.core import tree
from concordfl.toolbox import gaussian
from concordfl.toolbox.gaussian import Gaussians

SHAPES = {"full": (2, 3, 3), "diag": (2, 3), "spherical": (2,), "identity": (2,)}


def drawn(kind, seed=0):
    """Two Gaussians in three dimensions, and the full covariances they stand for."""
    rng = np.random.default_rng(seed)
    factors = rng.normal(size=(2, 3, 3))
    full = factors @ factors.transpose(0, 2, 1) + np.eye(3)
    values = {
        "full": full,
        "diag": full.diagonal(axis1=1, axis2=2),
        "spherical": np.array([0.5, 2.0]),
        "identity": np.ones(2),
    }[kind]
    as_full = (
        full
        if kind == "full"
        else [np.eye(3) * value if kind != "diag" else np.diag(value) for value in values]
    )
    return Gaussians(torch.tensor(rng.normal(size=(2, 3))), torch.tensor(values)), np.array(as_full)


@pytest.mark.parametrize("kind", SHAPES)
def test_densities_are_those_of_scipy(kind):
    gaussians, full = drawn(kind)
    x = np.random.default_rng(1).normal(size=(20, 3)) * 3
    theirs = [
        multivariate_normal(mean, covariance).logpdf(x)
        for mean, covariance in zip(gaussians.means, full, strict=True)
    ]
    assert np.allclose(
        gaussian.log_density(gaussians, torch.tensor(x)).numpy(),
        np.stack(theirs, axis=1),
        atol=1e-10,
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_the_m_step_is_the_weighted_mean_and_covariance(kind):
    rng = np.random.default_rng(2)
    x, weight = rng.normal(size=(40, 3)) + 100, rng.random((40, 2))
    shift = torch.full((3,), 99.0, dtype=torch.float64)
    halves = [
        gaussian.statistics(torch.tensor(x[part]), torch.tensor(weight[part]), shift, kind)
        for part in (slice(15), slice(15, 40))
    ]
    before, _ = drawn(kind)
    after = gaussian.m_step(tree.add(*halves), shift, before, kind, regulariser=0.01)
    for m in range(2):
        assert np.allclose(after.means[m], np.average(x, axis=0, weights=weight[:, m]), atol=1e-10)
        covariance = np.cov(x.T, aweights=weight[:, m], ddof=0)
        wanted = {
            "full": covariance + 0.01 * np.eye(3),
            "diag": covariance.diagonal() + 0.01,
            "spherical": covariance.diagonal().mean() + 0.01,
            "identity": 1.0,
        }[kind]
        assert np.allclose(after.covariances[m], wanted, atol=1e-9)


def test_the_papers_covariance_leaves_out_the_spread_between_clients():
    rng = np.random.default_rng(3)
    near, far = rng.normal(size=(30, 3)), rng.normal(size=(10, 3)) + 5
    shift, before = (
        torch.zeros(3, dtype=torch.float64),
        Gaussians(torch.zeros(1, 3).double(), torch.eye(3).double()[None]),
    )

    def covariance(within):
        replies = [
            gaussian.statistics(
                torch.tensor(x), torch.ones(len(x), 1).double(), shift, "full", within=within
            )
            for x in (near, far)
        ]
        return (
            gaussian.m_step(tree.add(*replies), shift, before, "full", 0.0, within=within)
            .covariances[0]
            .numpy()
        )

    own = 0.75 * np.cov(near.T, ddof=0) + 0.25 * np.cov(far.T, ddof=0)
    apart = near.mean(0) - far.mean(0)
    assert np.allclose(covariance(True), own)
    assert np.allclose(covariance(False), np.cov(np.concatenate([near, far]).T, ddof=0))
    assert np.allclose(covariance(False) - covariance(True), 0.75 * 0.25 * np.outer(apart, apart))


def test_a_gaussian_without_mass_stays():
    before, _ = drawn("full")
    nothing = gaussian.statistics(
        torch.zeros(5, 3).double(),
        torch.tensor([[1.0, 0.0]] * 5).double(),
        torch.zeros(3).double(),
        "full",
    )
    after = gaussian.m_step(nothing, torch.zeros(3).double(), before, "full", 1e-3)
    assert torch.equal(after.means[1], before.means[1])
    assert torch.equal(after.covariances[1], before.covariances[1])
    assert torch.equal(after.covariances[0], 1e-3 * torch.eye(3).double())


@pytest.mark.parametrize("kind", SHAPES)
def test_the_shared_covariance_is_the_spread_within(kind):
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=(30, 3)), rng.normal(size=(10, 3)) + 9])
    belongs = torch.tensor([[1.0, 0.0]] * 30 + [[0.0, 1.0]] * 10).double()
    total = gaussian.statistics(torch.tensor(x), belongs, torch.zeros(3).double(), kind)
    within = 0.75 * np.cov(x[:30].T, ddof=0) + 0.25 * np.cov(x[30:].T, ddof=0)
    wanted = {
        "full": within,
        "diag": within.diagonal(),
        "spherical": within.diagonal().mean(),
        "identity": 1.0,
    }[kind]
    shared = gaussian.shared_covariance(total, kind, 0.0)
    assert shared.shape == SHAPES[kind]
    assert np.allclose(shared[0], wanted)
    assert torch.equal(shared[0], shared[1])


def test_principal_axes_are_those_of_the_pooled_examples():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(200, 6)) @ rng.normal(size=(6, 6)) + 50
    parts = [torch.tensor(part) for part in np.split(x, [20, 120])]
    moments = [
        gaussian.statistics(
            part, torch.ones(len(part), 1).double(), torch.zeros(6).double(), "full"
        )
        for part in parts
    ]
    frame, middle, spread = gaussian.principal_axes(tree.add(tree.add(*moments[:2]), moments[2]), 3)
    theirs = PCA(3).fit(x)
    signs = np.sign((frame.axes.numpy() * theirs.components_.T).sum(0))
    assert np.allclose(frame.axes.numpy() * signs, theirs.components_.T, atol=1e-5)
    assert np.allclose(
        frame.project(torch.tensor(x)).numpy() * signs, theirs.transform(x), atol=1e-5
    )
    assert np.allclose(spread.diagonal(), theirs.explained_variance_ * 199 / 200)
    assert torch.equal(middle, torch.zeros(3).double())
    assert (frame.axes.gather(0, frame.axes.abs().argmax(0, keepdim=True)) > 0).all()
    plain, mean, covariance = gaussian.principal_axes(moments[0])
    assert torch.equal(plain.project(parts[0]), parts[0])
    assert np.allclose(mean, x[:20].mean(0))
    assert np.allclose(covariance, np.cov(x[:20].T, ddof=0))
