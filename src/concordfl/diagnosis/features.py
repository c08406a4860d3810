"""Question 3: given label and concept group, do P_i(x|y) differ?

A client's class lies where its group's lies, or not: displacement of first and second moments in
units of the spread within classes. The null are the same sums with a random sign for every
example, which needs no assumption on the features' law beyond symmetry of sums.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from ..core import Key, tree
from ..toolbox.class_heads import ClassSums

# The statistics: means in all directions; means and squares in those in which classes are alike.
MEANS, OTHER_MEANS, OTHER_SQUARES = range(3)


@tree.register
class Cells(NamedTuple):
    """Groups by classes: what a client compares its examples with."""

    counts: Tensor  # (K, Y)
    means: Tensor  # (K, Y, D)
    squares: Tensor  # (K, Y, C) mean squares of deviations in the complement
    whitening: Tensor  # (D, D)
    complement: Tensor  # (D, C) whitened directions in which classes do not differ


def cells_of(sums: ClassSums, heads: ClassSums) -> Cells:
    """From the sums of all clients by group and class; `heads` are those that were tried."""
    mass = sums.counts.clamp_min(1.0)
    means = sums.first / mass[..., None]
    outer = means[..., :, None] * means[..., None, :]
    scatter = sums.second - sums.counts[..., None, None] * outer
    dimensions = means.shape[-1]
    freedom = max(float(sums.counts.sum() - (sums.counts > 0).sum()), 1.0)
    within = scatter.sum((0, 1)) / freedom
    within = within + 0.01 * within.diagonal().mean().clamp_min(1e-12) * torch.eye(
        dimensions, dtype=torch.float64
    )
    variances, axes = torch.linalg.eigh((within + within.T) / 2)
    whitening = axes * variances.clamp_min(1e-12).rsqrt()
    covariances = whitening.T @ (scatter / mass[..., None, None]) @ whitening
    clusters = (heads.first / heads.counts.clamp_min(1.0)[..., None]) @ whitening
    complement = _complement(heads.counts, clusters)
    squares = (complement.T @ covariances @ complement).diagonal(dim1=-2, dim2=-1)
    return Cells(sums.counts, means, squares.clone(), whitening, complement)


def _complement(counts: Tensor, means: Tensor) -> Tensor:
    """(D, C) directions orthogonal to the differences between classes under the heads that were
    tried: what other labels for the same inputs, found or overlooked, cannot move.

    A head's own place does not count: what moves all classes of a client alike stays visible.
    """
    weights, dimensions = counts[..., None], means.shape[-1]
    centres = (weights * means).sum(-2, keepdim=True) / weights.sum(-2, keepdim=True).clamp_min(1.0)
    away = ((means - centres) * weights.sqrt()).reshape(-1, dimensions)
    _, axes = torch.linalg.eigh(away.T @ away)
    taken = min(counts.shape[-1] - 1, dimensions // 2)
    complement: Tensor = axes.flip(1)[:, taken:].contiguous()
    return complement


def displacement(
    x: Tensor, y: Tensor, group: int, cells: Cells, draws: int, key: Key
) -> dict[str, Tensor]:
    """Scalars of a client: the statistics (1 + draws, 3), first as observed, then under random
    signs; and the mean displacement (D,) of its classes.
    """
    rng = key.numpy()
    dimensions = x.shape[1]
    found = torch.zeros(1 + draws, 3, dtype=torch.float64)
    moved, examples = torch.zeros(dimensions, dtype=torch.float64), 0.0
    for label in torch.unique(y).tolist():
        own = x[y == label]
        rest = float(cells.counts[group, label]) - len(own)
        if rest < 1:
            continue  # nobody else has this class: there is nothing to compare with
        white = (own - cells.means[group, label]) @ cells.whitening
        square = (white @ cells.complement).square()
        square = square - cells.squares[group, label]
        signs = torch.from_numpy(rng.choice([-1.0, 1.0], size=(draws, len(own))))
        signs = torch.cat([torch.ones(1, len(own), dtype=torch.float64), signs])
        of_means, of_squares = signs @ white, signs @ square  # (1 + draws, D)
        # A client's own part in the mean draws the mean nearer, by rest / all in expectation; what
        # is flipped is only nearer by 1 / all.
        scale = torch.full((1 + draws,), rest / (rest + len(own) - 1), dtype=torch.float64)
        scale[0] = 1.0
        scale /= len(own)
        found[:, MEANS] += of_means.square().sum(1) * scale
        found[:, OTHER_MEANS] += (of_means @ cells.complement).square().sum(1) * scale
        found[:, OTHER_SQUARES] += of_squares.square().sum(1) * scale
        moved += (own - cells.means[group, label]).sum(0)
        examples += len(own)
    return {
        "statistics": found,
        "moved": moved / max(examples, 1.0),
        "size": torch.tensor(examples, dtype=torch.float64),
    }


class FeatureTest(NamedTuple):
    effect: float  # how far a client's classes lie from its group's, in deviations, noise taken off
    p: float
    by_client: dict[str, float]  # p after Holm's correction
    each: tuple[float, ...]  # p of the single statistics


def feature_test(
    displaced: Mapping[str, Any], labels: np.ndarray, groups: Sequence[int]
) -> FeatureTest:
    """From the statistics of clients, their label counts (clients, Y) and their groups."""
    ids = list(displaced)
    all_of = np.stack([displaced[id]["statistics"].numpy() for id in ids])  # (clients, 1 + B, 3)
    wider = _wider(labels, groups)
    each = tuple(_rank(all_of[:, :, kind].sum(0), wider) for kind in range(3))
    by_client = [_tail(row[:, OTHER_MEANS]) for row in all_of]
    sizes = sum(float(displaced[id]["size"]) for id in ids)
    means = all_of[:, :, MEANS].sum(0)
    effect = float(np.sqrt(max(means[0] - means[1:].mean(), 0.0) / max(sizes, 1.0)))
    p = min(1.0, 2 * min(each[OTHER_MEANS], each[OTHER_SQUARES]))
    return FeatureTest(effect, p, dict(zip(ids, holm(by_client), strict=True)), each)


def _wider(labels: np.ndarray, groups: Sequence[int]) -> float:
    """By how much the null of a sum over clients is too narrow: signs are drawn for every client by
    itself, but displacements from the mean of a group's class add up to nothing.

    Both variances are those of normal examples. As observed, the sum of a class less its mean under
    signs is x'Qx, of examples x about their mean; Q is J / n + I b within a client of n examples,
    and the variance is 2 tr(QPQP), P = I - J / N. Signs vary no example's own square, only the
    n (n - 1) products of different ones.
    """
    true, drawn = 0.0, 0.0
    for group in set(groups):
        for counts in labels[np.asarray(groups) == group].T:
            own = counts[counts > 0].astype(float)
            size = float(own.sum())
            if len(own) < 2:
                continue
            nearer = (size - own) / (size - 1)  # as in `displacement`
            b = -nearer / own
            true += float((1 + 2 * b + own * b**2 - 2 / size * own * (1 + b) ** 2).sum())
            true += float((own * (1 + b)).sum() / size) ** 2
            product = (1 - 1 / size) ** 2 + 2 / size**2  # of two examples' squares
            drawn += product * float(((1 - 1 / own) * nearer**2).sum())
    return float(np.sqrt(true / drawn)) if drawn > 0 else 1.0


def _rank(statistics: np.ndarray, wider: float) -> float:
    """p of the first among all, the others spread out about their mean."""
    null = statistics[1:].mean() + wider * (statistics[1:] - statistics[1:].mean())
    return float(1 + (null >= statistics[0] - 1e-12).sum()) / len(statistics)


def _tail(statistics: np.ndarray) -> float:
    """p of one client, by a gamma law with the mean and variance of the null: finer than ranks."""
    mean, variance = statistics[1:].mean(), statistics[1:].var()
    if mean <= 0 or variance <= 1e-12 * mean**2:
        return 1.0
    return float(stats.gamma.sf(statistics[0], mean**2 / variance, scale=variance / mean))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: the chance of any false name among those at or below a level."""
    order = np.argsort(p_values, kind="stable")
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order.tolist()):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted
