"""Heads that are brought, at the end, to where the losses of all clients are least.

Averages of heads that were each trained by one client for a while lie between what fits each. On
an encoder that no longer changes the loss is convex in the heads, and its gradient a sum over
clients: so they need no local training, but a few steps along that sum, divided by a bound on the
curvature (Böhning, 1992), which no rate has to be chosen for (docs/concord.md, "Settling").

    weigh_features  sum   Σ w z zᵀ of features, by head
    slope           sum   the gradient of the clients' losses at the heads that were sent
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import (
    Algorithm,
    Client,
    Cohort,
    Examples,
    Model,
    Params,
    Stage,
    Task,
    Total,
    Tree,
    client_step,
    tree,
)
from ..toolbox import axes

SETTLED = "settled"  # the name under which the model is published, whose encoder stays
RIDGE = 1e-4  # of the mean squared feature: pulls heads to where they were


@tree.register
class Settling(NamedTuple):
    """Where the steps of the U heads in use are; heads are (U, Y, D), with the offsets as a last
    column.
    """

    first: Tensor
    heads: Tensor
    ahead: Tensor  # where the next slope is asked for (Nesterov)
    pace: float  # of the acceleration
    inverse: Tensor  # (U, D, D) of the bound on the curvature
    pull: Tensor  # (U,)
    mass: Tensor  # (U,) of examples behind the bound


@tree.register
class Weighed(NamedTuple):
    mass: Tensor  # (U,) of examples
    second: Tensor  # (U, D, D) Σ w z zᵀ


@tree.register
class Slope(NamedTuple):
    mass: Tensor  # (U,) of examples
    slope: Tensor  # (U, Y, D) of their losses


class SettlesHeads(Algorithm):
    """A method with K heads for classes on one encoder, which stand one above the other in its
    last layer. Its server has `used` (K,), which of them are, and `settling` beside `params`.
    """

    settling_steps: int

    def features(self, client: Client, server: Any, examples: Examples) -> Tensor:
        """(N, D) what the encoder gives."""
        raise NotImplementedError

    def head_shares(self, client: Client, state: Any, server: Any) -> Tensor:
        """(K,) or (N, K) whose the client's training examples are."""
        raise NotImplementedError

    def beside_in_training(self, client: Client, server: Any) -> Tensor:
        """(Y,) what is added to all heads' outputs in training."""
        raise NotImplementedError

    def settling_stages(self, model: Model) -> Sequence[Stage]:
        """What ends the training."""
        if not self.settling_steps or self.not_settled(model):
            return ()
        rounds = 1 + self.settling_steps
        return (Stage("settle", self.settle, rounds, everyone=True, required=False, trains=False),)

    def left_out(self, task: Task, server: Any) -> str:
        if reason := self.not_settled(task.model):
            return reason
        if self.settling_stages(task.model) and server.settling is None:
            return "heads were not settled, as the run ended before"
        return super().left_out(task, server)

    def not_settled(self, model: Model) -> str:
        """Why there are no such steps although they were asked for; or nothing."""
        width = model.layout[model.head_names[0]].shape[1]
        if not self.settling_steps or width <= axes.MOST_FEATURES:
            return ""
        return (
            f"heads were not settled, as they see {width:,} numbers of an input and more than "
            f"{axes.MOST_FEATURES:,} are too many"
        )

    # --- the server -------------------------------------------------------------------------------

    def settle(self, server: Any, cohort: Cohort) -> Any:
        """The bound first; then a step in every round."""
        if server.settling is None:
            cohort.publish(SETTLED, self.message(server, None))
            weighed: Weighed = cohort.sum(self.weigh_features)
            heads = self._heads(server.params, cohort)[server.used]
            return server._replace(settling=_begin(heads, weighed))
        slope: Slope = cohort.sum(self.slope, broadcast=server.settling.ahead.float())
        settling = _step(server.settling, slope)
        heads = self._heads(server.params, cohort)
        heads[server.used] = settling.heads
        layer = self._layer(heads, cohort)
        return server._replace(settling=settling, params={**server.params, **layer})

    def _heads(self, params: Params, cohort: Cohort) -> Tensor:
        """(K, Y, D)"""
        parts = [params[name] for name in cohort.task.model.head_names]
        columns = [part if part.dim() == 2 else part[:, None] for part in parts]
        rows = torch.cat(columns, 1).double()
        return rows.view(-1, cohort.task.num_classes, rows.shape[1])

    def _layer(self, heads: Tensor, cohort: Cohort) -> Params:
        names = cohort.task.model.head_names
        rows = heads.flatten(0, 1).float()
        parts = (rows,) if len(names) == 1 else (rows[:, :-1], rows[:, -1])
        return dict(zip(names, parts, strict=True))

    # --- the client -------------------------------------------------------------------------------

    @client_step
    def weigh_features(self, client: Client, state: Any, message: Tree) -> tuple[Any, Tree]:
        z, weights, _ = self._settled(client, state)
        second = torch.stack([(z * own[:, None]).T @ z for own in weights.T])
        return state, Total(Weighed(weights.sum(0), second))

    @client_step
    def slope(self, client: Client, state: Any, message: Tensor) -> tuple[Any, Tree]:
        z, weights, beside = self._settled(client, state)
        outputs = torch.einsum("nd,kyd->nky", z, message.double()) + beside
        labels = F.one_hot(client.examples.y, client.num_classes)[:, None]
        wrong = (outputs.softmax(-1) - labels) * weights[:, :, None]
        return state, Total(Slope(weights.sum(0), torch.einsum("nky,nd->kyd", wrong, z)))

    def _settled(self, client: Client, state: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Of the client's examples what does not change any more: (N, D) features, with a 1 where
        heads have offsets, (N, U) weights in the loss, and (Y,) what stands beside the outputs.
        """

        def compute() -> tuple[Tensor, Tensor, Tensor]:
            server, own = client.published(SETTLED), client.examples
            z = self.features(client, server, own)
            if len(client.model.head_names) == 2:
                z = torch.cat([z, torch.ones(len(z), 1, dtype=z.dtype)], 1)
            weights = self.head_shares(client, state, server).double().expand(len(own), -1)
            weights = weights[:, server.used]
            by_class = client.objective.weights(own.y)
            if by_class is not None:
                weights = weights * by_class.double()[:, None]
            return z, weights, self.beside_in_training(client, server).double()

        found: tuple[Tensor, Tensor, Tensor] = client.examples.cached(SETTLED, compute)
        return found


def _begin(heads: Tensor, weighed: Weighed) -> Settling:
    """½ Σ w z zᵀ bounds the second derivative of softmax losses along any head's outputs."""
    dimensions = heads.shape[2]
    pull = RIDGE * weighed.second.diagonal(dim1=1, dim2=2).mean(1)
    eye = torch.eye(dimensions, dtype=torch.float64)
    # A head that nobody has stays where it is.
    bound = weighed.second / 2 + torch.where(pull > 0, pull, 1.0)[:, None, None] * eye
    return Settling(heads, heads, heads, 1.0, torch.linalg.inv(bound), pull, weighed.mass)


def _step(settling: Settling, slope: Slope) -> Settling:
    """With the slope of who has answered standing for all who are behind the bound."""
    answered = slope.mass > 0
    scale = torch.where(answered, settling.mass / slope.mass.clamp_min(1e-300), 0.0)
    away = settling.pull[:, None, None] * (settling.ahead - settling.first)
    step = (slope.slope * scale[:, None, None] + away) @ settling.inverse
    heads = torch.where(answered[:, None, None], settling.ahead - step, settling.heads)
    pace = (1 + (1 + 4 * settling.pace**2) ** 0.5) / 2
    ahead = heads + (settling.pace - 1) / pace * (heads - settling.heads)
    return settling._replace(heads=heads, ahead=ahead, pace=pace)
