"""CFL: when training stands still although single clients still pull, the cluster is split along what they disagree in.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, TNNLS 2021. Departures: only clusters of more than two clients are split; `max_clusters` stops the splitting.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import (
    About,
    Algorithm,
    Client,
    Cohort,
    Count,
    CountOrZero,
    Examples,
    Params,
    Positive,
    Task,
    Tree,
    client_step,
    clustering,
    tree,
    weighted,
)


@dataclass(frozen=True)
class CFL(Algorithm):
    about = About("CFL", "Sattler et al.", 2021, travels="a model", private="data", cost="1")
    personal: ClassVar[bool] = True

    stopped: Positive = 0.4  # ε1: a cluster stands still if its mean update is shorter
    pulling: Positive = 1.6  # ε2: and clients disagree if the longest update is longer
    warm_up: CountOrZero = 20  # rounds without splits
    max_clusters: Count | None = None

    def init_server(self, task: Task, seed: int) -> Tree:
        return {"models": {0: task.model.init(seed)}, "members": {}, "splits": []}

    def round(self, server: Tree, cohort: Cohort) -> Tree:
        models, members = server["models"], {id: server["members"].get(id, 0) for id in cohort.ids}
        replies = cohort.run(self.train, each={id: models[k] for id, k in members.items()})
        members = {id: members[id] for id in replies}
        models, splits = dict(models), list(server["splits"])
        for k in sorted(set(members.values())):
            ids = sorted(id for id in members if members[id] == k)
            updates = np.stack([_update(replies[id].mean(), models[k], cohort) for id in ids])
            sizes = np.array([replies[id].weight for id in ids])
            groups = self._split(updates, sizes, cohort.round, len(models))
            before = models[k]
            numbers = [k] if groups is None else [k, max(models) + 1]
            for place, number in enumerate(numbers):
                inside = [id for at, id in enumerate(ids) if groups is None or groups[at] == place]
                models[number] = tree.total([replies[id] for id in inside]).mean(otherwise=before)
                members |= dict.fromkeys(inside, number)
            if groups is not None:
                splits.append([k, numbers[1], cohort.round])
        return {"models": models, "members": {**server["members"], **members}, "splits": splits}

    def _split(self, updates: np.ndarray, sizes: np.ndarray, round: int, clusters: int) -> np.ndarray | None:
        """The two halves of a cluster whose mean stands still while its clients do not; None where it stays whole."""
        mean = np.linalg.norm((updates * sizes[:, None]).sum(0) / sizes.sum())
        longest = np.linalg.norm(updates, axis=1).max()
        full = self.max_clusters is not None and clusters >= self.max_clusters
        if round < self.warm_up or full or len(updates) <= 2 or mean >= self.stopped or longest <= self.pulling:
            return None
        return clustering.bipartition(updates)

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        return state, weighted(client.fit(message), client.size)

    def message(self, server: Tree, client_id: str | None) -> Tree:
        """A client's own cluster; all of them to one that has none yet, which takes the one that fits its data best."""
        k = server["members"].get(client_id)
        return {k: server["models"][k]} if k is not None else server["models"]

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        return {"best": client.best(message)}

    def predict(self, client: Client, state: Tree, message: Tree, examples: Examples) -> Tensor:
        return client.probabilities(message[state["best"]], examples)

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"group": state["best"]}

    def describe(self, server: Mapping[str, Any]) -> dict[str, Any]:
        return {"clusters": len(server["models"]), "splits": server["splits"]}


def _update(params: Params, before: Params, cohort: Cohort) -> np.ndarray:
    weights = cohort.task.model.weights
    moved = tree.subtract(weights(params), weights(before))
    return torch.cat([value.flatten().double() for value in moved.values()]).numpy()
