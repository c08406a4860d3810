"""FedSoft: a client is a mixture of clusters; its own model is trained with a pull to the centres, by their importance to it.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022. Departures: centres are the
means over the cohort, weighted by importance times size, where the original samples clients per cluster in proportion to that.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core import (
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Count,
    Examples,
    NonNegative,
    Params,
    Task,
    Tree,
    client_step,
    mixture,
    tree,
    weighted,
)

SMALLEST = 1e-4  # importance of a cluster to a client


@dataclass(frozen=True)
class FedSoft(Algorithm):
    about = About(
        "FedSoft", "Ruan and Joe-Wong", 2022, travels="K models down, K up", private="data, importance", cost="about 1"
    )
    personal: ClassVar[bool] = True
    public_state: ClassVar[frozenset[str]] = frozenset({"model"})  # it travels, times its weights

    num_models: Count = 3  # S
    penalty: NonNegative = 0.1  # λ
    interval: Count = 2  # τ: rounds between estimates of the importance

    def init_server(self, task: Task, seed: int) -> Tree:
        return {k: task.model.init(seed, index=k) for k in range(self.num_models)}

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"model": None, "importance": None, "estimated": 0}

    def shared_models(self, server: Tree) -> Tree:
        """The models of the clusters."""
        return server

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        stale = state["importance"] is None or client.round - state["estimated"] >= self.interval
        importance = self._importance(client, message) if stale else state["importance"]
        start = mixed(message, importance) if state["model"] is None else state["model"]

        def loss(params: Params, batch: Batch) -> Tensor:
            weights = client.model.weights
            pulls = [
                u * tree.sq_dist(weights(params), weights(c))
                for u, c in zip(importance.tolist(), message.values(), strict=True)
            ]
            return client.loss(params, batch) + self.penalty / 2 * torch.stack(pulls).sum()

        trained = client.fit(start, loss)
        reply = {k: weighted(trained, client.size * float(u)) for k, u in zip(message, importance, strict=True)}
        return {"model": trained, "importance": importance, "estimated": client.round if stale else state["estimated"]}, reply

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        total = cohort.sum(self.train, broadcast=server)
        return {k: total[k].mean(otherwise=params) for k, params in server.items()}

    def _importance(self, client: Client, centres: Tree) -> Tensor:
        """(S,) the share of the client's examples on which each cluster has the least loss, floored."""
        best = client.losses_each(centres).argmin(1)
        return (torch.bincount(best, minlength=len(centres)).double() / client.size).clamp_min(SMALLEST)

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        importance = self._importance(client, message) if state["importance"] is None else state["importance"]
        return {"model": state["model"], "importance": importance / importance.sum()}

    def predict(self, client: Client, state: Tree, message: Tree, examples: Examples) -> Tensor:
        """A participant's own model; a client without one mixes the clusters' predictions by their importance to it."""
        if state["model"] is not None:
            return client.probabilities(state["model"], examples)
        return mixture.predict(client, message, state["importance"], examples)

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"group": int(state["importance"].argmax()), "weights": state["importance"]}


def mixed(centres: Tree, importance: Tensor) -> Params:
    """Σ u_s c_s / Σ u_s: where a client begins."""
    shares = importance / importance.sum()
    scaled = [tree.scale(centre, float(share)) for centre, share in zip(centres.values(), shares, strict=True)]
    whole: Params = tree.total(scaled)
    return whole
