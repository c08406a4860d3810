"""FedEM: every client's distribution is a mixture of K shared ones, with weights of its own.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of
Distributions, NeurIPS 2021; equations (3)-(5) of the FedConceptEM paper. As in published code the
weighted loss is divided by the batch size, not by the sum of the weights. Departures: optimizer
state starts anew each round; models are averaged by responsibility unless `aggregate` is "size".
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..core import (
    ANY_KIND,
    About,
    Client,
    Cohort,
    Count,
    Degenerate,
    Examples,
    Fraction,
    Mean,
    Model,
    ModelCount,
    ModelId,
    Rows,
    Task,
    Tree,
    client_step,
)
from ..toolbox import mixture
from ..toolbox.mixture import Models
from .skipping import SkipsModels, spread


@dataclass(frozen=True)
class FedEM(SkipsModels):
    about = About(
        "FedEM",
        "Marfoq et al.",
        2021,
        travels="K models; which of them a client holds, with skip_below",
        private="data, mixture weights",
        cost="about 1.4 K",
    )
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its mixture weights"

    num_models: ModelCount = 3  # K
    # a client's weight in model k: n, or n times its ω
    aggregate: Literal["size", "responsibility"] = "responsibility"
    # models whose ω at a client is below are neither sent to it nor trained: it says which; 0: none
    skip_below: Fraction = 0.0
    recheck_every: Count = 10  # rounds before the first skip, and until it is sent all again

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_skipping()

    def init_server(self, task: Task, seed: int) -> Tree:
        return {k: task.model.init(seed, index=k) for k in range(self.num_models)}

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"omega": torch.full((self.num_models,), 1 / self.num_models, dtype=torch.float64)}

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        before = self.weights_before(state["omega"][list(message)])
        gamma = mixture.expect(client, message, before)  # (3)
        omega = gamma.mean(0)  # (4)
        trained = mixture.train_each(client, message, gamma)  # (5)
        sizes = torch.ones_like(omega) if self.aggregate == "size" else omega
        reply = {
            k: Mean(trained[k], client.size * float(share), around=message[k])
            for k, share in zip(trained, sizes, strict=True)
        }
        return {"omega": spread(omega, message, self.num_models)}, reply

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        total = self.sum_held(cohort, self.train, server)
        return mixture.means(total, server)

    def shares(self, state: Tree) -> dict[ModelId, float]:
        return dict(enumerate(state["omega"].tolist()))

    def all_models(self, message: Tree) -> Models:
        models: Models = message
        return models

    def with_models(self, message: Tree, models: Models) -> Tree:
        return models

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        if client.has_state:
            return state
        return {"omega": mixture.settle(client.losses_each(message)).omega}

    def predict(self, client: Client, state: Tree, message: Tree, examples: Examples) -> Tensor:
        return mixture.predict(client, message, state["omega"], examples)

    def module(self, client: Client, state: Tree, message: Tree) -> nn.Module:
        return mixture.module(client, message, state["omega"])

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"group": int(state["omega"].argmax()), "weights": state["omega"]}

    def degenerate(self, model: Model, server: Tree, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "it has one model") if self.num_models == 1 else None
