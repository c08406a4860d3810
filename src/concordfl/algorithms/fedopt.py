"""FedAdagrad, FedAdam and FedYogi: what the clients have moved on average is the gradient of an
adaptive optimizer at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization,
ICLR 2021. Algorithm 2, without bias correction and with v₋₁ = τ², the least it allows. Clients
count alike, as there, unless `average` is "size", as in its experiments. Departures: statistics of
normalisation layers are averaged, not stepped; the paper tunes the server's rate for every task,
the default is ours.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Average,
    Client,
    ClientId,
    Cohort,
    Fraction,
    Mean,
    Params,
    Positive,
    Task,
    Tree,
    client_step,
    tree,
)


@tree.register
class FedOptServer(NamedTuple):
    params: Params  # x
    first: Params  # m
    second: Params  # v


@dataclass(frozen=True)
class FedOpt(Algorithm):
    """What the three have in common."""

    supports = ANY_KIND
    averages: ClassVar[bool] = False  # its step at the server is its own

    server_lr: Positive = 0.03  # η
    beta1: Fraction = 0.9  # β1: how much of the old mean change is kept
    tau: Positive = 1e-3  # τ: the larger, the less adaptive
    average: Average = "equal"  # of the clients' models

    @abstractmethod
    def second_moment(self, past: Tensor, change: Tensor) -> Tensor:
        """v after a round with the mean change Δ."""

    def init_server(self, task: Task, seed: int) -> FedOptServer:
        params = task.model.init(seed)
        weights = task.model.weights(params)
        return FedOptServer(
            params,
            first=tree.map(torch.zeros_like, weights),
            second=tree.map(lambda weight: torch.full_like(weight, self.tau**2), weights),
        )

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        return state, Mean(client.fit(message), client.weight(self.average), around=message)

    def round(self, server: FedOptServer, cohort: Cohort) -> FedOptServer:
        weights = cohort.task.model.weights
        mean = cohort.sum(self.train, broadcast=server.params).mean(otherwise=server.params)
        change = tree.subtract(weights(mean), weights(server.params))  # Δ
        first = tree.map(lambda m, d: self.beta1 * m + (1 - self.beta1) * d, server.first, change)
        second = tree.map(self.second_moment, server.second, change)
        moved = tree.map(
            lambda x, m, v: x + self.server_lr * m / (v.sqrt() + self.tau),
            weights(server.params),
            first,
            second,
        )
        return FedOptServer({**mean, **moved}, first, second)

    def message(self, server: FedOptServer, client_id: ClientId | None) -> Params:
        return server.params

    def tune(self, client: Client, state: Tree, message: Params, epochs: int) -> Params:
        return client.fit(message, epochs=epochs, purpose="tune")

    def deployed(self, server: FedOptServer) -> dict[str, Tensor]:
        return server.params


@dataclass(frozen=True)
class FedAdagrad(FedOpt):
    about = About("FedAdagrad", "Reddi et al.", 2021, "the model", private="data", cost="1")
    vectorizes: ClassVar[bool] = True

    beta1: Fraction = 0.0  # as in the paper's experiments

    def second_moment(self, past: Tensor, change: Tensor) -> Tensor:
        return past + change.square()


@dataclass(frozen=True)
class FedAdam(FedOpt):
    about = About("FedAdam", "Reddi et al.", 2021, "the model", private="data", cost="1")
    vectorizes: ClassVar[bool] = True

    beta2: Fraction = 0.99  # β2: how much of the old mean square is kept

    def second_moment(self, past: Tensor, change: Tensor) -> Tensor:
        return self.beta2 * past + (1 - self.beta2) * change.square()


@dataclass(frozen=True)
class FedYogi(FedOpt):
    about = About("FedYogi", "Reddi et al.", 2021, "the model", private="data", cost="1")
    vectorizes: ClassVar[bool] = True

    beta2: Fraction = 0.99  # β2: one minus how fast v goes towards Δ²

    def second_moment(self, past: Tensor, change: Tensor) -> Tensor:
        square = change.square()
        return past - (1 - self.beta2) * square * torch.sign(past - square)
