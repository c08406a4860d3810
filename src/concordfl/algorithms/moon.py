"""MOON: local representations are drawn to the global model's and away from those of the client's
own last model.

Li, He, Song: Model-Contrastive Federated Learning, CVPR 2021. Departures: none; a client's first
round has no contrastive term. `projection_head = false` is for comparisons on one network. The two
other models stand still during a round: their representations are computed once per round, not once
per batch.
"""

from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import (
    About,
    Batch,
    Client,
    Degenerate,
    Mean,
    Model,
    NonNegative,
    Params,
    Positive,
    Rows,
    Tree,
    Width,
    client_step,
    encoder_and_head,
    weighted_loss,
)
from .fedavg import FedAvg


class Projected(nn.Module):
    """A network whose head stands on a two-layer projection of its features."""

    def __init__(self, module: nn.Module, dimensions: int) -> None:
        super().__init__()
        encoder, head = encoder_and_head(module, "moon")
        width = head.in_features
        projection = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, dimensions))
        self.encoder = nn.Sequential(encoder, projection)
        self.head = nn.Linear(dimensions, head.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encoder(inputs)))


@dataclass(frozen=True)
class MOON(FedAvg):
    about = About(
        "MOON",
        "Li et al.",
        2021,
        travels="the model",
        private="data, last local model",
        cost="about 2",
    )

    mu: NonNegative = 1.0  # μ; 0 is FedAvg on the same network
    temperature: Positive = 0.5  # τ
    # without it the network is that of other methods, and its features are what is contrasted
    projection_head: bool = True
    dimensions: Width = 256  # of the projection

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        if self.projection_head:
            return Projected(module, self.dimensions)
        encoder_and_head(module, "moon")
        return module

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"last": None}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        others = (
            None
            if state["last"] is None
            else [self._represent(client, params) for params in (message, state["last"])]
        )
        trained = client.fit(message, partial(self.contrastive_loss, client, others))
        return {"last": trained}, Mean(trained, client.size, around=message)

    def _represent(self, client: Client, params: Params) -> Tensor:
        return client.over(None, lambda inputs: client.model.features(params, inputs))

    def contrastive_loss(
        self, client: Client, others: list[Tensor] | None, params: Params, batch: Batch
    ) -> Tensor:
        """The objective's loss, and μ times the cross-entropy of telling the global model's
        representation from the last one's.
        """
        z = client.model.features(params, batch.x)
        outputs = client.model.call(params, z, part="head")
        loss = client.objective.losses(outputs, batch.y)
        if others is not None:
            similar = [F.cosine_similarity(z, other[batch.index].to(z.device)) for other in others]
            choice = torch.stack(similar, dim=1) / self.temperature
            loss = loss + self.mu * -choice.log_softmax(1)[:, 0]
        return weighted_loss(loss, batch)

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        if self.mu == 0:
            network = " (the network has a projection all the same)" if self.projection_head else ""
            return Degenerate("fedavg", f"mu is 0{network}")
        return None
