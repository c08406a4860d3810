"""APFL: a client predicts with a mixture of its own and the shared model's parameters, and learns
how much of each.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning, 2020. Departures: both models are
trained with the run's optimizer (Adam does not feel that the own gradient is scaled by the share);
the share is moved once a round; the shared model is averaged by number of examples, where the paper
counts clients alike.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

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
from ..core.optim import Optimizer

NEARLY = 0.01  # a share so near to 0 or 1 is taken for it
MOST = 0.9  # of the clients


@tree.register
class APFLClient(NamedTuple):
    own: Params  # v
    share: float  # α


class Carry(NamedTuple):
    """What passes from batch to batch."""

    shared: Params  # w
    moments: Any  # of its optimizer
    own: Params  # v
    own_moments: Any
    number: int  # of the batch


@dataclass(frozen=True)
class APFL(Algorithm):
    about = About(
        "APFL", "Deng et al.", 2020, travels="the model", private="data, own model, share", cost="2"
    )
    supports = ANY_KIND
    personal: ClassVar[bool] = True

    share: Probability = 0.5  # α at the start: how much of its own model a client uses
    adaptive: bool = True
    # the own model's steps: by the run's optimizer, as the shared model's; or plain ones, which
    # fall behind where the run has momentum, so that the share goes to 0
    own_steps: Literal["optimizer", "plain"] = "optimizer"

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> APFLClient:
        return APFLClient(own=message, share=self.share)

    @client_step
    def train(self, client: Client, state: APFLClient, message: Params) -> tuple[APFLClient, Tree]:
        share, rate = state.share, client.training.rate(client.round)
        optimizer = client.training.make_optimizer()

        def step(carry: Carry, batch: Batch) -> Carry:
            # The shared model's draws stay FedAvg's.
            with client.random("own").child(carry.number).torch_global():
                grads = client.grad(
                    client.loss, mixed(carry.own, carry.shared, share, client), batch
                )
            if self.own_steps == "plain":
                moved = {name: carry.own[name] - rate * share * grads[name] for name in grads}
                own, own_moments = {**carry.own, **moved, **_buffers(client)}, carry.own_moments
            else:
                scaled = {name: share * grad for name, grad in grads.items()}
                own, own_moments = _stepped(
                    optimizer, carry.own, scaled, carry.own_moments, rate, client
                )
            grads = client.grad(client.loss, carry.shared, batch)
            shared, moments = _stepped(optimizer, carry.shared, grads, carry.moments, rate, client)
            return Carry(shared, moments, own, own_moments, carry.number + 1)

        weights = [message[name] for name in client.model.weight_names]
        start = Carry(message, optimizer.init(weights), state.own, optimizer.init(weights), 0)
        end = client.fold(step, start)
        w, own = end.shared, end.own
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


def _stepped(
    optimizer: Optimizer, params: Params, grads: Params, moments: Any, rate: float, client: Client
) -> tuple[Params, Any]:
    """Parameters after a step, with the buffers of the last pass, and the optimizer's state."""
    live = [params[name].clone() for name in grads]
    moments = optimizer.update(live, list(grads.values()), moments, rate)
    return {**params, **dict(zip(grads, live, strict=True)), **_buffers(client)}, moments


def _buffers(client: Client) -> Params:
    """As the last pass has left them."""
    return client.model.snapshot(client.model.buffer_names)
