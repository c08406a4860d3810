"""Question 2: do P_i(y|x) differ beyond label shares, and who is like whom?

For K = 2, 3, … clients are grouped by EM on one half of their examples; each group gets a head. On
the other half a client's labels are judged by two rules that know the same heads and the client's
label shares: its *own* group's head, and one rule for all, which weighs the heads by how typical
the input is of their groups. Where groups differ in their inputs only, the input itself says which
head is right, and the client's group adds nothing. Where the same inputs have other labels, it
does. What more probable the true label becomes is the gain; the test is whether it exceeds the
margin.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..core import Key, tree
from .heads import ClassGaussians, ClassSums, Linear, gaussian_heads, linear_heads

LEVEL = 0.05


class Candidates(NamedTuple):
    """Groupings that EM tries: for every K from 2 on, `restarts` of them."""

    max_groups: int
    restarts: int

    @property
    def sizes(self) -> list[int]:
        """K of every number of groups."""
        return list(range(2, self.max_groups + 1))

    @property
    def all_sizes(self) -> list[int]:
        """K of every candidate, restarts next to each other."""
        return [size for size in self.sizes for _ in range(self.restarts)]

    @property
    def num_heads(self) -> int:
        return sum(self.all_sizes)

    @property
    def starts(self) -> Tensor:
        """(candidates,) the first head of each."""
        return torch.tensor([0, *itertools.accumulate(self.all_sizes)])[:-1]

    def by_chance(self, key: Key) -> Tensor:
        """(candidates,) a group for each."""
        draws = key.uniform((len(self.all_sizes),))
        return (draws * torch.tensor(self.all_sizes)).long()

    def best(self, scores: Tensor) -> Tensor:
        """(candidates,) the group with the highest of the heads' scores (G,)."""
        return torch.stack([part.argmax() for part in torch.split(scores, self.all_sizes)])

    def best_restarts(self, scores: Tensor) -> Tensor:
        """(2, number of K) the best candidate of each K by scores (2, candidates)."""
        by_size = scores.view(2, len(self.sizes), self.restarts)
        offsets = torch.arange(len(self.sizes)) * self.restarts
        return by_size.argmax(-1) + offsets


def spread(candidates: Candidates, sums: ClassSums, chosen: Tensor) -> ClassSums:
    """(G, …) a client's sums at the heads that it has joined."""
    at = torch.zeros(candidates.num_heads, dtype=torch.float64)
    at[candidates.starts + chosen] = 1
    return ClassSums(*(torch.einsum("g,...->g...", at, part) for part in sums))


def spread_best(candidates: Candidates, sums: ClassSums, joined: Tensor) -> ClassSums:
    """(G', …) the same at the best candidates, one for each K."""
    return spread(candidates._replace(restarts=1), sums, joined)


def without(candidates: Candidates, total: ClassSums, own: ClassSums, joined: Tensor) -> Linear:
    """The heads as they would be had this client not taken part in those that it has joined."""
    mine = spread(candidates, own, joined)
    others = ClassSums(*(all_of - part for all_of, part in zip(total, mine, strict=True)))
    first = candidates.all_sizes[0]
    parent = ClassSums(*(part[:first].sum(0, keepdim=True) for part in others))
    return linear_heads(others, parent)


def log_of_labels(logs: Tensor, y: Tensor) -> Tensor:
    """(…, N) of the labels y (N,) after normalising over classes (…, N, Y)."""
    normal = logs.log_softmax(-1)
    index = y.expand(*normal.shape[:-2], -1)[..., None]
    return normal.gather(-1, index)[..., 0]


def gains(
    candidates: Candidates, logs: Tensor, y: Tensor, chosen: Tensor, counts: Tensor
) -> Tensor:
    """(candidates,) how much more probable the labels are by the groups `chosen` than by one rule
    for all: by this the best of several restarts is taken.
    """
    parts = zip(
        torch.split(logs, candidates.all_sizes),
        torch.split(_log_shares(counts, candidates.all_sizes), candidates.all_sizes),
        chosen.tolist(),
        strict=True,
    )
    return torch.stack(
        [
            (_true(part[own], y) - _true((part + share[:, None]).logsumexp(0), y)).sum()
            for part, share, own in parts
        ]
    )


