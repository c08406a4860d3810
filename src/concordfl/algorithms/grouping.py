"""Which clients are of one concept, before there is a model: groups by EM on heads in closed form.

Every client joins, for each of several groupings with K = 2, 3, … groups, the group whose head
makes its labels most probable; heads are Gaussians by class on principal axes, made from sums over
the clients that have joined them, and a client judges them without its own part and with its own
label shares. Clients take part with two halves of their examples apart: the labels of one half are
judged by heads made of the other, so that more groups cannot win by fitting better, and the number
of groups is the smallest that further examples speak for (docs/concord.md, "The groups").

    axes       sum    moments of the (shrunk) inputs -> principal axes
    groups     sum    of all groupings at once: moments by class at the heads joined
    judge      sum    how much more probable labels of the other half are by the own group's head
                      than by one rule for all; which groups of the halves clients have in common

Which groups a client joins only itself knows.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import Algorithm, Client, Cohort, Stage, Task, Total, Tree, client_step, tree
from ..toolbox import axes, groupings
from ..toolbox.axes import NUM_HALVES, features_of, halves_of
from ..toolbox.class_heads import (
    ClassSums,
    Linear,
    linear_heads_of_all,
    own_shares,
    shares_of,
)
from ..toolbox.groupings import Candidates

MOST_GROUPS = 5  # unless more are asked for: what is sent grows as the square of it
DIMENSIONS = 20  # of the principal axes
RESTARTS, STEPS = 3, 8  # of EM
MARGIN = 0.02  # a concept counts if its group's rule is right for more than this share of examples


@tree.register
class Grouping(NamedTuple):
    """What the server knows of the groups; None where that is not known yet."""

    sums: ClassSums | None = None  # (2, G, …) of the heads of all groupings, in EM; `second` of all
    scores: Tensor | None = None  # (2, groupings) of the choices behind them
    round: int = -1  # that the sums are of
    number: int = 0  # of groups; 0 where that is not known
    order: Tensor | None = None  # (number,) the group of the second half that is one of the first


@tree.register
class GroupSums(NamedTuple):
    sums: ClassSums | None  # None at first
    round: int  # that they are of
    is_last: bool


@tree.register
class Judged(NamedTuple):
    sums: ClassSums  # (2, G', …) of the best grouping of every K
    best: Tensor  # (2, number of K) which these are


@tree.register
class Joined(NamedTuple):
    """What a client remembers; empty where it has missed the stage."""

    round: int  # in which it joined: whether the sums have a part of its own
    groups: Tensor  # (2, groupings) that it has joined with each half
    likely: Tensor  # (2, G') how probable the other half's labels are by each head, in sum


NOTHING_JOINED = Joined(-1, torch.empty(0), torch.empty(0))


class FindsGroups(Algorithm):
    """A method that begins with groups of clients.

    Its server has `grouping`, its clients have `joined`.
    """

    @property
    def candidates(self) -> Candidates:
        return Candidates(self.max_groups, RESTARTS)

    @property
    def max_groups(self) -> int:
        """The most groups that are looked for."""
        raise NotImplementedError

    def group_stages(self) -> Sequence[Stage]:
        """What goes before the training; nothing where there can be only one group."""

        def stage(name: str, play: Any, rounds: int = 1, *, required: bool = False) -> Stage:
            return Stage(
                name, play, rounds, everyone=True, prepares=True, required=required, trains=False
            )

        if self.max_groups < 2:
            return ()
        return (
            stage("axes", self.find_axes, required=True),
            stage("groups", self.move_groups, STEPS + 1),
            stage("judge", self.judge_groups),
        )

    def left_out(self, task: Task, server: Any) -> str:
        if self.max_groups < 2 or axes.are_found(task.input_shape):
            return super().left_out(task, server)
        return (
            f"groups of clients were not looked for, as the inputs have "
            f"{axes.num_features(task.input_shape):,} columns and more than "
            f"{axes.MOST_FEATURES:,} are too many: all clients began on one head"
        )

    # --- the server -------------------------------------------------------------------------------

    def find_axes(self, server: Any, cohort: Cohort) -> Any:
        """The coordinates; inputs that are too wide for them are one group unseen."""
        if not axes.are_found(cohort.task.input_shape):
            return server._replace(grouping=Grouping(number=1))
        moments = cohort.sum(self.measure)
        cohort.publish(axes.FRAME, axes.axes_of(moments, DIMENSIONS, cohort.task.input_shape))
        return server

    def move_groups(self, server: Any, cohort: Cohort) -> Any:
        """A step of EM of all groupings, on both halves at once; the last one is scored."""
        known: Grouping = server.grouping
        if known.number:
            return server
        message = GroupSums(known.sums, known.round, is_last=cohort.round == STEPS)
        total = cohort.sum(self.join_groups, broadcast=message)
        return server._replace(grouping=Grouping(total["sums"], total["scores"], cohort.round))

    def judge_groups(self, server: Any, cohort: Cohort) -> Any:
        """How many groups there are, and which groups of the two halves are the same."""
        from scipy.optimize import linear_sum_assignment  # slow to import

        candidates, sums = self.candidates, server.grouping.sums
        if sums is None:  # they have not been looked for, or nobody has answered
            return server
        best = candidates.best_restarts(server.grouping.scores)
        heads = torch.stack([candidates.heads_of(own) for own in best])
        halves = torch.arange(NUM_HALVES)[:, None]
        kept = ClassSums(sums.counts[halves, heads], sums.first[halves, heads], sums.second)
        message = Judged(kept, best)
        total = cohort.sum(self.judge, broadcast=message)
        number = groupings.test_numbers(candidates, total, MARGIN).number
        common = total["common"][max(number - 2, 0)][:number, :number]
        order = torch.from_numpy(linear_sum_assignment(-common.numpy())[1])
        return server._replace(grouping=Grouping(number=number, order=order))

    # --- the client -------------------------------------------------------------------------------

    @client_step
    def measure(self, client: Client, state: Any, message: Tree) -> tuple[Any, Tree]:
        return state, Total(axes.moments_of(client))

    @client_step
    def join_groups(self, client: Client, state: Any, message: GroupSums) -> tuple[Any, Tree]:
        """Join, in every grouping, the group whose head makes the client's labels most probable."""
        choices = [self._choose(client, state, message, own) for own in range(NUM_HALVES)]
        joined, scores = (torch.stack(parts) for parts in zip(*choices, strict=True))
        totals = [self._spread(client, joined[own], own) for own in range(NUM_HALVES)]
        sums = ClassSums(*(torch.stack(parts) for parts in zip(*totals, strict=True)))
        state = state._replace(joined=Joined(client.round, joined, torch.empty(0)))
        return state, {"sums": Total(sums), "scores": Total(scores)}

    def _choose(
        self, client: Client, state: Any, message: GroupSums, own: int
    ) -> tuple[Tensor, Tensor]:
        """(groupings,) groups by one half, and how good they are where that is asked for."""
        candidates, before = self.candidates, self._joined(client, state)
        nothing = torch.zeros(len(candidates.all_sizes), dtype=torch.float64)
        if message.sums is None:
            return before[own], nothing
        total = others = _half(message.sums, own)
        if state.joined.round == message.round:  # the sums have a part of its own, as it was sent
            mine = self._spread(client, before[own], own)
            others = ClassSums(*(whole - part for whole, part in zip(total, mine, strict=True)))
        at = halves_of(client) == own
        x, y = features_of(client, client.examples)[at], client.examples.y[at]
        logs = self._logs(linear_heads_of_all(others, candidates.all_sizes), x, client, total, own)
        fits = groupings.log_of_labels(logs, y).clamp_min(groupings.MIN_LOG).sum(-1)
        chosen = candidates.best(fits)
        if not message.is_last:
            return chosen, nothing
        return chosen, groupings.gains(candidates, logs, y, chosen, total.counts)

    @client_step
    def judge(self, client: Client, state: Any, message: Judged) -> tuple[Any, Tree]:
        """How probable the labels of one half are by heads made of the other half."""
        candidates, half = self.candidates, halves_of(client)
        y, x = client.examples.y, features_of(client, client.examples)
        replies, joined = [], []
        for own in range(NUM_HALVES):
            total = _half(message.sums, own)
            heads = linear_heads_of_all(total, candidates.sizes)
            pooled = linear_heads_of_all(_pooled(total), [1])
            heads = Linear(*(torch.cat(parts) for parts in zip(pooled, heads, strict=True)))
            logs = self._logs(heads, x[half != own], client, total, own)
            in_group = groupings.log_shares(total.counts, candidates.sizes)
            joined.append(self._joined(client, state)[own][message.best[own]])
            replies.append(
                groupings.judgement(candidates, logs, y[half != own], joined[own], in_group)
            )
        has_joined = float(state.joined.round >= 0)  # by chance alone, it says nothing
        reply = {
            name: Total(has_joined * (replies[0][name] + replies[1][name]))
            for name in ("size", "gain", "against")
        }
        common = torch.zeros(len(candidates.sizes), self.max_groups, self.max_groups)
        common[torch.arange(len(candidates.sizes)), joined[0], joined[1]] = has_joined
        likely = torch.stack([own["by_group"] for own in replies])
        state = state._replace(joined=state.joined._replace(likely=likely))
        return state, {**reply, "common": Total(common)}

    def group_of(self, client: Client, state: Any, grouping: Grouping) -> int | None:
        """The group whose heads make the client's held-out labels most probable; None where that
        is not known.
        """
        if grouping.number == 1:
            return 0
        if not grouping.number or not len(state.joined.likely):
            return None
        sizes = self.candidates.sizes
        index = sizes.index(grouping.number)
        start = sum(sizes[:index])
        first, second = state.joined.likely[:, start : start + grouping.number]
        return int((first + second[grouping.order]).argmax())

    def _joined(self, client: Client, state: Any) -> Tensor:
        """(2, groupings) its groups; of a client that has missed all steps, those of chance."""
        known = len(state.joined.groups)
        return state.joined.groups if known else groupings.by_chance(client, self.candidates)

    def _spread(self, client: Client, joined: Tensor, own: int) -> ClassSums:
        """The sums of one half at the heads that it has joined; `second` is of all heads."""
        sums = axes.sums_of_half(client, own)
        without_second = sums._replace(second=torch.zeros((), dtype=torch.float64))
        by_head = groupings.spread(self.candidates, without_second, joined)
        return ClassSums(by_head.counts.float(), by_head.first.float(), sums.second.float())

    def _logs(self, heads: Linear, x: Tensor, client: Client, total: ClassSums, own: int) -> Tensor:
        """(G, N, Y) of x by every head, with the client's label shares."""
        pooled = shares_of(_pooled(total).counts[0])
        shares = own_shares(axes.sums_of_half(client, own).counts, pooled)
        return heads.log_ratios(x) + shares.log()


def _half(sums: ClassSums, own: int) -> ClassSums:
    return ClassSums(*(part[own].double() for part in sums))


def _pooled(sums: ClassSums) -> ClassSums:
    """One head for all, from the first grouping, of two groups: each holds all examples."""
    return ClassSums(
        sums.counts[:2].sum(0, keepdim=True), sums.first[:2].sum(0, keepdim=True), sums.second
    )
