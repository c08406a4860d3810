"""Heads on frozen features, in closed form from sums: Gaussians by class, with a client's own label
shares as their prior.

Under label shift alone P_i(y|x) ∝ π_i(y) p(x|y), so that a head that models p(x|y) and takes π_i
from the client is right for all clients alike.

Shapes: N examples, G heads, Y classes, D dimensions; sums are doubles.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import tree

MEAN_PRIOR = 2.0  # examples that a class's mean under the parent head counts for
COVARIANCE_PRIOR = 2.0  # the same for covariances, in multiples of the dimensions
ROUND_SHARE = 0.02  # of the covariances that is made round
MIN_EXAMPLES = 1e-9  # so that nothing is divided by zero
SHARE_PRIOR = 5.0  # examples that the pooled label shares count for in a client's own


@tree.register
class ClassSums(NamedTuple):
    """Of features by class; `second` by class, or over all classes where it has an axis less."""

    counts: Tensor  # (…, Y)
    first: Tensor  # (…, Y, D)
    second: Tensor  # (…, Y, D, D) or (…, D, D)


@tree.register
class ClassGaussians(NamedTuple):
    """Of every class under every head: log p(x|y) = at_mean - |(x - mean) · whitening|² / 2."""

    means: Tensor  # (…, Y, D)
    whitening: Tensor  # (…, Y, D, D)
    at_mean: Tensor  # (…, Y)

    def log_density(self, x: Tensor) -> Tensor:
        """(…, N, Y) of x (N, D), but for a constant."""
        away = x - self.means[..., None, :]  # (…, Y, N, D)
        distances = (away @ self.whitening).square().sum(-1)
        return (self.at_mean[..., None] - distances / 2).mT


class Linear(NamedTuple):
    """Gaussians with one covariance for all classes."""

    slopes: Tensor  # (…, Y, D)
    offsets: Tensor  # (…, Y)
    precision: Tensor  # (…, D, D)

    def log_ratios(self, x: Tensor) -> Tensor:
        """(…, N, Y) of x (N, D), but for what is the same for all classes."""
        logs: Tensor = x @ self.slopes.mT + self.offsets[..., None, :]
        return logs

    def log_common(self, x: Tensor) -> Tensor:
        """(…, N, 1) what `log_ratios` leaves out, but for a constant."""
        at_mean = torch.linalg.slogdet(self.precision).logabsdet[..., None] / 2
        common: Tensor = at_mean - ((x @ self.precision) * x).sum(-1) / 2
        return common[..., None]


def sums_by_class(x: Tensor, y: Tensor, num_classes: int) -> ClassSums:
    """Of examples x (N, D) with labels y (N,)."""
    belongs = torch.nn.functional.one_hot(y, num_classes).to(x.dtype)
    second = torch.stack([x[y == label].T @ x[y == label] for label in range(num_classes)])
    return ClassSums(belongs.sum(0), belongs.T @ x, second)


def own_shares(counts: Tensor, pooled: Tensor) -> Tensor:
    """(…, Y) a client's label shares, drawn towards the pooled ones."""
    smooth = counts + SHARE_PRIOR * pooled
    return smooth / smooth.sum(-1, keepdim=True)


def shares_of(counts: Tensor) -> Tensor:
    """(…, Y) label shares; none of them is zero."""
    return (counts + 1) / (counts + 1).sum(-1, keepdim=True)


def linear_heads(sums: ClassSums, parent: ClassSums) -> Linear:
    """One covariance for all classes; `parent` has the sums of all heads of a candidate, towards
    which a head with few examples is drawn.
    """
    all_means, all_within = _means(parent), _within(parent)
    dimensions = sums.first.shape[-1]
    means = _towards(sums, all_means)
    size = sums.counts.sum(-1)[..., None, None]
    prior = COVARIANCE_PRIOR * dimensions
    within = (size * _within(sums) + prior * all_within) / (size + prior)
    precision = torch.linalg.inv(_rounded(within))
    slopes = means @ precision
    return Linear(slopes, -(slopes * means).sum(-1) / 2, precision)


