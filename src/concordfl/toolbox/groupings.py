"""Clients in groups that share a head: groupings that EM tries side by side, how well each explains
labels, and how many groups there are.

Heads of all groupings lie next to each other: G of them, in groupings of K = 2, 3, … groups.
Shapes: N examples, Y classes; logs are of densities of inputs by class, with the client's own label
shares added.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import Client, Key
from .axes import NUM_HALVES
from .class_heads import ClassSums

LEVEL = 0.05  # of a test
MIN_LOG = -7.0  # of a label's probability, so that no single example decides


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

    def heads_of(self, which: Tensor) -> Tensor:
        """The heads of these candidates, one after the other."""
        starts = self.starts
        return torch.cat([starts[one] + torch.arange(self.all_sizes[one]) for one in which])

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


def by_chance(client: Client, candidates: Candidates) -> Tensor:
    """(2, candidates) groups of a client that has not chosen any yet, for each half."""
    keys = [Key(client.seed, "groups", client.id, own) for own in range(NUM_HALVES)]
    return torch.stack([candidates.by_chance(key) for key in keys])


def spread(candidates: Candidates, sums: ClassSums, chosen: Tensor) -> ClassSums:
    """(G, …) a client's sums at the heads that it has joined."""
    at = torch.zeros(candidates.num_heads, dtype=torch.float64)
    at[candidates.starts + chosen] = 1
    return ClassSums(*(torch.einsum("g,...->g...", at, part) for part in sums))


def spread_best(candidates: Candidates, sums: ClassSums, joined: Tensor) -> ClassSums:
    """(G', …) the same at the best candidates, one for each K."""
    return spread(candidates._replace(restarts=1), sums, joined)


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
        torch.split(log_shares(counts, candidates.all_sizes), candidates.all_sizes),
        chosen.tolist(),
        strict=True,
    )
    return torch.stack(
        [
            (_true(part[own], y) - _true((part + share[:, None]).logsumexp(0), y)).sum()
            for part, share, own in parts
        ]
    )


def log_shares(counts: Tensor, sizes: list[int]) -> Tensor:
    """(…, G, Y) the log of the share of a class's examples that each group of a candidate has."""
    shares = [
        (part + 0.001) / (part + 0.001).sum(-2, keepdim=True)
        for part in torch.split(counts, sizes, -2)
    ]
    return torch.cat(shares, -2).log()


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


def one_sided(two: Sequence[float], size: float, margin: float) -> float:
    """p of a mean above `margin`, from the sum and the sum of squares of `size` differences: by the
    normal law, as examples are independent given the heads.
    """
    from scipy import stats  # takes longer to import than all of this library

    if size < 2:
        return 1.0
    mean = two[0] / size
    variance = max(two[1] / size - mean**2, 1e-12) / (size - 1)
    return float(stats.norm.sf((mean - margin) / variance**0.5))


class Tests(NamedTuple):
    """Of all numbers of groups."""

    p: float  # that there are no groups, corrected for how many numbers were tried
    p_values: Tensor  # (K's,) of each number against one rule for all
    number: int  # of groups


def test_numbers(candidates: Candidates, total: Mapping[str, Tensor], margin: float) -> Tests:
    """From the sums of judgements over clients and halves."""
    size = float(total["size"])
    p_values = torch.tensor([one_sided(pair, size, margin) for pair in total["gain"].tolist()])
    p = min(1.0, float(p_values.min()) * len(p_values))
    pairs = number_pairs(candidates)
    against = {
        pair: one_sided(two, size, margin)
        for pair, two in zip(pairs, total["against"].tolist(), strict=True)
    }
    return Tests(p, p_values, smallest_number(p_values, against, p))


def number_pairs(candidates: Candidates) -> list[tuple[int, int]]:
    """What `against` compares: places among one group and the numbers that were tried."""
    return list(itertools.combinations(range(len(candidates.sizes) + 1), 2))


def smallest_number(p_values: Tensor, against: Mapping[tuple[int, int], float], p: float) -> int:
    """The smallest significant K that no larger one beats by more than the margin; 1 without a
    concept.
    """
    if p > LEVEL:
        return 1
    significant = [k for k, value in enumerate(p_values.tolist(), start=2) if value <= LEVEL]
    sizes = len(p_values) + 1
    for number in significant:
        if all(against[number - 1, k - 1] > LEVEL for k in range(number + 1, sizes + 1)):
            return number
    return significant[-1]
