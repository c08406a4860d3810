"""SCAFFOLD: local steps are corrected by how far the client's gradients were from those of all.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020. Algorithm 1, with option II for the control variates; numbers in the
code are the paper's equations. η_g is `aggregation.server_lr`. Clients count alike, as in the
paper, whatever their number of examples. Departure: local steps may have momentum, which the
paper's have not; what a client has moved is then divided by what that momentum makes of its steps,
so that a control variate stays a mean of gradients.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Batch,
    Client,
    ClientId,
    Cohort,
    Mean,
    Params,
    Task,
    Total,
    Tree,
    client_step,
    tree,
)


@tree.register
class ScaffoldServer(NamedTuple):
    params: Params  # x
    control: Params  # c: the mean of all clients' own


@dataclass(frozen=True)
class Scaffold(Algorithm):
    about = About(
        "SCAFFOLD",
        "Karimireddy et al.",
        2020,
        travels="the model, control variates",
        private="data",
        cost="1",
    )
    supports = ANY_KIND
    needs_sgd: ClassVar[bool] = True
    # the server hears of its changes, but only in a sum
    public_state: ClassVar[frozenset[str]] = frozenset({"control"})

    def init_server(self, task: Task, seed: int) -> ScaffoldServer:
        params = task.model.init(seed)
        return ScaffoldServer(params, tree.map(torch.zeros_like, task.model.weights(params)))

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"control": {}}  # c_i = 0

    @client_step
    def train(self, client: Client, state: Tree, message: ScaffoldServer) -> tuple[Tree, Tree]:
        start, device = message.params, client.model.device
        # c - c_i; in a sum, what is absent counts as zero
        correction = tree.add(message.control, tree.scale(state["control"], -1))
        correction = {name: value.to(device) for name, value in correction.items()}

        def loss(params: Params, batch: Batch) -> Tensor:
            """Its gradient is g_i(y) - c_i + c (3)."""
            linear = [(value * params[name]).sum() for name, value in correction.items()]
            return client.loss(params, batch) + torch.stack(linear).sum()

        trained = client.fit(start, loss)
        reach = client.training.rate(client.round) * client.training.plain_steps(client.num_steps)
        # (4), option II: c_i+ - c_i = (x - y) / (K η_l) - c
        change = {
            name: (start[name] - trained[name]) / reach - control
            for name, control in message.control.items()
        }
        reply = {"params": Mean(trained, 1, around=start), "control": Total(change)}
        return {"control": tree.add(state["control"], change)}, reply

    def round(self, server: ScaffoldServer, cohort: Cohort) -> ScaffoldServer:
        total = cohort.sum(self.train, broadcast=server)
        # (5): c + |S| / N times the mean of the changes
        change = tree.scale(total["control"], 1 / cohort.population)
        return ScaffoldServer(
            params=total["params"].mean(otherwise=server.params),
            control=tree.add(server.control, change),
        )

    def message(self, server: ScaffoldServer, client_id: ClientId | None) -> Params:
        return server.params

    def tune(self, client: Client, state: Tree, message: Params, epochs: int) -> Params:
        return client.fit(message, epochs=epochs, purpose="tune")

    def deployed(self, server: ScaffoldServer) -> dict[str, Tensor]:
        return server.params
