"""FedLC: logits are calibrated by how rare a class is at the client.

Zhang, Li, Li, Xu, Wu, Ding, Wu: Federated Learning with Label Distribution Skew via Logits
Calibration, ICML 2022. Departures: the softmax runs over all classes, where the original's
denominator leaves the true one out; a class that is absent counts as 1e-8 examples, a large but
finite margin.
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
    weighted_loss,
)
from .fedavg import FedAvg

MIN_LABEL_COUNT = 1e-8  # of a class that the client does not have


@dataclass(frozen=True)
class FedLC(FedAvg):
    about = About("FedLC", "Zhang et al.", 2022, travels="the model", private="data", cost="1")
    supports = frozenset({"classification"})

    tau: NonNegative = 1.0  # τ; 0 is FedAvg

    def local_loss(
        self, client: Client, state: Tree, message: Params, params: Params, batch: Batch
    ) -> Tensor:
        margins = client.examples.cached("calibration", lambda: self._margins(client))
        logits = client.model.logits(params, batch.x)
        calibrated = logits - margins.to(logits.device)
        return weighted_loss(client.objective.losses(calibrated, batch.y), batch)

    def _margins(self, client: Client) -> Tensor:
        """(Y,) τ n_y^(-1/4), with the client's own counts."""
        return (self.tau * client.label_counts().clamp_min(MIN_LABEL_COUNT) ** -0.25).float()

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "tau is 0") if self.tau == 0 else None
