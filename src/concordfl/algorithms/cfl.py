"""CFL: when training stands still although single clients still pull, the cluster is split along
what they disagree in.

Sattler, Müller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multitask
Optimization under Privacy Constraints, TNNLS 2021. Departures: only clusters of more than two
clients are split, without the paper's test of how similar the halves are; `max_clusters` stops the
splitting; under partial participation members that were not asked when their cluster was split take
the cluster with the least loss, as new clients do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Client,
    ClientId,
    Cohort,
    CountOrZero,
    Degenerate,
    Mean,
    Model,
    ModelCount,
    Params,
    Positive,
    Rows,
    Task,
    Tree,
    client_step,
    tree,
)
from ..toolbox import clustering
from ..toolbox.mixture import Models


@tree.register
class CFLServer(NamedTuple):
    models: dict[int, Params]
    members: dict[ClientId, int]  # the clusters of those who have been asked
    splits: list[list[int]]  # [cluster, cluster that was split off, round]
    lengths: dict[int, list[float]]  # of the last round: mean update, longest update


@dataclass(frozen=True)
class CFL(Algorithm):
    about = About("CFL", "Sattler et al.", 2021, travels="a model", private="data", cost="1")
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the choice of its cluster"

    stopped: Positive = 0.4  # ε1: a cluster stands still if its mean update is shorter
    pulling: Positive = 1.6  # ε2: and clients disagree if the longest update is longer
    warm_up: CountOrZero = 20  # rounds without splits
    max_clusters: ModelCount | None = None

    def init_server(self, task: Task, seed: int) -> CFLServer:
        return CFLServer({0: task.model.init(seed)}, members={}, splits=[], lengths={})

    def round(self, server: CFLServer, cohort: Cohort) -> CFLServer:
        replies = cohort.run(self.train, each={id: self.message(server, id) for id in cohort.ids})
        # who has trained which model
        here: dict[ClientId, int] = {id: next(iter(reply)) for id, reply in replies.items()}
        models, members = dict(server.models), {**server.members, **here}
        splits, lengths = list(server.splits), dict(server.lengths)
        for k in sorted(set(here.values())):
            ids = sorted(id for id in here if here[id] == k)
            trained = {id: replies[id][k] for id in ids}
            updates = _updates(trained, models[k], cohort)
            lengths[k] = [updates.mean, updates.longest]
            if not self._splits(updates, cohort.round, len(models)):
                models[k] = _mean(list(trained.values()), k, models[k], cohort)
                continue
            groups, new = clustering.bipartition(updates.each.numpy()), max(models) + 1
            before = models[k]
            # Members that were not asked cannot be divided: like new clients they will take the
            # half that fits them best.
            members = {id: member for id, member in members.items() if member != k or id in trained}
            for number, inside in ((k, groups == 0), (new, groups == 1)):
                chosen = [id for id, belongs in zip(ids, inside, strict=True) if belongs]
                models[number] = _mean([trained[id] for id in chosen], number, before, cohort)
                members |= dict.fromkeys(chosen, number)
            splits.append([k, new, cohort.round])
        return CFLServer(models, members, splits, lengths)

    def _splits(self, updates: "Updates", round: int, clusters: int) -> bool:
        """Whether a cluster's mean stands still while its clients do not."""
        full = self.max_clusters is not None and clusters >= self.max_clusters
        disagree = updates.mean < self.stopped and updates.longest > self.pulling
        return disagree and round >= self.warm_up and not full and len(updates.each) > 2

    @client_step
    def train(self, client: Client, state: Tree, message: Models) -> tuple[Tree, Tree]:
        k = client.best(message) if len(message) > 1 else next(iter(message))
        return state, {k: Mean(client.fit(message[k]), client.size, around=message[k])}

    def message(self, server: CFLServer, client_id: ClientId | None) -> dict[int, Params]:
        """A client's own cluster; all of them to one that has none yet, which takes the one that
        fits its data best.
        """
        k = None if client_id is None else server.members.get(client_id)
        return server.models if k is None else {k: server.models[k]}

    def adapt(self, client: Client, state: Tree, message: Models, *, new: bool) -> Tree:
        return {"best": client.best(message)}

    def unadapted(self, client: Client, message: Models) -> Tree | None:
        return {"best": next(iter(message))} if len(message) == 1 else None

    def parameters(self, client: Client, state: Tree, message: Models) -> Params:
        return message[state["best"]]

    def inspect(self, client: Client, state: Tree, message: Models) -> dict[str, Any]:
        return {"group": state["best"]}

    def describe(self, server: CFLServer) -> dict[str, Any]:
        """Also the lengths (mean update, longest update) of every cluster's last round: what ε1 and
        ε2 are compared with.
        """
        return {
            "clusters": len(server.models),
            "splits": server.splits,
            "lengths": server.lengths,
        }

    def degenerate(self, model: Model, server: CFLServer, rows: Rows) -> Degenerate | None:
        if len(server.models) > 1:
            return None
        mean, longest = server.lengths.get(0, [0.0, 0.0])
        return Degenerate(
            "fedavg",
            f"no cluster was split (the last mean update is {mean:.2g} long, the longest "
            f"{longest:.2g}; stopped = {self.stopped:g}, pulling = {self.pulling:g}, warm_up = "
            f"{self.warm_up})",
        )


class Updates(NamedTuple):
    """How a cluster's clients have moved its model."""

    each: Tensor  # (C, D)
    mean: float  # length of the mean update
    longest: float  # length of the longest update


def _updates(trained: Mapping[str, Any], before: Params, cohort: Cohort) -> Updates:
    # In torch, on one thread as all else: numpy's norms depend on how many threads BLAS has.
    each = torch.stack([_update(reply.mean(), before, cohort) for reply in trained.values()])
    sizes = torch.tensor([reply.weight for reply in trained.values()], dtype=torch.float64)
    mean = (each * sizes[:, None]).sum(0) / sizes.sum()
    return Updates(each, float(mean.norm()), float(each.norm(dim=1).max()))


def _update(params: Params, before: Params, cohort: Cohort) -> Tensor:
    weights = cohort.task.model.weights
    moved = tree.subtract(weights(params), weights(before))
    return torch.cat([value.flatten().double() for value in moved.values()])


def _mean(replies: Sequence[Tree], cluster: int, before: Params, cohort: Cohort) -> Params:
    mean: Params = cohort.total(replies, f"cluster-{cluster}").mean(otherwise=before)
    return mean
