"""Expectation-maximisation over K shared models: what every method with a mixture has in common.

Shapes: N examples of a client, K models, Y classes. Responsibilities γ (N, K) and mixture weights ω
(K) are doubles.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..core.client import Client, Examples, ModelId
from ..core.model import Params
from ..core.tree import Weighted

MIN_WEIGHT = 1e-12  # of ω, so that no model is dead for a client for ever
Models = Mapping[ModelId, Params]


def responsibilities(losses: Tensor, omega: Tensor, log_prior: Tensor | float = 0.0) -> Tensor:
    """(N, K) γ ∝ ω · exp(-loss) / prior, normalised over models, in log space."""
    return (omega.clamp_min(MIN_WEIGHT).log() - losses.double() - log_prior).softmax(dim=1)


def expect(
    client: Client, models: Models, omega: Tensor, log_prior: Tensor | float = 0.0
) -> Tensor:
    """(N, K) the client's responsibilities; a single model has all, whatever its losses."""
    if len(models) == 1:
        return torch.ones((client.size, 1), dtype=torch.float64)
    return responsibilities(client.losses_each(models), omega, log_prior)


class Settled(NamedTuple):
    gamma: Tensor  # (N, K)
    omega: Tensor  # (K,)
    steps: int  # E-steps until ω stood still


def settle(
    losses: Tensor, log_prior: Tensor | float = 0.0, steps: int = 200, tolerance: float = 1e-6
) -> Settled:
    """γ and ω of a client that meets fixed models: E-steps from equal weights until ω settles."""
    omega = torch.full((losses.shape[1],), 1 / losses.shape[1], dtype=torch.float64)
    for step in range(1, steps + 1):  # noqa: B007 - how many were needed is part of the answer
        gamma = responsibilities(losses, omega, log_prior)
        before, omega = omega, gamma.mean(0)
        if (omega - before).abs().max() < tolerance:
            break
    return Settled(gamma, omega, step)


def train_each(
    client: Client, models: Models, gamma: Tensor, purpose: str = "fit", epochs: int | None = None
) -> dict[ModelId, Params]:
    """Every model trained on the examples, weighted by its responsibility.

    Shuffles do not depend on the model.
    """
    return {
        model: client.fit(params, weight=gamma[:, index], purpose=purpose, epochs=epochs)
        for index, (model, params) in enumerate(models.items())
    }


def predict(client: Client, models: Models, omega: Tensor, examples: Examples) -> Tensor:
    """What the mixture predicts, as class probabilities (N, Y): Σ_k ω_k times what model k
    predicts; ω (K,), or (N, K) by example.
    """
    if omega.ndim == 1:
        models, omega = with_share(models, omega)
    return average([client.predictions(params, examples) for params in models.values()], omega)


def with_share(models: Models, omega: Tensor) -> tuple[Models, Tensor]:
    """Without the models of weight 0, which say nothing; ω (…, K)."""
    kept = [index for index in range(len(models)) if omega[..., index].any()]
    ids = list(models)
    return {ids[index]: models[ids[index]] for index in kept}, omega[..., kept]


def means(totals: Mapping[ModelId, Weighted], before: Models) -> dict[ModelId, Params]:
    """The models' means over clients; one that nobody was sent stays as it is."""
    return {
        k: totals[k].mean(otherwise=params) if k in totals else params
        for k, params in before.items()
    }


def average(predictions: Sequence[Tensor], omega: Tensor) -> Tensor:
    """Σ_k ω_k times what model k predicts, as doubles; ω (K,), or (N, K) by example."""
    stacked = torch.stack([each.double() for each in predictions], dim=-1)  # (N, K) or (N, Y, K)
    by_example = omega.ndim == 2 and stacked.ndim == 3
    return (stacked * (omega[:, None] if by_example else omega)).sum(-1)


class Mixture(nn.Module):
    """`predict` with weights ω (K,) as a module: K predicting networks and their weights."""

    def __init__(self, networks: Iterable[nn.Module], weights: Tensor) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.weights = nn.Buffer(weights.double())

    def forward(self, inputs: Tensor) -> Tensor:
        return average([network(inputs) for network in self.networks], self.weights)


def module(client: Client, models: Models, omega: Tensor) -> Mixture:
    return Mixture(map(client.module, models.values()), omega)


def log_likelihood(client: Client, models: Models, omega: Tensor, examples: Examples) -> Tensor:
    """(N,) log Σ_k ω_k exp(-loss of model k); ω (K,), or (N, K) by example."""
    losses = client.losses_each(models, examples).double()
    return (omega.clamp_min(MIN_WEIGHT).log() - losses).logsumexp(1)


def by_model(models: Mapping[ModelId, object], values: Tensor) -> dict[ModelId, Tensor]:
    """The columns of `values` (…, K) under the models' ids: how they are kept, as K may shrink."""
    return {model: values[..., index].clone() for index, model in enumerate(models)}


def columns(
    models: Mapping[ModelId, object], kept: Mapping[ModelId, Tensor], otherwise: float = 0.0
) -> Tensor:
    """(…, K) what is kept for the models that are still there, `otherwise` for those that are new
    to a client.
    """
    alike = next(iter(kept.values()))
    return torch.stack(
        [kept[k] if k in kept else torch.full_like(alike, otherwise) for k in models], dim=-1
    )


def renormalised(gamma: Tensor) -> Tensor:
    """γ over fewer models; equal weights where nothing is left."""
    total = gamma.sum(1, keepdim=True)
    return torch.where(total > MIN_WEIGHT, gamma / total.clamp_min(MIN_WEIGHT), 1 / gamma.shape[1])
