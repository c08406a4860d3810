"""APFL: a client predicts with a mixture of its own and the shared model's parameters, and learns
how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. Departures: the shared model
is trained with the run's optimizer, the own one by plain steps of its rate; the share is moved once
a round.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

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
    Probability,
    Rows,
    Task,
    Tree,
    client_step,
    tree,
)

NEARLY = 0.01  # a share so near to 0 or 1 is taken for it
MOST = 0.9  # of the clients


@tree.register
class APFLClient(NamedTuple):
    own: Params  # v
    share: float  # α


@dataclass(frozen=True)
class APFL(Algorithm):
    about = About(
        "APFL", "Deng et al.", 2020, travels="the model", private="data, own model, share", cost="2"
    )
    supports = ANY_KIND
    personal: ClassVar[bool] = True

    share: Probability = 0.5  # α at the start: how much of its own model a client uses
    adaptive: bool = True

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> APFLClient:
        return APFLClient(own=message, share=self.share)

    @client_step
    def train(self, client: Client, state: APFLClient, message: Params) -> tuple[APFLClient, Tree]:
        share, rate = state.share, client.training.rate(client.round)
        optimizer = client.training.make_optimizer()

        def step(
            carry: tuple[Params, Params, Any, int], batch: Batch
        ) -> tuple[Params, Params, Any, int]:
            w, v, moments, number = carry
            # The shared model's draws stay FedAvg's.
            with client.random("own").child(number).torch_global():
                own_grads = client.grad(client.loss, mixed(v, w, share, client), batch)
            moved = {name: v[name] - rate * share * grad for name, grad in own_grads.items()}
            v = {**v, **moved, **_buffers(client)}
            grads = client.grad(client.loss, w, batch)
            live = [w[name].clone() for name in grads]
            moments = optimizer.update(live, list(grads.values()), moments, rate)
            w = {**w, **dict(zip(grads, live, strict=True)), **_buffers(client)}
            return w, v, moments, number + 1

        start = optimizer.init([message[name] for name in client.model.weight_names])
        w, own, _, _ = client.fold(step, (message, state.own, start, 0))
        if self.adaptive:
            share = min(1.0, max(0.0, share - rate * self._slope(client, own, w, share)))
        return APFLClient(own, share), Mean(w, client.size, around=message)

    def _slope(self, client: Client, own: Params, w: Params, share: float) -> float:
        """⟨v - w, ∇f(v̄)⟩ over one batch."""

        def step(slope: float, batch: Batch) -> float:
            grads = client.grad(client.loss, mixed(own, w, share, client), batch)
            return slope + sum(
                float(((own[name] - w[name]) * grad).sum()) for name, grad in grads.items()
            )

        return client.fold(step, 0.0, steps=1, purpose="share")

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def unadapted(self, client: Client, message: Params) -> APFLClient:
        return self.init_client(client, message)

    def parameters(self, client: Client, state: APFLClient, message: Params) -> Params:
        return mixed(state.own, message, state.share, client)

    def inspect(self, client: Client, state: APFLClient, message: Params) -> dict[str, Any]:
        return {"share": state.share}

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        shares = [row["share"] for row in rows.values() if "share" in row]
        shared, own = (sum(abs(share - end) < NEARLY for share in shares) for end in (0, 1))
        if shares and shared >= MOST * len(shares):
            used = f"{shared} of {len(shares)} clients use only the shared model (share 0)"
            return Degenerate("fedavg", used)
        if shares and own >= MOST * len(shares):
            used = f"{own} of {len(shares)} clients use only their own model (share 1)"
            return Degenerate("local", used)
        return None


def mixed(own: Params, w: Params, share: float, client: Client) -> Params:
    """v̄ = α v + (1 - α) w, with the buffers of v."""
    weights = {
        name: share * own[name] + (1 - share) * w[name] for name in client.model.weight_names
    }
    return {**own, **weights}


def _buffers(client: Client) -> Params:
    """As the last pass has left them."""
    return tree.subset(client.model.snapshot(), client.model.buffer_names)
