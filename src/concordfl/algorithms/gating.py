"""Which inputs each of several heads is for, where the network itself cannot tell them apart.

A linear head on inputs as they are has one rule for all of them. Where Gaussians of the inputs
would tell which rule holds, every head gets the inputs that are typical of its Gaussian. These are
found before the training, in the coordinates in which groups of clients are looked for, and are
taken only if labels that they have not seen are explained better with than without them
(docs/concord.md, "The gate").

    scatter    sum    moments of the inputs in these coordinates
    count      sum    how many inputs lie next to each of a number of drawn points
    locate     sum    of those next to the points that hold some: how many, where, Σ x xᵀ of all
    soften     sum    EM: Σ r and Σ r x under the client's own weights of the Gaussians, Σ x xᵀ
    label      sum    of two halves apart: moments by Gaussian and class
    judge_gate sum    how much more probable labels of the other half are by Gaussians and classes
                      than by classes alone
    and then whatever the heads begin with

A client's weights of the Gaussians are found anew whenever they are needed, and stay with it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Client, Cohort, Examples, Stage, Total, Tree, client_step, tree
from ..toolbox import axes, class_heads, clustering, gaussian, groupings, mixture
from ..toolbox.axes import NUM_HALVES, features_of, halves_of
from ..toolbox.class_heads import ClassSums, linear_heads_of_all
from ..toolbox.gaussian import Gaussians
from .grouping import MARGIN, FindsGroups

GATE = "gate"  # the name under which the Gaussians are published
POINTS = 20  # for each Gaussian, that are drawn to find the first centres
EM_STEPS = 10
FEWEST = 10  # inputs next to a point whose mean is asked for, so that it is hardly one input's
JUDGED_IN = EM_STEPS + 4  # the round, after those of points, places, centres, EM and labels
SMALLEST_VARIANCE = 1e-3  # of the coordinates' mean variance, added to the Gaussians'


@tree.register
class Gate(NamedTuple):
    """What the server knows on the way; all but the last is forgotten at its end."""

    points: Tensor | None = None  # (P, D) drawn from all inputs' Gaussian
    places: Tensor | None = None  # those of them that hold some inputs
    variance: float = 0.0  # the mean of the coordinates'
    gaussians: Gaussians | None = None
    sums: ClassSums | None = None  # (2, K, …) of the halves
    is_used: bool = False  # whether the Gaussians, which are published, choose heads


@tree.register
class Held(NamedTuple):
    """Inputs by what holds them, of which every input has shares that add up to 1."""

    mass: Tensor  # (M,)
    first: Tensor  # (M, D) Σ x
    second: Tensor  # (D, D) Σ x xᵀ of all


class GatesInputs(FindsGroups):
    """A method whose heads may share the inputs among them.

    Its server has `gate` beside `grouping`.
    """

    @property
    def num_gaussians(self) -> int:
        raise NotImplementedError

    def gate_stages(self) -> Sequence[Stage]:
        """What goes before the training, after the groups."""
        return (
            Stage(
                "gate",
                self.find_gate,
                JUDGED_IN + 2,
                everyone=True,
                prepares=True,
                required=False,
                trains=False,
            ),
        )

    # --- the server -------------------------------------------------------------------------------

    def find_gate(self, server: Any, cohort: Cohort) -> Any:
        """Whatever is missing next; nothing where clients are in groups, or there are no axes."""
        if server.grouping.number != 1 or not axes.are_found(cohort.task.input_shape):
            return server
        if cohort.round > JUDGED_IN:
            return self.begin_heads(server, cohort) if server.gate.is_used else server
        return server._replace(gate=self._next(server.gate, cohort))

    def begin_heads(self, server: Any, cohort: Cohort) -> Any:
        """Heads for the inputs of each Gaussian."""
        raise NotImplementedError

    def _next(self, gate: Gate, cohort: Cohort) -> Gate:
        if gate.points is None:
            return self._draw_points(cohort)
        if gate.places is None:
            counts: Tensor = cohort.sum(self.count, broadcast=gate.points)
            return gate._replace(places=gate.points[counts >= FEWEST])
        if gate.gaussians is None:
            return self._choose_centres(gate, cohort)
        if cohort.round < JUDGED_IN - 1:
            total = cohort.sum(self.soften, broadcast=gate.gaussians)
            return gate._replace(gaussians=_m_step(total, gate))
        if gate.sums is None:
            cohort.publish(GATE, gate.gaussians)
            return gate._replace(sums=cohort.sum(self.label))
        total = cohort.sum(self.judge_gate, broadcast=gate.sums)
        p = groupings.one_sided(total["gain"].tolist(), float(total["size"]), MARGIN)
        return Gate(is_used=p <= groupings.LEVEL)

    def _draw_points(self, cohort: Cohort) -> Gate:
        total: Held = cohort.sum(self.scatter)
        mean = total.first[0] / total.mass[0]
        variances = (total.second.diagonal() / total.mass[0] - mean.square()).clamp_min(0)
        draws = cohort.random("points").normal((POINTS * self.num_gaussians, len(mean)))
        points = mean + draws * variances.sqrt()
        return Gate(points, variance=float(variances.mean()) or 1.0)

    def _choose_centres(self, gate: Gate, cohort: Cohort) -> Gate:
        """K-means of the places where inputs lie."""
        places = cast(Tensor, gate.places)
        if not len(places):  # nobody has enough inputs to say where they lie
            return gate
        total: Held = cohort.sum(self.locate, broadcast=places)
        known = total.mass >= FEWEST  # who has missed this round took their inputs with them
        mass, first = total.mass[known], total.first[known]
        means, key = (first / mass[:, None]).numpy(), cohort.random("centres")
        if not len(means):
            return gate
        groups = clustering.kmeans(means, self.num_gaussians, key, mass.numpy())
        at = F.one_hot(torch.from_numpy(groups).long(), self.num_gaussians).double().T
        by_centre = Held(at @ mass, at @ first, total.second)
        return gate._replace(gaussians=_m_step(by_centre, gate))

    # --- the client -------------------------------------------------------------------------------

    @client_step
    def scatter(self, client: Client, state: Any, message: Tree) -> tuple[Any, Tree]:
        x = features_of(client, client.examples)
        return state, Total(_held(x, torch.ones(len(x), 1, dtype=x.dtype)))

    @client_step
    def count(self, client: Client, state: Any, message: Tensor) -> tuple[Any, Tree]:
        return state, Total(_nearest(features_of(client, client.examples), message).sum(0))

    @client_step
    def locate(self, client: Client, state: Any, message: Tensor) -> tuple[Any, Tree]:
        x = features_of(client, client.examples)
        return state, Total(_held(x, _nearest(x, message)))

    @client_step
    def soften(self, client: Client, state: Any, message: Gaussians) -> tuple[Any, Tree]:
        x = features_of(client, client.examples)
        return state, Total(_held(x, _settled(message, x).gamma))

    @client_step
    def label(self, client: Client, state: Any, message: Tree) -> tuple[Any, Tree]:
        x, shares = features_of(client, client.examples), self.shares_of_inputs(client)
        halves = [halves_of(client) == own for own in range(NUM_HALVES)]
        sums = [
            class_heads.sums_at_heads(
                x[at], client.examples.y[at], shares.gamma[at], client.num_classes
            )
            for at in halves
        ]
        return state, Total(ClassSums(*(torch.stack(parts) for parts in zip(*sums, strict=True))))

    @client_step
    def judge_gate(self, client: Client, state: Any, message: ClassSums) -> tuple[Any, Tree]:
        half, gains = halves_of(client), []
        y, x = client.examples.y, features_of(client, client.examples)
        for own in range(NUM_HALVES):
            sums = ClassSums(*(part[own] for part in message))
            at, counts = half != own, axes.sums_of_half(client, own).counts
            shares = class_heads.own_shares(counts, class_heads.shares_of(sums.counts.sum(0))).log()
            pooled = ClassSums(sums.counts.sum(0)[None], sums.first.sum(0)[None], sums.second)
            single = linear_heads_of_all(pooled, [1]).log_ratios(x[at])[0] + shares
            in_cell = groupings.log_shares(sums.counts, [len(sums.counts)])
            cells = linear_heads_of_all(sums, [len(sums.counts)]).log_ratios(x[at])
            rules = torch.stack([(cells + in_cell[:, None] + shares).logsumexp(0), single])
            gated, alone = groupings.log_of_labels(rules, y[at]).exp()
            gains.append(gated - alone)
        gain = torch.cat(gains)
        two = torch.stack([gain.sum(), gain.square().sum()])
        return state, {"gain": Total(two), "size": Total(torch.tensor(float(len(gain))))}

    def shares_of_inputs(self, client: Client) -> mixture.Settled:
        """(N, K) whose head each of the client's examples is for (7), and its own weights (K,)."""
        x = features_of(client, client.examples)
        found: mixture.Settled = client.examples.cached(
            GATE, lambda: _settled(client.published(GATE), x)
        )
        return found

    def shares_of_others(self, client: Client, omega: Tensor, examples: Examples) -> Tensor:
        """(N, K) of other examples, of a client with these weights."""
        logs = gaussian.log_density(client.published(GATE), features_of(client, examples))
        return mixture.responsibilities(-logs, omega)