def linear_heads_of_all(sums: ClassSums, sizes: Sequence[int]) -> Linear:
    """Of groupings of the same examples into so many heads each; heads of one grouping share a
    covariance, so that `second`, over all classes and heads, is the same for every grouping.
    """
    parts, start = [], 0
    for size, same in itertools.groupby(sizes):
        count = len(list(same))
        at = slice(start, start + count * size)
        start += count * size
        counts = sums.counts[at].view(count, size, -1)  # (R, K, Y)
        first = sums.first[at].view(count, size, *sums.first.shape[1:])
        parent = ClassSums(counts[0].sum(0), first[0].sum(0), sums.second)
        means = _towards(ClassSums(counts, first, sums.second), _means(parent))
        cells = ClassSums(counts.flatten(1), first.flatten(1, 2), sums.second)
        precision = torch.linalg.inv(_rounded(_within(cells)))[:, None]  # (R, 1, D, D)
        slopes = means @ precision
        offsets = -(slopes * means).sum(-1) / 2
        each = precision.expand(count, size, *precision.shape[2:])
        parts.append([part.flatten(0, 1) for part in (slopes, offsets, each)])
    return Linear(*(torch.cat(found) for found in zip(*parts, strict=True)))


def sums_at_heads(x: Tensor, y: Tensor, weights: Tensor, num_classes: int) -> ClassSums:
    """Of examples x (N, D) with labels y (N,), of which every head holds its share of `weights`
    (G,), or (N, G) by example, which add up to 1; `second` is over all classes and heads.
    """
    belongs = torch.nn.functional.one_hot(y, num_classes).to(x.dtype)
    held = weights.to(x).expand(len(x), -1)
    first = torch.stack([(belongs * own[:, None]).T @ x for own in held.T])
    return ClassSums(held.T @ belongs, first, x.T @ x)


def squared_distances(sums: ClassSums, x: Tensor) -> Tensor:
    """(N, G, Y) of x (N, D) to the mean of the class under the head, by the covariance that heads
    and classes share.
    """
    heads = linear_heads_of_all(sums, [len(sums.counts)])
    at_x = ((x @ heads.precision[0]) * x).sum(-1)
    distances: Tensor = at_x[:, None] - 2 * heads.log_ratios(x)
    return distances.transpose(0, 1)


def gaussian_heads(sums: ClassSums, parent: ClassSums | None = None) -> ClassGaussians:
    """A covariance for every class, drawn towards that of the head, which is drawn towards that of
    the parent.
    """
    dimensions = sums.first.shape[-1]
    prior = COVARIANCE_PRIOR * dimensions
    scatter = sums.second - sums.counts[..., None, None] * _outer(_means(sums))
    pooled = ClassSums(sums.counts, sums.first, sums.second.sum(-3))
    within = _within(pooled)
    means = _means(sums)
    if parent is not None:
        means = _towards(sums, _means(parent))
        above = _within(ClassSums(parent.counts, parent.first, parent.second.sum(-3)))
        size = sums.counts.sum(-1)[..., None, None]
        within = (size * within + prior * above) / (size + prior)
    weight = sums.counts[..., None, None]
    covariances = (scatter + prior * within[..., None, :, :]) / (weight + prior)
    factors = torch.linalg.cholesky(_rounded(covariances))
    identity = torch.eye(dimensions, dtype=factors.dtype).expand_as(factors)
    whitening = torch.linalg.solve_triangular(factors, identity, upper=False).mT.contiguous()
    at_mean = -factors.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return ClassGaussians(means, whitening, at_mean)


def _means(sums: ClassSums) -> Tensor:
    """(…, Y, D) by class; the mean of all where a class has no examples."""
    all_first = sums.first.sum(-2, keepdim=True)
    overall = all_first / sums.counts.sum(-1).clamp_min(MIN_EXAMPLES)[..., None, None]
    own = sums.first / sums.counts.clamp_min(MIN_EXAMPLES)[..., None]
    return torch.where(sums.counts[..., None] > 0.5, own, overall)


def _towards(sums: ClassSums, means: Tensor) -> Tensor:
    """Means by class, with `means` counted as further examples."""
    return (sums.first + MEAN_PRIOR * means) / (sums.counts + MEAN_PRIOR)[..., None]


def _within(sums: ClassSums) -> Tensor:
    """(…, D, D) the covariance about the classes' means, of `second` over all classes."""
    means = sums.first / sums.counts.clamp_min(MIN_EXAMPLES)[..., None]
    between = sums.first.mT @ means
    freedom = (sums.counts.sum(-1) - (sums.counts > 0.5).sum(-1)).clamp_min(1.0)
    within = (sums.second - between) / freedom[..., None, None]
    return (within + within.mT) / 2


def _rounded(covariance: Tensor) -> Tensor:
    dimensions = covariance.shape[-1]
    spread = covariance.diagonal(dim1=-2, dim2=-1).mean(-1).clamp_min(MIN_EXAMPLES)
    ball = spread[..., None, None] * torch.eye(dimensions, dtype=covariance.dtype)
    return (1 - ROUND_SHARE) * covariance + ROUND_SHARE * ball


def _outer(means: Tensor) -> Tensor:
    return means[..., :, None] * means[..., None, :]
