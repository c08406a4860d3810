"""Losses against densities written down independently, and what training sees of them."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from concordfl import Classification, MultiLabel, Objective, Regression, SettingError
from concordfl.core.objective import KINDS, objective_of

OUTPUTS = torch.tensor(np.random.default_rng(0).normal(size=(7, 4)), dtype=torch.float32)


def test_classification_is_torchs_cross_entropy_to_the_bit():
    labels = torch.arange(7) % 4
    expected = F.cross_entropy(OUTPUTS, labels, reduction="none")
    assert torch.equal(Classification(4).losses(OUTPUTS, labels), expected)
    assert torch.equal(Classification(4).predictions(OUTPUTS), OUTPUTS.softmax(-1))


@pytest.mark.parametrize("deviation", [0.1, 0.5, 2.0])
def test_a_gaussians_loss_is_its_negative_log_density(deviation):
    targets = OUTPUTS.flip(0)[:, :2]
    losses = Regression(2, deviation=deviation).losses(OUTPUTS[:, :2], targets)
    expected = -stats.norm.logpdf(targets, OUTPUTS[:, :2], deviation).sum(1)
    assert losses.numpy() == pytest.approx(expected, rel=1e-5)


def test_a_learnt_deviation_is_read_from_the_last_outputs():
    objective = Regression(2, deviation="learnt")
    targets = OUTPUTS.flip(0)[:, :2]
    deviation = np.exp(4 * np.tanh(OUTPUTS[:, 2:].numpy() / 4))
    expected = -stats.norm.logpdf(targets, OUTPUTS[:, :2], deviation).sum(1)
    assert objective.num_outputs == 4
    assert objective.losses(OUTPUTS, targets).numpy() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(objective.predictions(OUTPUTS), OUTPUTS[:, :2])


def test_squared_error_is_half_the_square():
    loss = Regression(likelihood="squared").losses(torch.tensor([[3.0]]), torch.tensor([1.0]))
    assert loss.tolist() == [2.0]


@pytest.mark.parametrize("deviation", [0.1, 2.0, "learnt"])
def test_the_mean_learns_at_the_same_speed_with_any_deviation(deviation):
    targets = torch.tensor([1.0, -2.0])

    def gradient(objective):
        outputs = torch.full((2, objective.num_outputs), 0.5, requires_grad=True)
        objective.losses(outputs, targets).sum().backward()
        return outputs.grad[:, 0]

    expected = gradient(Regression(likelihood="squared"))
    assert torch.allclose(gradient(Regression(deviation=deviation)), expected, rtol=1e-6)


def test_a_learnt_deviation_comes_to_be_that_of_the_errors():
    errors = torch.tensor([0.3, -0.3, 0.3, -0.3])
    outputs = torch.zeros(4, 2, requires_grad=True)
    objective = Regression(deviation="learnt")
    for _ in range(2000):
        (gradient,) = torch.autograd.grad(objective.losses(outputs, errors).sum(), outputs)
        with torch.no_grad():
            outputs[:, 1] -= 0.1 * gradient[:, 1]
    learnt = (4 * torch.tanh(outputs[:, 1] / 4)).exp()
    assert learnt.tolist() == pytest.approx([0.3] * 4, rel=0.01)


def test_several_labels_are_independent():
    labels = (OUTPUTS.flip(0) > 0).long()
    p = 1 / (1 + np.exp(-OUTPUTS.numpy().astype(float)))
    expected = -stats.bernoulli.logpmf(labels, p).sum(1)
    assert MultiLabel(4).losses(OUTPUTS, labels).numpy() == pytest.approx(expected, rel=1e-5)
    assert MultiLabel(4).predictions(OUTPUTS).numpy() == pytest.approx(p, rel=1e-5)


def test_predictions_come_back_in_the_targets_own_unit():
    objective = Regression(2, target_mean=(100.0, -1.0), target_deviation=(10.0, 0.5))
    found = objective.in_own_unit(torch.tensor([[0.0, 2.0]]))
    assert found.tolist() == [[100.0, 0.0]]


def test_likelihoods_integrate_to_one():
    outputs = torch.tensor([[0.3]])
    grid = torch.linspace(-8, 8, 4001)
    losses = Regression(deviation=0.7).losses(outputs.expand(len(grid), 1), grid)
    assert float(torch.trapezoid((-losses).exp(), grid)) == pytest.approx(1, abs=1e-4)
    cases = torch.cartesian_prod(*[torch.arange(2)] * 3)
    of_labels = MultiLabel(3).losses(OUTPUTS[:1, :3].expand(8, 3), cases)
    assert float((-of_labels).exp().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    "objective",
    [
        Classification(3, class_weights=(1.0, 2.0, 0.5)),
        Regression(2, deviation="learnt", target_mean=(0.0, 1.0), target_deviation=(1.0, 2.0)),
        MultiLabel(5),
    ],
)
def test_an_objective_is_read_back_from_its_table(objective: Objective):
    assert objective.kind in KINDS
    table = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in objective.to_table().items()
    }
    assert objective_of(objective.kind, table) == objective


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classification(3, (1.0, 2.0)), "class_weights must be 3 numbers"),
        (lambda: Regression(2, target_mean=(0.0,)), "target_mean must be 2 numbers"),
        (lambda: Regression(deviation=0.0), "deviation must be > 0"),
        (lambda: objective_of("ranking", {}), "must be one of classification, regression"),
    ],
)
def test_what_makes_no_objective_is_refused(make, message):
    with pytest.raises(SettingError, match=message):
        make()


def test_an_objective_says_what_it_goes_by():
    assert [kind.criterion for kind in (Classification(2), Regression(), MultiLabel(2))] == [
        "accuracy",
        "rmse",
        "hamming_accuracy",
    ]
    assert math.isclose(Regression().scores([1.0, 3.0], [2.0, 2.0])["rmse"], 1.0)
