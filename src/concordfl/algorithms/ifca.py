"""IFCA: K models; in every round a client takes the one that fits its data best, and trains it.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, NeurIPS
2020. Of the two variants this is model averaging. Departures: all layers are a cluster's own, where
the paper's experiment on FEMNIST shares all but the last ones; a model that nobody takes keeps its
parameters. Clients count alike in a model's average, as in the paper, unless `average` is
"size".
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Average,
    Chosen,
    Client,
    Cohort,
    Degenerate,
    Mean,
    Model,
    ModelCount,
    Params,
    Rows,
    Task,
    Tree,
    client_step,
)


@dataclass(frozen=True)
class IFCA(Algorithm):
    about = About(
        "IFCA",
        "Ghosh et al.",
        2020,
        travels="K models down, one up",
        private="data",
        cost="about 2.5",
    )
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the choice of its model"
    chooses: ClassVar[bool] = True

    num_models: ModelCount = 3  # K
    average: Average = "equal"  # of the models of a cluster's clients

    def init_server(self, task: Task, seed: int) -> Tree:
        return {k: task.model.init(seed, index=k) for k in range(self.num_models)}

    def shared_models(self, server: Tree) -> Tree:
        """The models of the clusters."""
        return server

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        best = client.best(message)
        trained = client.fit(message[best])
        reply = {best: Mean(trained, client.weight(self.average), around=message[best])}
        return state, Chosen(reply, among=message)

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        total = cohort.sum(self.train, broadcast=server)
        return {
            k: total[k].mean(otherwise=params) if k in total else params
            for k, params in server.items()
        }

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        return {"best": client.best(message)}

    def unadapted(self, client: Client, message: Tree) -> Tree | None:
        return {"best": next(iter(message))} if len(message) == 1 else None

    def parameters(self, client: Client, state: Tree, message: Tree) -> Params:
        best: Params = message[state["best"]]
        return best

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"group": state["best"]}

    def degenerate(self, model: Model, server: Tree, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "it has one model") if self.num_models == 1 else None
