"""The diagnosis as stages of the engine: what clients compute, and what of it travels.

    moments    sum    first and second moments of the (shrunk) inputs -> principal axes
    counts     each   labels by half, size, repeated and missing values, distance of the mean
    groups     sum    K groups of clients for each half, by EM on linear heads: moments by class
    heads      sum    moments by class of the best groups of every K
    judge      each   on the other half: how much more probable the client's labels are by its own
                      group's head than by one rule for all
    membership sum    moments by class of the groups that were found
    features   each   one number for how far the client's classes lie from its group's, the same
                      number under random signs, and the mean displacement

`each` are scalars of a client by itself; everything else is only seen as a sum over clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from annotated_types import Ge, Le
from torch import Tensor

from ..core import (
    About,
    Algorithm,
    Client,
    ClientId,
    Cohort,
    Count,
    Draws,
    Examples,
    Key,
    Model,
    NonNegative,
    Repeats,
    Stage,
    Task,
    Total,
    Tree,
    Width,
    client_step,
    tree,
)
from ..toolbox import axes, groupings
from ..toolbox.axes import NUM_HALVES, features_of, halves_of
from ..toolbox.class_heads import (
    ClassGaussians,
    ClassSums,
    gaussian_heads,
    own_shares,
    shares_of,
    sums_by_class,
)
from ..toolbox.groupings import Candidates
from . import concept, features
from .answers import Names, answer
from .state import DiagnoseServer


@tree.register
class GroupsMessage(NamedTuple):
    sums: ClassSums | None  # None at first
    round: int  # that they are of
    shares: Tensor
    is_last: bool


@tree.register
class JudgeMessage(NamedTuple):
    heads: ClassGaussians  # (2, 1 + G', …), the pooled one first
    in_group: Tensor  # (2, G', Y) log of the share of a class's examples that a group has
    shares: Tensor
    best: Tensor  # (2, number of K) the candidate of every K


@tree.register
class OneHead(NamedTuple):
    """What is predicted with: one head for all, with the pooled label shares."""

    heads: ClassGaussians  # of one head
    shares: Tensor  # (Y,)


@tree.register
class FeaturesMessage(NamedTuple):
    group: int
    cells: features.Cells


@dataclass(frozen=True)
class Diagnose(Algorithm):
    """How clients' data differ. Its fields are the settings of the diagnosis."""

    about: ClassVar[About] = About(
        title="Diagnosis of how clients differ",
        paper="this library",
        year=2026,
        travels="sums of moments; scalars of each client",
        private="examples, and which group a client has joined on the way",
        cost="no training",
    )
    averages: ClassVar[bool] = False

    dimensions: Width = 20  # of the features
    max_groups: Annotated[int, Ge(2), Le(20)] = 4  # the most concept groups that are tried
    restarts: Count = 5  # of EM
    steps: Repeats = 8  # of EM
    # a concept counts if its group's rule is right for more than this share of further examples
    margin: NonNegative = 0.02
    draws: Draws = 999  # of tables for the question on labels
    signs: Draws = 199  # random signs for the question on features

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        def stage(name: str, play: Any, rounds: int = 1) -> Stage:
            return Stage(name, play, rounds, everyone=True, prepares=True, trains=False)

        return (
            stage("moments", self.find_axes),
            stage("counts", self.count_all),
            stage("groups", self.move_groups, self.steps + 1),
            stage("heads", self.make_heads),
            stage("judge", self.judge_all),
            stage("membership", self.make_cells),
            stage("features", self.compare_all),
        )

    def init_server(self, task: Task, seed: int) -> DiagnoseServer:
        return DiagnoseServer()

    @property
    def candidates(self) -> Candidates:
        return Candidates(self.max_groups, self.restarts)

    # --- features ---------------------------------------------------------------------------------

    def find_axes(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        moments = cohort.sum(self.measure)
        frame = axes.axes_of(moments, self.dimensions, cohort.task.input_shape)
        cohort.publish(axes.FRAME, frame)
        return server._replace(frame=frame)

    @client_step
    def measure(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        return state, Total(axes.moments_of(client))

    # --- amount and labels ------------------------------------------------------------------------

    def count_all(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        counts = dict(cohort.run(self.count))
        by_half = torch.stack([own["labels"] for own in counts.values()]).sum(0)
        return server._replace(counts=counts, shares=shares_of(by_half))

    @client_step
    def count(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        half, y = halves_of(client), client.examples.y
        labels = torch.stack([_counts(y[half == own], client.num_classes) for own in range(2)])
        x = client.examples.x.flatten(1)
        return state, {
            "labels": labels,
            "repeated": float(len(x) - _num_distinct(x)),
            "missing": float(x.isnan().sum()) if x.is_floating_point() else 0.0,
        }

    # --- groups -----------------------------------------------------------------------------------

    def move_groups(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        """A step of EM of all candidates, on both halves at once; the last one is scored."""
        is_last = cohort.round == self.steps
        message = GroupsMessage(server.sums, server.round, _found(server.shares), is_last)
        total = cohort.sum(self.join_groups, broadcast=message)
        return server._replace(sums=total["sums"], scores=total["scores"], round=cohort.round)

    @client_step
    def join_groups(self, client: Client, state: Tree, message: GroupsMessage) -> tuple[Tree, Tree]:
        """Join the group of every candidate whose head, without this client's own part in it, makes
        the client's labels most probable; by chance at first.
        """
        joined, totals, scores = [], [], []
        for own in range(NUM_HALVES):
            chosen, score = self._choose(client, state, message, own)
            joined.append(chosen)
            scores.append(score)
            totals.append(groupings.spread(self.candidates, axes.sums_of_half(client, own), chosen))
        stacked = ClassSums(*(torch.stack(parts) for parts in zip(*totals, strict=True)))
        reply = {"sums": Total(stacked), "scores": Total(torch.stack(scores))}
        return {"joined": torch.stack(joined), "round": client.round}, reply

    def _choose(
        self, client: Client, state: Tree, message: GroupsMessage, own: int
    ) -> tuple[Tensor, Tensor]:
        """(candidates,) groups by one half, and how good they are where that is asked for."""
        candidates = self.candidates
        nothing = torch.zeros(len(candidates.all_sizes), dtype=torch.float64)
        if message.sums is None:
            return self._joined(client, {})[own], nothing
        at = halves_of(client) == own
        x, y = features_of(client, client.examples)[at], client.examples.y[at]
        sums, total = axes.sums_of_half(client, own), _half(message.sums, own)
        is_in_it = state.get("round") == message.round  # who has missed the last step is not
        part = sums if is_in_it else None
        heads = concept.without(candidates, total, part, self._joined(client, state)[own])
        logs = heads.log_ratios(x) + own_shares(sums.counts, message.shares[own]).log()
        fits = groupings.log_of_labels(logs, y).clamp_min(groupings.MIN_LOG).sum(-1)
        chosen = candidates.best(fits)
        if not message.is_last:
            return chosen, nothing
        logs = logs + heads.log_common(x)
        return chosen, groupings.gains(candidates, logs, y, chosen, total.counts)

    def _joined(self, client: Client, state: Tree) -> Tensor:
        """(2, candidates) its groups; of a client that has missed all steps, those of chance."""
        if "joined" in state:
            joined: Tensor = state["joined"]
            return joined
        return groupings.by_chance(client, self.candidates)

    def make_heads(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        best = self.candidates.best_restarts(_found(server.scores))
        sums = cohort.sum(self.measure_heads, broadcast=best)
        return server._replace(heads=sums, sums=None)

    @client_step
    def measure_heads(self, client: Client, state: Tree, message: Tensor) -> tuple[Tree, Tree]:
        candidates, half = self.candidates, halves_of(client)
        x, y = features_of(client, client.examples), client.examples.y
        totals = []
        for own in range(NUM_HALVES):
            sums = sums_by_class(x[half == own], y[half == own], client.num_classes)
            joined = self._joined(client, state)[own][message[own]]
            totals.append(groupings.spread_best(candidates, sums, joined))
        return state, Total(ClassSums(*(torch.stack(parts) for parts in zip(*totals, strict=True))))

    # --- the concept ------------------------------------------------------------------------------

    def judge_all(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        sums, best = _found(server.heads), self.candidates.best_restarts(_found(server.scores))
        heads, in_group = concept.judged_heads(self.candidates, sums)
        message = JudgeMessage(heads, in_group, _found(server.shares), best)
        judged = dict(cohort.run(self.judge, broadcast=message))
        found = concept.find(self.candidates, judged, self.margin)
        return server._replace(judged=judged, found=found)

    @client_step
    def judge(self, client: Client, state: Tree, message: JudgeMessage) -> tuple[Tree, Tree]:
        """How probable the labels of one half are by the heads made from the other half."""
        half, y = halves_of(client), client.examples.y
        x = features_of(client, client.examples)
        replies = []
        for own in range(NUM_HALVES):
            other = half != own
            counts = _counts(y[~other], client.num_classes)
            prior = own_shares(counts, message.shares[own]).log()
            heads = ClassGaussians(*(part[own] for part in message.heads))
            logs = heads.log_density(x[other]) + prior  # (1 + G', N, Y)
            joined = self._joined(client, state)[own][message.best[own]]
            replies.append(
                groupings.judgement(self.candidates, logs, y[other], joined, message.in_group[own])
            )
        return state, {name: torch.stack([reply[name] for reply in replies]) for name in replies[0]}

    # --- features given label and group -----------------------------------------------------------

    def make_cells(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        found = _found(server.found)
        message = {
            id: {"group": group, "groups": found.number} for id, group in found.group.items()
        }
        return server._replace(cells=cohort.sum(self.measure_cells, each=message))

    @client_step
    def measure_cells(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        x, y = features_of(client, client.examples), client.examples.y
        sums = sums_by_class(x, y, client.num_classes)
        chosen = F.one_hot(torch.tensor(message["group"]), message["groups"]).double()
        return state, Total(
            ClassSums(*(torch.einsum("k,...->k...", chosen, part) for part in sums))
        )

    def compare_all(self, server: DiagnoseServer, cohort: Cohort) -> DiagnoseServer:
        found, cells = (
            _found(server.found),
            features.cells_of(_found(server.cells), _found(server.heads)),
        )
        message = {id: FeaturesMessage(group, cells) for id, group in found.group.items()}
        return server._replace(displaced=dict(cohort.run(self.compare, each=message)))

    @client_step
    def compare(self, client: Client, state: Tree, message: FeaturesMessage) -> tuple[Tree, Tree]:
        x, y = features_of(client, client.examples), client.examples.y
        key = Key(client.seed, "signs", client.id)
        return state, features.displacement(x, y, message.group, message.cells, self.signs, key)

    # --- for whoever runs it as any other method --------------------------------------------------

    def ready(self, server: DiagnoseServer) -> bool:
        return server.displaced is not None

    def message(self, server: DiagnoseServer, client_id: ClientId | None) -> OneHead:
        total = ClassSums(*(part.sum(0) for part in _found(server.cells)))
        return OneHead(gaussian_heads(total), shares_of(total.counts))

    def predict(self, client: Client, state: Tree, message: OneHead, examples: Examples) -> Tensor:
        logs = message.heads.log_density(features_of(client, examples))
        return (logs + message.shares.log()).softmax(-1)

    def describe(self, server: DiagnoseServer) -> dict[str, Any]:
        """The answers; classes and features have numbers, as the server knows no names."""
        if not self.ready(server):
            return {}
        classes = tuple(str(label) for label in range(_found(server.shares).shape[1]))
        return {"diagnosis": answer(server, Names(classes, ()), self.draws, seed=0)}


def _counts(y: Tensor, num_classes: int) -> Tensor:
    return torch.bincount(y, minlength=num_classes).double()


def _num_distinct(x: Tensor) -> int:
    return len({row.tobytes() for row in x.contiguous().numpy()})


def _half(sums: ClassSums, own: int) -> ClassSums:
    return ClassSums(*(part[own] for part in sums))


def _found(value: Any) -> Any:
    """What an earlier stage has found: for the type checker, which cannot know it."""
    return value
