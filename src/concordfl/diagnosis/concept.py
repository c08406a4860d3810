"""Question 2: do P_i(y|x) differ beyond label shares, and who is like whom?

For K = 2, 3, … clients are grouped by EM on one half of their examples; each group gets a head. On
the other half a client's labels are judged by two rules that know the same heads and the client's
label shares: its *own* group's head, and one rule for all, which weighs the heads by how typical
the input is of their groups. Where groups differ in their inputs only, the input itself says which
head is right, and the client's group adds nothing. Where the same inputs have other labels, it
does. What more probable the true label becomes is the gain; the test is whether it exceeds the
margin.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from ..core import tree
from ..toolbox import groupings
from ..toolbox.class_heads import ClassGaussians, ClassSums, Linear, gaussian_heads, linear_heads
from ..toolbox.groupings import Candidates, log_shares, spread


def without(
    candidates: Candidates, total: ClassSums, own: ClassSums | None, joined: Tensor
) -> Linear:
    """The heads as they would be had this client not taken part in those that it has joined; None
    where it has not.
    """
    others = total
    if own is not None:
        mine = spread(candidates, own, joined)
        others = ClassSums(*(all_of - part for all_of, part in zip(total, mine, strict=True)))
    first = candidates.all_sizes[0]
    parent = ClassSums(*(part[:first].sum(0, keepdim=True) for part in others))
    return linear_heads(others, parent)


def judged_heads(candidates: Candidates, sums: ClassSums) -> tuple[ClassGaussians, Tensor]:
    """(2, 1 + G', …) the pooled head and those of the best candidates; and (2, G', Y) the log of
    the share of a class that each group has.
    """
    first = candidates.sizes[0]
    pooled = ClassSums(*(part[:, :first].sum(1, keepdim=True) for part in sums))
    heads, alone = gaussian_heads(sums, pooled), gaussian_heads(pooled)
    joint = ClassGaussians(*(torch.cat(parts, 1) for parts in zip(alone, heads, strict=True)))
    return joint, log_shares(sums.counts, candidates.sizes)


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
    p, p_values, number = groupings.test_numbers(candidates, total, margin)
    best = int(p_values.argmin())
    group, sure = _membership(candidates, judged, number)
    two = total["against"][groupings.number_pairs(candidates).index((0, best + 1))]
    return Found(
        number,
        p,
        float(gains[best]),
        candidates.sizes[best],
        gains,
        p_values,
        total["gate"] / max(size, 1),
        float(two[0]) / max(size, 1),
        groupings.one_sided(two.tolist(), size, margin),
        group,
        sure,
    )


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
