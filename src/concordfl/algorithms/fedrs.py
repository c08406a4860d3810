"""FedRS: in local training the logits of classes that a client does not have are scaled down.

Li, Zhan: FedRS: Federated Learning with Restricted Softmax for Label Distribution Non-IID Data, KDD
2021. Departures: none.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core import (
    About,
    Batch,
    Client,
    Degenerate,
    Model,
    Params,
    Probability,
    Rows,
    Tree,
    weighted_loss,
)
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedRS(FedAvg):
    about = About("FedRS", "Li and Zhan", 2021, travels="the model", private="data", cost="1")
    supports = frozenset({"classification"})

    alpha: Probability = 0.5  # α; 1 is FedAvg

    def local_loss(
        self, client: Client, state: Tree, message: Params, params: Params, batch: Batch
    ) -> Tensor:
        scale = client.examples.cached("restricted softmax", lambda: self._scale(client))
        logits = client.model.logits(params, batch.x)
        restricted = logits * scale.to(logits.device)
        return weighted_loss(client.objective.losses(restricted, batch.y), batch)

    def _scale(self, client: Client) -> Tensor:
        """(Y,) 1 for a class that the client has, α for one that it has not."""
        return torch.where(client.label_counts() > 0, 1.0, self.alpha).float()

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        if self.alpha == 1:
            return Degenerate("fedavg", "alpha is 1")
        if rows and not any(row.get("absent_classes", 1) for row in rows.values()):
            return Degenerate("fedavg", "every client has examples of all classes")
        return None

    def inspect(self, client: Client, state: Tree, message: Params) -> dict[str, Any]:
        return {"absent_classes": int((client.label_counts() == 0).sum())}
