"""FedRS, FedLC and MOON: their limits are FedAvg, and their losses are the papers'."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import toys
from concordfl import SettingError
from concordfl.algorithms import MOON, FedAvg, FedLC, FedRS
from concordfl.core import Batch, tree
from concordfl.engine.plan import Plan

PLAN = Plan(rounds=4, cohort=4, evaluate_every=4)


@dataclass(frozen=True)
class FedAvgProjected(FedAvg):
    """FedAvg on MOON's network."""

    def network(self, module, num_classes):
        return MOON().network(module, num_classes)


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (FedRS(alpha=1.0), FedAvg()),
        (FedLC(tau=0.0), FedAvg()),
        (MOON(mu=0.0), FedAvgProjected()),
        (MOON(mu=0.0, projection_head=False), FedAvg()),
    ],
)
def test_the_limit_is_fedavg_to_the_bit(method, plain):
    ours, theirs = (toys.result(toys.experiment(each, plan=PLAN)) for each in (method, plain))
    assert ours["parameters_sha256"] == theirs["parameters_sha256"]
    assert ours["final"] == theirs["final"]


@pytest.mark.parametrize("method", [FedRS(), FedLC(), MOON(), MOON(projection_head=False)])
def test_away_from_the_limit_it_is_something_else(method):
    projects = isinstance(method, MOON) and method.projection_head
    plain = FedAvgProjected() if projects else FedAvg()
    data = toys.federation(clients=3, examples=3)  # few examples: classes are missing
    ours, theirs = (
        toys.result(toys.experiment(each, data, plan=Plan(rounds=3))) for each in (method, plain)
    )
    assert ours["parameters_sha256"] != theirs["parameters_sha256"]


def skewed(method):
    """A client with classes 0 (8 times) and 1 (once) of three, its model, one batch of all."""
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0] * 8 + [1])
    model = toys.model_for(method, toys.federation(), "linear")
    client = toys.client(toys.Examples(x, y), model)
    return client, model.init(0), Batch(x, y, None, torch.arange(9))


def test_fedrs_scales_the_logits_of_absent_classes():
    client, params, batch = skewed(FedRS())
    logits = client.model.logits(params, batch.x)
    restricted = logits * torch.tensor([1.0, 1.0, 0.5])
    expected = -(restricted[torch.arange(9), batch.y] - restricted.exp().sum(1).log()).mean()
    assert float(FedRS(alpha=0.5).local_loss(client, {}, params, params, batch)) == pytest.approx(
        float(expected), rel=1e-5
    )


def test_fedlc_shifts_logits_by_rarity():
    client, params, batch = skewed(FedLC())
    logits = client.model.logits(params, batch.x)
    calibrated = logits - 2.0 * torch.tensor([8**-0.25, 1.0, 1e-8**-0.25])
    expected = F.cross_entropy(calibrated, batch.y)
    found = FedLC(tau=2.0).local_loss(client, {}, params, params, batch)
    assert float(found) == pytest.approx(float(expected), rel=1e-5)
    assert torch.isfinite(found)


@pytest.mark.parametrize(("projection_head", "width"), [(True, 7), (False, 5)])
def test_moon_contrasts_with_the_received_and_the_last_model(projection_head, width):
    method = MOON(mu=2.0, temperature=0.25, dimensions=7, projection_head=projection_head)
    client, params, batch = skewed(method)
    received, last = client.model.init(1), client.model.init(2)

    def representations(values):
        return client.model.features(values, batch.x).double().numpy()

    def cosine(a, b):
        return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)

    z, near, far = map(representations, (params, received, last))
    assert z.shape == (9, width)
    near, far = np.exp(cosine(z, near) / 0.25), np.exp(cosine(z, far) / 0.25)
    expected = float(client.loss(params, batch)) + 2.0 * -np.log(near / (near + far)).mean()
    others = [method._represent(client, values) for values in (received, last)]
    assert float(method.contrastive_loss(client, others, params, batch)) == pytest.approx(
        expected, rel=1e-5
    )
    assert float(method.contrastive_loss(client, None, params, batch)) == pytest.approx(
        float(client.loss(params, batch))
    )


def test_moon_remembers_its_own_model():
    made = toys.experiment(MOON(), plan=Plan(rounds=1))
    progress = made.run(made.start())
    kept = toys.state(made, "client-0")["last"]
    assert set(kept) == set(made.setup.model.names)
    assert not tree.equal(kept, progress.server)


@pytest.mark.parametrize("projection_head", [True, False])
def test_moon_needs_an_encoder_and_a_head(projection_head):
    with pytest.raises(
        SettingError, match="moon needs a model with an encoder and a linear head, got Sequential"
    ):
        MOON(projection_head=projection_head).network(nn.Sequential(nn.Linear(2, 2)), 2)
