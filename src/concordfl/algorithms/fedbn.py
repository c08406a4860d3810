"""FedBN: normalisation layers stay at the client, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021. Departures: a client that was not in training begins with the initial
layers and estimates their running statistics on its own examples.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

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
    Params,
    Rows,
    Task,
    Tree,
    client_step,
    tree,
)

FORWARD_PASSES = 50  # mini-batches after which a running mean has forgotten where it began


@dataclass(frozen=True)
class FedBN(Algorithm):
    about = About(
        "FedBN",
        "Li et al.",
        2021,
        travels="the other layers",
        private="data, normalising layers",
        cost="1",
    )
    supports = ANY_KIND
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the running statistics of its normalisation layers"

    def init_server(self, task: Task, seed: int) -> Params:
        private = set(task.model.normalisation_names)
        return {name: value for name, value in task.model.init(seed).items() if name not in private}

    def init_client(self, client: Client, message: Params) -> Tree:
        start, names = client.model.init(client.seed), client.model.normalisation_names
        return {"layers": tree.subset(start, names)}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        trained = client.fit({**message, **state["layers"]})
        layers = tree.subset(trained, client.model.normalisation_names)
        shared = tree.subset(trained, message)
        return {"layers": layers}, Mean(shared, client.size, around=message)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        if client.has_state or not state["layers"]:
            return state
        return {"layers": _with_statistics(client, {**message, **state["layers"]})}

    def tune(self, client: Client, state: Tree, message: Params, epochs: int) -> Params:
        return client.fit({**message, **state["layers"]}, epochs=epochs, purpose="tune")

    def unadapted(self, client: Client, message: Params) -> Tree | None:
        return None if client.model.normalisation_names else self.init_client(client, message)

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        return {**state["layers"], **message}

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        if model.normalisation_names:
            return None
        return Degenerate("fedavg", "the network has no normalisation layers")


def _with_statistics(client: Client, params: Params) -> Params:
    """The normalisation layers after forward passes in train mode: their running statistics are the
    client's.
    """
    names = client.model.normalisation_names
    with client.model.trained(params, only=names) as (live, _), torch.no_grad():

        def look(seen: int, batch: Batch) -> int:
            client.model.logits(live, batch.x)
            return seen + 1

        client.fold(look, 0, steps=FORWARD_PASSES, purpose="statistics")
        return tree.subset(client.model.snapshot(), names)
