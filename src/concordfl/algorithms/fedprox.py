"""FedProx: FedAvg with a proximal term that keeps local models near the received one.

Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, MLSys
2020. Departures: no inexact-solver tolerance; clients do the run's number of local epochs, as in
all later comparisons. They are drawn alike and averaged by number of examples, as in the paper's
experiments; its Algorithm 2 draws them by that number and averages alike.
"""

from dataclasses import dataclass

from torch import Tensor

from ..core import (
    About,
    Batch,
    Client,
    Degenerate,
    Model,
    NonNegative,
    Params,
    Rows,
    Tree,
)
from .fedavg import FedAvg


@dataclass(frozen=True)
class FedProx(FedAvg):
    about = About("FedProx", "Li et al.", 2020, travels="the model", private="data", cost="1")

    mu: NonNegative = 0.01  # μ

    def local_loss(
        self, client: Client, state: Tree, message: Params, params: Params, batch: Batch
    ) -> Tensor:
        distance = client.model.sq_dist(params, message)
        return client.loss(params, batch) + self.mu / 2 * distance

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "mu is 0") if self.mu == 0 else None
