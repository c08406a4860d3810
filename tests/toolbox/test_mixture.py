import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from concordfl.toolbox import mixture


@given(st.integers(0, 1000), st.integers(1, 6), st.integers(1, 5))
def test_responsibilities_are_bayes_rule(seed, size, models):
    generator = torch.Generator().manual_seed(seed)
    losses = torch.rand(size, models, generator=generator, dtype=torch.float64) * 5
    omega = torch.rand(models, generator=generator, dtype=torch.float64) + 0.01
    prior = torch.randn(size, models, generator=generator, dtype=torch.float64)
    joint = omega * torch.exp(-losses) / torch.exp(prior)
    gamma = mixture.responsibilities(losses, omega, prior)
    assert torch.allclose(gamma, joint / joint.sum(1, keepdim=True), atol=1e-12)


def test_extreme_losses_stay_finite_and_no_model_dies():
    gamma = mixture.responsibilities(
        torch.tensor([[0.0, 1e4], [1e4, 1e4]]), torch.tensor([0.0, 1.0], dtype=torch.float64)
    )
    assert torch.isfinite(gamma).all()
    assert gamma[0, 0] == 1  # a weight of zero is floored, and evidence brings the model back


def test_settling_is_a_fixed_point():
    losses = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)) * 4
    gamma, omega, _ = mixture.settle(losses, steps=5000, tolerance=1e-12)
    assert torch.allclose(mixture.responsibilities(losses, omega), gamma, atol=1e-9)
    assert torch.allclose(gamma.mean(0), omega, atol=1e-9)


def test_fewer_models():
    gamma = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]], dtype=torch.float64)
    kept = mixture.by_model({0: None, 1: None, 2: None}, gamma)
    left = mixture.renormalised(mixture.columns({1: None, 2: None}, kept))
    assert left.tolist() == [[0.5, 0.5], [0.5, 0.5]]  # the second had nothing left
    assert left.sum(1).tolist() == pytest.approx([1, 1])
