"""FedAvg: clients train the common model, the server averages what they send by their number of
examples.

McMahan, Moore, Ramage, Hampson, Agüera y Arcas: Communication-Efficient Learning of Deep Networks
from Decentralized Data, AISTATS 2017. Departures: none; the average is over the clients that
answered.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Mean,
    Params,
    Task,
    Tree,
    client_step,
)


@dataclass(frozen=True)
class FedAvg(Algorithm):
    about = About("FedAvg", "McMahan et al.", 2017, travels="the model", private="data", cost="1")
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def local_loss(
        self, client: Client, state: Tree, message: Tree, params: Params, batch: Batch
    ) -> Tensor:
        return client.loss(params, batch)

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        loss = partial(self.local_loss, client, state, message)
        return state, Mean(client.fit(message, loss), client.size, around=message)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def tune(self, client: Client, state: Tree, message: Params, epochs: int) -> Params:
        return client.fit(message, epochs=epochs, purpose="tune")
