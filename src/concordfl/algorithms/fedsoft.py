"""FedSoft: a client is a mixture of clusters; its own model is trained with a pull to the centres,
by their importance to it.

Ruan, Joe-Wong: FedSoft: Soft Clustered Federated Learning with Proximal Local Updating, AAAI 2022.
Departures: centres are the means over the cohort, weighted by importance times size; the original
draws clients per cluster in proportion to that and takes the plain mean, which `drawn` gives (the
server then sees every client's importance).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
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
    Key,
    Mean,
    ModelCount,
    NonNegative,
    Params,
    Task,
    Tree,
    client_step,
    tree,
)
from ..toolbox import mixture

MIN_IMPORTANCE = 1e-4  # importance of a cluster to a client


@dataclass(frozen=True)
class FedSoft(Algorithm):
    about = About(
        "FedSoft",
        "Ruan and Joe-Wong",
        2022,
        travels="K models down, K up",
        private="data, importance",
        cost="about 1",
    )
    personal: ClassVar[bool] = True
    public_state: ClassVar[frozenset[str]] = frozenset({"model"})  # it travels, times its weights

    num_models: ModelCount = 3  # S
    penalty: NonNegative = 0.1  # λ
    interval: Count = 2  # τ: rounds between estimates of the importance
    # clients that each cluster draws by importance and averages equally; None: all, weighted by it
    drawn: Count | None = None

    def init_server(self, task: Task, seed: int) -> Tree:
        return {k: task.model.init(seed, index=k) for k in range(self.num_models)}

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"model": None, "importance": None, "estimated": 0}

    def shared_models(self, server: Tree) -> Tree:
        """The models of the clusters."""
        return server

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        state = self._trained(client, self._estimated(client, state, message), message)
        shares = zip(message, state["importance"].tolist(), strict=True)
        own = state["model"]
        return state, {k: Mean(own, client.size * u, around=message[k]) for k, u in shares}

    @client_step
    def tell_importance(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        state = self._estimated(client, state, message)
        return state, client.size * state["importance"]

    @client_step
    def train_if_drawn(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        state = self._trained(client, state, message["centres"])
        own, centres = state["model"], message["centres"]
        return state, {k: Mean(own, 1, around=centres[k]) for k in message["drawn_by"]}

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        if self.drawn is None:
            total = cohort.sum(self.train, broadcast=server)
        else:
            drawn_by = self._draw(
                cohort.run(self.tell_importance, broadcast=server), cohort.random("drawn")
            )
            total = cohort.sum(
                self.train_if_drawn,
                each={id: {"centres": server, "drawn_by": names} for id, names in drawn_by.items()},
            )
        return {
            k: total[k].mean(otherwise=params) if k in total else params
            for k, params in server.items()
        }

    def _draw(self, importance: Mapping[str, Tensor], key: Key) -> dict[str, list[int]]:
        """The clusters that draw each client, in proportion to its importance times size."""
        ids, drawn_by = sorted(importance), defaultdict(list)
        for k in range(self.num_models):
            chances = np.array([float(importance[id][k]) for id in ids])
            count = min(cast(int, self.drawn), len(ids))
            for id in (
                key.child(k).numpy().choice(ids, count, replace=False, p=chances / chances.sum())
            ):
                drawn_by[str(id)].append(k)
        return drawn_by

    def _estimated(self, client: Client, state: Tree, centres: Tree) -> Tree:
        """With a fresh importance, if the last one is old."""
        if state["importance"] is not None and client.round - state["estimated"] < self.interval:
            return state
        return {**state, "importance": self._importance(client, centres), "estimated": client.round}

    def _trained(self, client: Client, state: Tree, centres: Tree) -> Tree:
        importance, weights = state["importance"], client.model.weights

        def loss(params: Params, batch: Batch) -> Tensor:
            near = zip(importance.tolist(), centres.values(), strict=True)
            pulls = [u * tree.sq_dist(weights(params), weights(centre)) for u, centre in near]
            return client.loss(params, batch) + self.penalty / 2 * torch.stack(pulls).sum()

        start = mixed(centres, importance) if state["model"] is None else state["model"]
        return {**state, "model": client.fit(start, loss)}

    def _importance(self, client: Client, centres: Tree) -> Tensor:
        """(S,) the share of the client's examples on which each cluster has the least loss,
        floored.
        """
        best = client.losses_each(centres).argmin(1)
        return (torch.bincount(best, minlength=len(centres)).double() / client.size).clamp_min(
            MIN_IMPORTANCE
        )

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        importance = (
            self._importance(client, message)
            if state["importance"] is None
            else state["importance"]
        )
        return {"model": state["model"], "importance": importance / importance.sum()}

    def predict(self, client: Client, state: Tree, message: Tree, examples: Examples) -> Tensor:
        """A participant's own model; a client without one mixes the clusters' predictions by their
        importance to it.
        """
        if state["model"] is not None:
            return client.probabilities(state["model"], examples)
        return mixture.predict(client, message, state["importance"], examples)

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"group": int(state["importance"].argmax()), "weights": state["importance"]}


def mixed(centres: Tree, importance: Tensor) -> Params:
    """Σ u_s c_s / Σ u_s: where a client begins."""
    shares = importance / importance.sum()
    scaled = [
        tree.scale(centre, float(share))
        for centre, share in zip(centres.values(), shares, strict=True)
    ]
    whole: Params = tree.total(scaled)
    return whole
