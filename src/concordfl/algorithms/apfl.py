"""APFL: a client predicts with a mixture of its own and the shared model's parameters, and learns how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. Departures: none; the share is moved once a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import (
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Examples,
    Params,
    Probability,
    Task,
    Tree,
    client_step,
    tree,
    weighted,
)


@dataclass(frozen=True)
class APFL(Algorithm):
    about = About("APFL", "Deng et al.", 2020, travels="the model", private="data, own model, share", cost="2")
    personal: ClassVar[bool] = True

    share: Probability = 0.5  # α at the start: how much of its own model a client uses
    adaptive: bool = True

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"own": message, "share": self.share}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        share, rate = state["share"], client.training.rate(client.round)
        optimizer = client.training.make_optimizer()

        def step(carry: tuple[Params, Params, Any], batch: Batch) -> tuple[Params, Params, Any]:
            w, v, moments = carry
            own_grads = client.grad(client.loss, mixed(v, w, share), batch)
            v = {name: value - rate * share * own_grads[name] if name in own_grads else value for name, value in v.items()}
            grads = client.grad(client.loss, w, batch)
            live = [w[name].clone() for name in grads]
            moments = optimizer.update(live, list(grads.values()), moments, rate)
            buffers = tree.subset(client.model.snapshot(), client.model.buffer_names)
            return {**w, **dict(zip(grads, live, strict=True)), **buffers}, v, moments

        start = optimizer.init([message[name] for name in client.model.weight_names])
        w, own, _ = client.fold(step, (message, state["own"], start))
        if self.adaptive:
            share = min(1.0, max(0.0, share - rate * self._slope(client, own, w, share)))
        return {"own": own, "share": share}, weighted(w, client.size)

    def _slope(self, client: Client, own: Params, w: Params, share: float) -> float:
        """⟨v - w, ∇f(v̄)⟩ over one batch."""

        def step(slope: float, batch: Batch) -> float:
            grads = client.grad(client.loss, mixed(own, w, share), batch)
            return slope + sum(float(((own[name] - w[name]) * grad).sum()) for name, grad in grads.items())

        return client.fold(step, 0.0, steps=1, purpose="share")

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def predict(self, client: Client, state: Tree, message: Params, examples: Examples) -> Tensor:
        return client.probabilities(mixed(state["own"], message, state["share"]), examples)

    def inspect(self, client: Client, state: Tree, message: Tree) -> dict[str, Any]:
        return {"share": state["share"]}


def mixed(own: Params, w: Params, share: float) -> Params:
    return {name: share * own[name] + (1 - share) * value for name, value in w.items()}