def _settled(gaussians: Gaussians, x: Tensor) -> mixture.Settled:
    return mixture.settle(-gaussian.log_density(gaussians, x), steps=EM_STEPS)


def _nearest(x: Tensor, points: Tensor) -> Tensor:
    """(N, P) 1 at the point that an input lies next to."""
    return F.one_hot(torch.cdist(x, points).argmin(1), len(points)).to(x.dtype)


def _held(x: Tensor, shares: Tensor) -> Held:
    return Held(shares.sum(0), shares.T @ x, x.T @ x)


def _m_step(total: Held, gate: Gate) -> Gaussians:
    """Means, and one covariance (1, D, D) for all; a Gaussian that holds nothing stays where it
    was.
    """
    dimensions = total.first.shape[1]
    means = total.first / total.mass.clamp_min(gaussian.MIN_MASS)[:, None]
    between = (means * total.mass[:, None]).T @ means
    if gate.gaussians is not None:
        empty = total.mass <= gaussian.MIN_MASS
        means = torch.where(empty[:, None], gate.gaussians.means, means)
    least = SMALLEST_VARIANCE * gate.variance * torch.eye(dimensions, dtype=torch.float64)
    pooled = (total.second - between) / total.mass.sum() + least
    return Gaussians(means, pooled[None])