def _log_shares(counts: Tensor, sizes: list[int]) -> Tensor:
    """(…, G, Y) the log of the share of a class's examples that each group of a candidate has."""
    shares = [
        (part + 0.001) / (part + 0.001).sum(-2, keepdim=True)
        for part in torch.split(counts, sizes, -2)
    ]
    return torch.cat(shares, -2).log()


def judged_heads(candidates: Candidates, sums: ClassSums) -> tuple[ClassGaussians, Tensor]:
    """(2, 1 + G', …) the pooled head and those of the best candidates; and (2, G', Y) the log of
    the share of a class that each group has.
    """
    first = candidates.sizes[0]
    pooled = ClassSums(*(part[:, :first].sum(1, keepdim=True) for part in sums))
    heads, alone = gaussian_heads(sums, pooled), gaussian_heads(pooled)
    joint = ClassGaussians(*(torch.cat(parts, 1) for parts in zip(alone, heads, strict=True)))
    return joint, _log_shares(sums.counts, candidates.sizes)


def judgement(
    candidates: Candidates, logs: Tensor, y: Tensor, joined: Tensor, in_group: Tensor
) -> dict[str, Tensor]:
    """Scalars of a client on one half, from log densities with prior (1 + G', N, Y).

    `gain` (K's, 2): sum and sum of squares of own minus common rule; `against` the same of own with
    one size of K minus own with another; `by_group` sums by head, `products` of pairs of heads.
    """
    single, heads = logs[0], logs[1:]
    own, gain, gate, by_group, products = [_true(single, y)], [], [], [], []
    shares = torch.split(in_group, candidates.sizes)
    for size, (part, share) in enumerate(
        zip(torch.split(heads, candidates.sizes), shares, strict=True)
    ):
        weighted = part + share[:, None]  # (K, N, Y)
        common = _true(weighted.logsumexp(0), y)
        each = _true(part, y)  # (K, N)
        mine = each[joined[size]]
        own.append(mine)
        gain.append(_two(mine - common))
        typical = weighted.logsumexp(-1).softmax(0)[joined[size]]
        gate.append(typical.sum())
        by_group.append(each.sum(1))
        products.append((each @ each.T).flatten())
    pairs = itertools.combinations(range(len(own)), 2)
    return {
        "size": torch.tensor(float(len(y)), dtype=torch.float64),
        "joined": joined.double(),
        "gain": torch.stack(gain),
        "against": torch.stack([_two(own[more] - own[less]) for less, more in pairs]),
        "gate": torch.stack(gate),
        "by_group": torch.cat(by_group),
        "products": torch.cat(products),
    }


def _true(logs: Tensor, y: Tensor) -> Tensor:
    """(…, N) the probability of the true labels."""
    return log_of_labels(logs, y).exp()


def _two(differences: Tensor) -> Tensor:
    return torch.stack([differences.sum(), differences.square().sum()])


@tree.register
class Found(NamedTuple):
    """What the judgements say."""

    number: int  # K
    p: float
    gain: float  # of the best K, per example
    best: int  # that K
    gains: Tensor  # (K's,)
    p_values: Tensor  # (K's,)
    gate: Tensor  # (K's,) mean probability, by the input alone, of the client's own group
    single: float  # gain of the best K over the pooled head, per example
    single_p: float
    group: dict[str, int]
    sure: dict[str, float]


