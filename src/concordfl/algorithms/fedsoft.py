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
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from ..core import (
    ANY_KIND,
    About,
    Batch,
    Client,
    ClientId,
    Cohort,
    Count,
    Examples,
    Fraction,
    Key,
    Mean,
    ModelCount,
    ModelId,
    NonNegative,
    Params,
    Task,
    Tree,
    client_step,
    tree,
)
from ..toolbox import mixture
from ..toolbox.mixture import Models
from .skipping import SkipsModels, spread

MIN_IMPORTANCE = 1e-4  # importance of a cluster to a client


@tree.register
class FedSoftClient(NamedTuple):
    model: Params | None  # None until the client has trained
    importance: Tensor | None  # (S,); None until it is estimated
    estimated: int  # the round of that estimate


@tree.register
class FedSoftMixture(NamedTuple):
    """What a client predicts with: its own model, or the clusters' by their importance to it."""

    model: Params | None
    importance: Tensor  # (S,) of sum 1


@tree.register
class FedSoftDraw(NamedTuple):
    """What a client is sent that some clusters have drawn."""

    centres: Models
    drawn_by: list[ModelId]


@dataclass(frozen=True)
class FedSoft(SkipsModels):
    about = About(
        "FedSoft",
        "Ruan and Joe-Wong",
        2022,
        travels="K models down, K up; which of them a client holds, with skip_below",
        private="data, importance",
        cost="about 2",
    )
    supports = ANY_KIND
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "the importance of the clusters to it"
    public_state: ClassVar[frozenset[str]] = frozenset({"model"})  # it travels, times its weights

    num_models: ModelCount = 3  # S
    penalty: NonNegative = 0.1  # λ
    interval: Count = 2  # τ: rounds between estimates of the importance
    # clients that each cluster draws by importance and averages equally; None: all, weighted by it
    drawn: Count | None = None
    # centres of less importance to a client are not sent to it: it says which; 0: all are
    skip_below: Fraction = 0.0
    recheck_every: Count = 10  # rounds before the first skip, and until it is sent all again

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_skipping()

    def init_server(self, task: Task, seed: int) -> Models:
        return {k: task.model.init(seed, index=k) for k in range(self.num_models)}

    def init_client(self, client: Client, message: Models) -> FedSoftClient:
        return FedSoftClient(model=None, importance=None, estimated=0)

    def shared_models(self, server: Models) -> Tree:
        """The models of the clusters."""
        return server

    @client_step
    def train(
        self, client: Client, state: FedSoftClient, message: Models
    ) -> tuple[FedSoftClient, Tree]:
        importance, estimated = self._estimate(client, state, message)
        own = self._fit(client, state.model, importance, message)
        shares: dict[ModelId, float] = dict(enumerate(importance.tolist()))
        reply = {
            k: Mean(own, client.size * shares[k], around=centre) for k, centre in message.items()
        }
        return FedSoftClient(own, importance, estimated), reply

    @client_step
    def tell_importance(
        self, client: Client, state: FedSoftClient, message: Models
    ) -> tuple[FedSoftClient, Tensor]:
        importance, estimated = self._estimate(client, state, message)
        return FedSoftClient(state.model, importance, estimated), client.size * importance

    @client_step
    def train_if_drawn(
        self, client: Client, state: FedSoftClient, message: FedSoftDraw
    ) -> tuple[FedSoftClient, Tree]:
        centres = message.centres
        importance, estimated = self._estimate(client, state, centres)  # as it was told
        own = self._fit(client, state.model, importance, centres)
        reply = {k: Mean(own, 1, around=centres[k]) for k in message.drawn_by}
        return FedSoftClient(own, importance, estimated), reply

    def round(self, server: Models, cohort: Cohort) -> Models:
        if self.drawn is None:
            return mixture.means(self.sum_held(cohort, self.train, server), server)
        each = self.messages(cohort, server)
        told = cohort.run(self.tell_importance, broadcast=None if each else server, each=each)
        drawn_by = self._draw(told, cohort.random("drawn"))
        total = cohort.sum(
            self.train_if_drawn,
            each={
                id: FedSoftDraw(each[id] if each else server, clusters)
                for id, clusters in drawn_by.items()
            },
        )
        return mixture.means(total, server)

    def shares(self, state: FedSoftClient) -> dict[ModelId, float]:
        return {} if state.importance is None else dict(enumerate(state.importance.tolist()))

    def all_models(self, message: Models) -> Models:
        return message

    def with_models(self, message: Models, models: Models) -> Models:
        return models

    def _draw(
        self, importance: Mapping[ClientId, Tensor], key: Key
    ) -> dict[ClientId, list[ModelId]]:
        """The clusters that draw each client, in proportion to its importance times size."""
        ids = sorted(importance)
        drawn_by: dict[ClientId, list[ModelId]] = defaultdict(list)
        for k in range(self.num_models):
            chances = np.array([float(importance[id][k]) for id in ids])
            count = min(cast(int, self.drawn), int(np.count_nonzero(chances)))
            if not count:  # nobody was sent its centre
                continue
            for id in (
                key.child(k).numpy().choice(ids, count, replace=False, p=chances / chances.sum())
            ):
                drawn_by[str(id)].append(k)
        return drawn_by

    def _estimate(
        self, client: Client, state: FedSoftClient, centres: Models
    ) -> tuple[Tensor, int]:
        """The importance (S,), estimated anew if it is old, and the round of its estimate."""
        known = state.importance
        if (
            known is not None
            and client.round - state.estimated < self.interval
            and known[list(centres)].all()  # none has come back that it had skipped
        ):
            return known, state.estimated
        return self._importance(client, centres), client.round

    def _fit(
        self, client: Client, own: Params | None, importance: Tensor, centres: Models
    ) -> Params:
        shares: dict[ModelId, float] = dict(enumerate(importance.tolist()))

        def loss(params: Params, batch: Batch) -> Tensor:
            pulls = [shares[k] * client.model.sq_dist(params, near) for k, near in centres.items()]
            return client.loss(params, batch) + self.penalty / 2 * torch.stack(pulls).sum()

        start = mixed(centres, importance[list(centres)]) if own is None else own
        return client.fit(start, loss)

    def _importance(self, client: Client, centres: Models) -> Tensor:
        """(S,) the share of the client's examples on which each cluster has the least loss,
        floored; 0 of those that it was not sent.
        """
        if len(centres) == 1:
            return spread(torch.ones(1, dtype=torch.float64), centres, self.num_models)
        best = client.losses_each(centres).argmin(1)
        counts = torch.bincount(best, minlength=len(centres)).double()
        return spread((counts / client.size).clamp_min(MIN_IMPORTANCE), centres, self.num_models)

    def adapt(
        self, client: Client, state: FedSoftClient, message: Models, *, new: bool
    ) -> FedSoftMixture:
        importance = state.importance
        if importance is None:
            importance = self._importance(client, message)
        return FedSoftMixture(state.model, importance / importance.sum())

    def personal_model(self, client: Client, state: FedSoftClient) -> Params | None:
        return state.model

    def predict(
        self, client: Client, state: FedSoftMixture, message: Models, examples: Examples
    ) -> Tensor:
        """A participant's own model; a client without one mixes the clusters' predictions by their
        importance to it.
        """
        if state.model is not None:
            return client.predictions(state.model, examples)
        return mixture.predict(client, message, state.importance, examples)

    def module(self, client: Client, state: FedSoftMixture, message: Models) -> nn.Module:
        if state.model is not None:
            return client.module(state.model)
        return mixture.module(client, message, state.importance)

    def inspect(self, client: Client, state: FedSoftMixture, message: Models) -> dict[str, Any]:
        return {"group": int(state.importance.argmax()), "weights": state.importance}


def mixed(centres: Models, importance: Tensor) -> Params:
    """Σ u_s c_s / Σ u_s: where a client begins."""
    shares = importance / importance.sum()
    scaled = [
        tree.scale(centre, float(share))
        for centre, share in zip(centres.values(), shares, strict=True)
    ]
    whole: Params = tree.total(scaled)
    return whole
