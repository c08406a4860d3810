"""Ditto: beside FedAvg's model every client has one of its own, which is kept near the received
one.

Li, Hu, Beirami, Smith: Ditto: Fair and Robust Federated Learning Through Personalization, ICML
2021. Departure: the shared model is averaged by number of examples, where the paper counts clients
alike. The personal model is trained for the run's number of local epochs too.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Degenerate,
    Mean,
    Model,
    NonNegative,
    Params,
    Rows,
    Task,
    Tree,
    client_step,
)


@dataclass(frozen=True)
class Ditto(Algorithm):
    about = About(
        "Ditto", "Li et al.", 2021, travels="the model", private="data, own model", cost="2"
    )
    supports = ANY_KIND
    personal: ClassVar[bool] = True
    # its own model is what a client predicts with, and a new one has none
    accepts_new_clients: ClassVar[bool] = False

    penalty: NonNegative = 1.0  # λ

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"own": message}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        def near(params: Params, batch: Batch) -> Tensor:
            distance = client.model.sq_dist(params, message)
            return client.loss(params, batch) + self.penalty / 2 * distance

        own = client.fit(state["own"], near, purpose="personal")
        return {"own": own}, Mean(client.fit(message), client.size, around=message)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def personal_model(self, client: Client, state: Tree) -> Params:
        own: Params = state["own"]
        return own

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        """The personal model; of a participant that was never asked, what it has received."""
        own: Params = state["own"]
        return own

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        return Degenerate("local", "penalty is 0") if self.penalty == 0 else None