def find(candidates: Candidates, judged: Mapping[str, Any], margin: float) -> Found:
    """Test, number of groups, and membership."""
    ids = list(judged)
    total = {
        name: torch.stack([judged[id][name] for id in ids]).sum((0, 1))
        for name in ("size", "gain", "against", "gate")
    }
    size = float(total["size"])
    gains = total["gain"][:, 0] / max(size, 1)
    p_values = torch.tensor([one_sided(pair, size, margin) for pair in total["gain"].tolist()])
    p = min(1.0, float(p_values.min()) * len(p_values))
    best = int(p_values.argmin())
    pairs = list(itertools.combinations(range(len(candidates.sizes) + 1), 2))
    against = {
        pair: one_sided(two, size, margin)
        for pair, two in zip(pairs, total["against"].tolist(), strict=True)
    }
    number = _smallest(p_values, against, p)
    group, sure = _membership(candidates, judged, number)
    two = total["against"][pairs.index((0, best + 1))]
    return Found(
        number,
        p,
        float(gains[best]),
        candidates.sizes[best],
        gains,
        p_values,
        total["gate"] / max(size, 1),
        float(two[0]) / max(size, 1),
        one_sided(two.tolist(), size, margin),
        group,
        sure,
    )


def one_sided(two: Sequence[float], size: float, margin: float) -> float:
    """p of a mean above `margin`, from the sum and the sum of squares of `size` differences: by the
    normal law, as examples are independent given the heads.
    """
    if size < 2:
        return 1.0
    mean = two[0] / size
    variance = max(two[1] / size - mean**2, 1e-12) / (size - 1)
    return float(stats.norm.sf((mean - margin) / variance**0.5))


def _smallest(p_values: Tensor, against: Mapping[tuple[int, int], float], p: float) -> int:
    """The smallest K that no larger one beats by more than the margin; 1 without a concept."""
    if p > LEVEL:
        return 1
    number = next(k + 1 for k, value in enumerate(p_values.tolist()) if value <= LEVEL) + 1
    sizes = len(p_values) + 1
    while True:
        larger = [k for k in range(number + 1, sizes + 1) if against[number - 1, k - 1] <= LEVEL]
        if not larger:
            return number
        number = larger[0]


def _membership(
    candidates: Candidates, judged: Mapping[str, Any], number: int
) -> tuple[dict[str, int], dict[str, float]]:
    """Of every client the group whose heads made its held-out labels most probable, and how sure
    that is: the chance that the next group is no better.
    """
    ids = list(judged)
    if number == 1:
        return dict.fromkeys(ids, 0), dict.fromkeys(ids, 1.0)
    index = candidates.sizes.index(number)
    start = sum(candidates.sizes[:index])
    start_products = sum(size**2 for size in candidates.sizes[:index])
    joined = np.array([judged[id]["joined"][:, index].tolist() for id in ids], dtype=int)
    renamed = _alike(joined, number)  # group of the second half by group of the first
    order = [list(range(number)), renamed]
    group, sure = {}, {}
    for id in ids:
        own = judged[id]
        mean, square = np.zeros(number), np.zeros((number, number))
        for half in range(2):
            at = order[half]
            part = own["by_group"][half, start : start + number].numpy()
            pairs = own["products"][half, start_products : start_products + number**2]
            mean += part[at]
            square += pairs.view(number, number).numpy()[np.ix_(at, at)]
        first, second = np.argsort(-mean, kind="stable")[:2].tolist()
        size = max(float(own["size"].sum()), 1.0)
        difference = (mean[first] - mean[second]) / size
        spread = square[first, first] + square[second, second] - 2 * square[first, second]
        error = (max(spread / size - difference**2, 1e-12) / size) ** 0.5
        group[id], sure[id] = first, float(stats.norm.cdf(difference / error))
    return _in_order(group), sure


def _alike(joined: np.ndarray, number: int) -> list[int]:
    """For every group of the first half the one of the second that has most clients in common."""
    table = np.zeros((number, number))
    np.add.at(table, (joined[:, 0], joined[:, 1]), 1)
    _, columns = linear_sum_assignment(-table)
    return [int(column) for column in columns]


def _in_order(group: dict[str, int]) -> dict[str, int]:
    """Groups numbered by how many clients they have."""
    values = list(group.values())
    order = sorted(set(values), key=lambda own: (-values.count(own), own))
    return {id: order.index(own) for id, own in group.items()}
