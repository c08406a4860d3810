"""FedBN: normalisation layers stay at the client, everything else is averaged.

Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
Normalization, ICLR 2021. Departures: a participant predicts with running statistics that it has
estimated anew under the averaged layers, unless `statistics` is "trained", which keeps those of its
last training; the average is by number of examples, where the paper counts clients alike. A client
that was not in training begins with the initial layers and estimates their statistics on its own
examples, or, if the participants' layers are averaged too (`new_start`), takes that average.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

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
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the running statistics of its normalisation layers"

    # what participants predict with: estimated on their examples after averaging, or as trained
    statistics: Literal["estimated", "trained"] = "estimated"
    # of new clients' layers; the average means that participants' layers travel, into a sum
    new_start: Literal["initial", "average"] = "initial"

    def init_server(self, task: Task, seed: int) -> Params:
        start = task.model.init(seed)
        return start if self.new_start == "average" else _shared(start, task.model)

    def init_client(self, client: Client, message: Params) -> Tree:
        start = {**client.model.init(client.seed), **message}
        return {"layers": tree.subset(start, client.model.normalisation_names)}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        start = {**message, **state["layers"]}
        trained = client.fit(start)
        layers = tree.subset(trained, client.model.normalisation_names)
        sent = start if self.new_start == "average" else message
        return {"layers": layers}, Mean(tree.subset(trained, sent), client.size, around=sent)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        shared = _shared(server, cohort.task.model)
        return cohort.sum(self.train, broadcast=shared).mean(otherwise=server)

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        as_they_are = (
            self.statistics == "trained" if client.has_state else self.new_start == "average"
        )
        if as_they_are or not set(state["layers"]) & set(client.model.buffer_names):
            return state
        return {"layers": _with_statistics(client, {**message, **state["layers"]})}

    def tune(self, client: Client, state: Tree, message: Params, epochs: int) -> Params:
        return client.fit({**message, **state["layers"]}, epochs=epochs, purpose="tune")

    def unadapted(self, client: Client, message: Params) -> Tree | None:
        known = set(client.model.normalisation_names) <= set(message)
        return self.init_client(client, message) if known else None

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        """What a participant has trained goes before the average that new clients start from; what
        a new client has tuned, before where it began.
        """
        own: Params = state["layers"]
        return {**message, **own} if client.has_state else {**own, **message}

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        if model.normalisation_names:
            return None
        return Degenerate("fedavg", "the network has no normalisation layers")


def _shared(params: Params, model: Model) -> Params:
    private = set(model.normalisation_names)
    return {name: value for name, value in params.items() if name not in private}


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
        return client.model.snapshot(names)
