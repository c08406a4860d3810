"""pFedMe: a client's own model solves a proximal problem around its copy of the shared one, which
then steps towards it.

Dinh, Tran, Nguyen: Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. Departures:
the inner problem is solved by plain gradient steps; both rates follow the run's unless they are
given, and the run's schedule multiplies them; θ goes on from its last inner solution, also from
round to round. What is evaluated is θ, and clients count alike in the server's mean, as in the
paper, unless `average` is "size"; clients outside the cohort do not train, where the paper has all
train and averages some. An `outer_lr` of 1/λ, to which the default goes at usual rates, takes the
shared model all the way: what a client sends is then θ itself.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Average,
    Batch,
    Client,
    Cohort,
    Mean,
    Params,
    Positive,
    Repeats,
    Share,
    Task,
    Tree,
    client_step,
    tree,
)


@dataclass(frozen=True)
class PFedMe(Algorithm):
    about = About("pFedMe", "Dinh et al.", 2020, travels="the model", private="data", cost="K")
    supports = ANY_KIND
    personal: ClassVar[bool] = True
    # what is sent may be θ
    public_state: ClassVar[frozenset[str]] = frozenset({"own"})

    penalty: Positive = 15.0  # λ
    inner_steps: Repeats = 5  # K
    # left out, they follow the run's rate: see `_rate`
    inner_lr: Positive | None = None
    outer_lr: Positive | None = None  # η
    mixing: Share = 1.0  # β: how far the server goes towards the clients' mean
    average: Average = "equal"  # of the clients' models

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"own": message}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        decay = client.training.schedule.factor(client.round)
        inner, outer = (
            decay * self._rate(client, given) for given in (self.inner_lr, self.outer_lr)
        )

        def step(carry: tuple[Params, Params], batch: Batch) -> tuple[Params, Params]:
            theta, w = carry
            for _ in range(self.inner_steps):  # θ ≈ argmin f(θ) + λ/2 ‖θ - w‖²
                theta = _stepped(
                    theta, client.grad(client.loss, theta, batch), w, self.penalty, inner
                )
            seen = client.model.snapshot(client.model.buffer_names)
            moved = {
                name: w[name] - outer * self.penalty * (w[name] - theta[name])
                for name in client.model.weight_names
            }
            return {**theta, **seen}, {**moved, **seen}

        theta, w = client.fold(step, (state["own"], message))
        return {"own": theta}, Mean(w, client.weight(self.average), around=message)

    def _rate(self, client: Client, given: float | None) -> float:
        """A rate that was left out: what the run's comes to with its momentum, which the plain
        steps here have not; at most 1/λ, beyond which a step overshoots the proximal term's centre.
        """
        if given is not None:
            return given
        training = client.training
        momentum = training.momentum if training.optimizer == "sgd" else 0.0
        return min(training.lr / (1 - momentum), 1 / self.penalty)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        mean = cohort.sum(self.train, broadcast=server).mean(otherwise=server)
        return tree.map(lambda old, new: (1 - self.mixing) * old + self.mixing * new, server, mean)

    def unadapted(self, client: Client, message: Params) -> Tree:
        return self.init_client(client, message)

    def personal_model(self, client: Client, state: Tree) -> Params:
        own: Params = state["own"]
        return own

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        own: Params = state["own"]
        return own


def _stepped(
    theta: Params, grads: dict[str, Any], w: Params, penalty: float, rate: float
) -> Params:
    """A gradient step on f(θ) + λ/2 ‖θ - w‖²; buffers stay."""
    return {
        name: value - rate * (grads[name] + penalty * (value - w[name])) if name in grads else value
        for name, value in theta.items()
    }
