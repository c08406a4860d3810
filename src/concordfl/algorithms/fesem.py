"""FeSEM: clients belong to the centre that is nearest to their own weights; centres are the means
of their clients.

Long, Xie, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning: Clients Clustering for Better
Personalization, World Wide Web 26, 2023. Departures: in a first round all clients train from one
common model, and k-means on their weights gives the centres, as differently seeded ones would
freeze; local training has a proximal term to the client's centre. Clients count alike in a centre,
as in the paper, unless `average` is "size".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Average,
    Batch,
    Client,
    ClientId,
    Cohort,
    Degenerate,
    Mean,
    Model,
    ModelCount,
    NonNegative,
    Params,
    Rows,
    Stage,
    Task,
    Tree,
    client_step,
    tree,
)
from ..toolbox import clustering
from ..toolbox.mixture import Models


@tree.register
class FeSEMServer(NamedTuple):
    centres: dict[int, Params]
    members: dict[ClientId, int]  # the nearest centre to each client, when it last trained


@dataclass(frozen=True)
class FeSEM(Algorithm):
    about = About("FeSEM", "Long et al.", 2023, travels="a model", private="data", cost="1")
    supports = ANY_KIND
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the choice of its cluster"

    num_models: ModelCount = 3  # K
    mu: NonNegative = 0.01  # weight of the proximal term
    average: Average = "equal"  # of the models of a centre's clients

    def init_server(self, task: Task, seed: int) -> FeSEMServer:
        return FeSEMServer(centres={0: task.model.init(seed)}, members={})

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        return (
            Stage("first", self.round, rounds=1, everyone=True, required=False),
            Stage("train", self.round, first_round=1),
        )

    def rounds_rule(self) -> str:
        return "all clients train once before, and give the first centres"

    def round(self, server: FeSEMServer, cohort: Cohort) -> FeSEMServer:
        centres = server.centres
        replies = cohort.run(self.train, each={id: self.message(server, id) for id in cohort.ids})
        if not server.members:
            nearest = self._first_groups(
                {id: reply.mean() for id, reply in replies.items()}, cohort
            )
        else:
            nearest = {id: _nearest(reply.mean(), centres, cohort) for id, reply in replies.items()}
        groups = {
            k: [replies[id] for id in sorted(replies) if nearest[id] == k]
            for k in sorted(set(nearest.values()))
        }
        moved = {
            k: cohort.total(group, f"centre-{k}").mean(otherwise=centres.get(k, centres[0]))
            for k, group in groups.items()
        }
        return FeSEMServer({**centres, **moved}, {**server.members, **nearest})

    def shared_models(self, server: FeSEMServer) -> Tree:
        """The models of the clusters."""
        return server.centres

    @client_step
    def train(self, client: Client, state: Tree, message: Models) -> tuple[Tree, Tree]:
        centre = message[client.best(message) if len(message) > 1 else next(iter(message))]

        def loss(params: Params, batch: Batch) -> Tensor:
            distance = client.model.sq_dist(params, centre)
            return client.loss(params, batch) + self.mu / 2 * distance

        trained = client.fit(centre, loss if self.mu else None)
        return state, Mean(trained, client.weight(self.average), around=centre)

    def _first_groups(
        self, trained: Mapping[ClientId, Params], cohort: Cohort
    ) -> dict[ClientId, int]:
        points = np.stack([_vector(trained[id], cohort).numpy() for id in sorted(trained)])
        groups = clustering.kmeans(points, self.num_models, cohort.random("centres"))
        return dict(zip(sorted(trained), groups.tolist(), strict=True))

    def message(self, server: FeSEMServer, client_id: ClientId | None) -> dict[int, Params]:
        """A client's own centre; all of them to one that has none yet, which takes the one that
        fits its data best.
        """
        k = None if client_id is None else server.members.get(client_id)
        return server.centres if k is None else {k: server.centres[k]}

    def adapt(self, client: Client, state: Tree, message: Models, *, new: bool) -> Tree:
        return {"best": client.best(message)}

    def unadapted(self, client: Client, message: Models) -> Tree | None:
        return {"best": next(iter(message))} if len(message) == 1 else None

    def parameters(self, client: Client, state: Tree, message: Models) -> Params:
        return message[state["best"]]

    def inspect(self, client: Client, state: Tree, message: Models) -> dict[str, Any]:
        return {"group": state["best"]}

    def degenerate(self, model: Model, server: FeSEMServer, rows: Rows) -> Degenerate | None:
        if self.num_models > 1:
            return None
        return Degenerate("fedprox" if self.mu else "fedavg", "it has one centre")


def _vector(params: Params, cohort: Cohort) -> Tensor:
    return torch.cat(
        [value.flatten().double() for value in cohort.task.model.weights(params).values()]
    )


def _nearest(params: Params, centres: Mapping[int, Params], cohort: Cohort) -> int:
    own = _vector(params, cohort)
    distances: dict[int, float] = {
        k: float((own - _vector(centre, cohort)).square().sum()) for k, centre in centres.items()
    }
    return min(distances, key=lambda k: distances[k])
