"""SCAFFOLD: local steps are corrected by how far the client's gradients were from those of all.

Karimireddy, Kale, Mohri, Reddi, Stich, Suresh: SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning, ICML 2020. Algorithm 1; numbers in the code are the paper's equations. η_g is
`aggregation.server_lr`. Clients count alike, as in the paper, whatever their number of examples.
Departures: a client's control variate is its gradient at the received model (option I) unless
`control` is "steps" (option II, which the paper's experiments have), as option II diverges with
this library's local steps on some data; local steps may have momentum, which the paper's have not:
what a client has moved is then divided by what that momentum makes of its steps.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, cast

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
        cost="about 2",
    )
    supports = ANY_KIND
    needs_sgd: ClassVar[bool] = True
    # the server hears of its changes, but only in a sum
    public_state: ClassVar[frozenset[str]] = frozenset({"control"})

    # a client's own: its gradient at the received model, or the mean of those of its local steps
    control: Literal["gradient", "steps"] = "gradient"

    def init_server(self, task: Task, seed: int) -> ScaffoldServer:
        params = task.model.init(seed)
        return ScaffoldServer(params, tree.map(torch.zeros_like, task.model.weights(params)))

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"control": {}}  # c_i = 0

    @client_step
    def train(self, client: Client, state: Tree, message: ScaffoldServer) -> tuple[Tree, Tree]:
        start = message.params
        # c - c_i; in a sum, what is absent counts as zero
        correction = tree.add(message.control, tree.scale(state["control"], -1))
        on_device = {name: value.to(client.model.device) for name, value in correction.items()}

        def loss(params: Params, batch: Batch) -> Tensor:
            """Its gradient is g_i(y) - c_i + c (3)."""
            linear = [(value * params[name]).sum() for name, value in on_device.items()]
            return client.loss(params, batch) + torch.stack(linear).sum()

        trained = client.fit(start, loss)
        if self.control == "gradient":
            control = _gradient(client, start)
        else:
            control = _mean_of_steps(client, start, trained, correction)
        change = tree.add(control, tree.scale(state["control"], -1))
        return {"control": control}, {
            "params": Mean(trained, 1, around=start),
            "control": Total(change),
        }

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


def _gradient(client: Client, params: Params) -> Params:
    """(4), option I: of all examples of the client."""

    def add(total: tuple[Params, int], batch: Batch) -> tuple[Params, int]:
        grads = tree.scale(client.grad(client.loss, params, batch), len(batch.y))
        return tree.add(total[0], grads), total[1] + len(batch.y)

    nothing: tuple[Params, int] = ({}, 0)
    total, examples = client.fold(add, nothing, epochs=1, purpose="control")
    return cast(Params, tree.scale(total, 1 / examples))


def _mean_of_steps(client: Client, start: Params, trained: Params, correction: Params) -> Params:
    """(4), option II: c_i - c + (x - y) / (K η_l)."""
    reach = client.training.rate(client.round) * client.training.plain_steps(client.num_steps)
    return {
        name: (start[name] - trained[name]) / reach - value for name, value in correction.items()
    }
