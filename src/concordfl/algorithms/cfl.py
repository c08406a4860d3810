"""CFL: when training stands still although single clients still pull, the cluster is split along what they disagree in.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization under Privacy
Constraints, TNNLS 2021. Departures: only clusters of more than two clients are split, without the paper's test of how similar
the halves are; `max_clusters` stops the splitting; under partial participation members that were not asked when their cluster
was split take the cluster with the least loss, as new clients do.
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
        replies = cohort.run(self.train, each={id: self.message(server, id) for id in cohort.ids})
        here = {id: next(iter(reply)) for id, reply in replies.items()}  # who has trained which model
        models, members, splits = dict(server["models"]), {**server["members"], **here}, list(server["splits"])
        for k in sorted(set(here.values())):
            ids = sorted(id for id in here if here[id] == k)
            trained = {id: replies[id][k] for id in ids}
            groups = self._split(trained, models[k], cohort, len(models))
            if groups is None:
                models[k] = tree.total(list(trained.values())).mean()
                continue
            new = max(models) + 1
            # Members that were not asked cannot be divided: like new clients they will take the half that fits them best.
            members = {id: member for id, member in members.items() if member != k or id in trained}
            for number, inside in ((k, groups == 0), (new, groups == 1)):
                chosen = [id for id, belongs in zip(ids, inside, strict=True) if belongs]
                models[number] = tree.total([trained[id] for id in chosen]).mean()
                members |= dict.fromkeys(chosen, number)
            splits.append([k, new, cohort.round])
        return {"models": models, "members": members, "splits": splits}

    def _split(self, trained: Mapping[str, Any], before: Params, cohort: Cohort, clusters: int) -> np.ndarray | None:
        """The two halves of a cluster whose mean stands still while its clients do not; None where it stays whole."""
        full = self.max_clusters is not None and clusters >= self.max_clusters
        if cohort.round < self.warm_up or full or len(trained) <= 2:
            return None
        updates = np.stack([_update(reply.mean(), before, cohort) for reply in trained.values()])
        sizes = np.array([reply.weight for reply in trained.values()])
        mean = np.linalg.norm((updates * sizes[:, None]).sum(0) / sizes.sum())
        longest = np.linalg.norm(updates, axis=1).max()
        return None if mean >= self.stopped or longest <= self.pulling else clustering.bipartition(updates)

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        k = client.best(message) if len(message) > 1 else next(iter(message))
        return state, {k: weighted(client.fit(message[k]), client.size)}

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
