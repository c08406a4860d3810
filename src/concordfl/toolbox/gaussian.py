"""Gaussians over embeddings: densities, statistics that can be summed over clients, and the M-step
from their totals.

Shapes: N examples, M Gaussians, D dimensions. Everything is in double precision. Sums are taken
about a common `shift` near the data, so that second moments lose no digits.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core import tree

CovarianceType = Literal["full", "diag", "spherical", "identity"]
MIN_MASS = 1e-8  # examples; a Gaussian that holds less keeps its parameters


@tree.register
class Gaussians(NamedTuple):
    """The number of axes of `covariances` says their type: full (M, D, D), or (1, D, D) where all
    have the same one; diag (M, D), spherical and identity (M,).
    """

    means: Tensor  # (M, D)
    covariances: Tensor


@tree.register
class Statistics(NamedTuple):
    """Sums over examples, weighted by responsibility: Σ r, Σ r x, and Σ r x xᵀ or as much of it as
    the covariance needs.
    """

    mass: Tensor  # (M,)
    first: Tensor  # (M, D)
    second: Tensor  # (M, D, D), (M, D) or (M,)


def log_density(gaussians: Gaussians, x: Tensor) -> Tensor:
    """(N, M) log N(x; μ, Σ), full covariances by their Cholesky factors."""
    dimensions = x.shape[1]
    away = x[:, None] - gaussians.means  # (N, M, D)
    covariances = gaussians.covariances
    if covariances.ndim == 3:
        factors = torch.linalg.cholesky(covariances)
        solved = torch.linalg.solve_triangular(
            factors, away.permute(1, 2, 0), upper=False
        )  # (M, D, N)
        distances = solved.square().sum(1).T
        log_determinants = 2 * factors.diagonal(dim1=1, dim2=2).log().sum(1)
    else:
        variances = (
            covariances if covariances.ndim == 2 else covariances[:, None].expand(-1, dimensions)
        )
        distances = (away.square() / variances).sum(2)
        log_determinants = variances.log().sum(1)
    log_densities: Tensor = -0.5 * (
        dimensions * math.log(2 * math.pi) + log_determinants + distances
    )
    return log_densities


class LogDensity(nn.Module):
    """`log_density` of Gaussians that stand still, as a module of x (N, D): their factors are
    inverted once.
    """

    def __init__(self, gaussians: Gaussians) -> None:
        super().__init__()
        means, covariances = gaussians
        self.means, self.full = nn.Buffer(means), covariances.ndim == 3
        if self.full:
            factors = torch.linalg.cholesky(covariances)
            identity = torch.eye(means.shape[1], dtype=means.dtype).expand_as(factors)
            inverse = torch.linalg.solve_triangular(factors, identity, upper=False)
            self.whitening = nn.Buffer(inverse.mT.contiguous())  # (M, D, D), (1, D, D)
        else:
            variances = covariances if covariances.ndim == 2 else covariances[:, None]
            self.whitening = nn.Buffer(variances.expand_as(means).rsqrt()[:, None])  # (M, 1, D)
        at_mean = log_density(gaussians._replace(means=torch.zeros_like(means)), means[:1] * 0)
        self.at_mean = nn.Buffer(at_mean[0])  # (M,)

    def forward(self, x: Tensor) -> Tensor:
        away = x[None] - self.means[:, None]  # (M, N, D)
        white = away @ self.whitening if self.full else away * self.whitening
        return (self.at_mean[:, None] - 0.5 * white.square().sum(2)).T


def statistics(
    x: Tensor, weight: Tensor, shift: Tensor, kind: CovarianceType, *, within: bool = False
) -> Statistics:
    """Of examples x (N, D) that belong to the Gaussians by `weight` (N, M), about `shift`.

    `within`: second moments about the mean of these very examples, as a client's own covariance has
    them. Summed over clients they leave out how far the clients' means lie apart.
    """
    mass = weight.sum(0)
    away = x - shift
    first = weight.T @ away
    centres = first / mass.clamp_min(MIN_MASS)[:, None] if within else torch.zeros_like(first)
    second = torch.stack([_second(away - centres[m], weight[:, m], kind) for m in range(len(mass))])
    return Statistics(mass, first, second)


def _second(away: Tensor, weight: Tensor, kind: CovarianceType) -> Tensor:
    if kind == "full":
        return (away * weight[:, None]).T @ away
    squares = weight @ away.square()
    return squares if kind == "diag" else squares.sum()


def m_step(
    total: Statistics,
    shift: Tensor,
    before: Gaussians,
    kind: CovarianceType,
    regulariser: float,
    *,
    within: bool = False,
) -> Gaussians:
    """The Gaussians that maximise the likelihood of the examples behind `total`; one without mass
    stays as it was.
    """
    held = total.mass > MIN_MASS
    mass = total.mass.clamp_min(MIN_MASS)
    offset = total.first / mass[:, None]
    means = _where(held, shift + offset, before.means)
    if kind == "identity":
        return Gaussians(means, before.covariances)
    between = torch.zeros_like(offset) if within else offset
    if kind == "full":
        covariances = total.second / mass[:, None, None] - between[:, :, None] * between[:, None, :]
        covariances = (covariances + covariances.mT) / 2 + regulariser * torch.eye(
            offset.shape[1], dtype=torch.float64
        )
    elif kind == "diag":
        covariances = (total.second / mass[:, None] - between.square()).clamp_min(0) + regulariser
    else:
        covariances = (total.second / mass / offset.shape[1] - between.square().mean(1)).clamp_min(
            0
        ) + regulariser
    return Gaussians(means, _where(held, covariances, before.covariances))


def shared_covariance(total: Statistics, kind: CovarianceType, regulariser: float) -> Tensor:
    """One covariance for all: the spread about the nearest mean, pooled over the Gaussians."""
    count, dimensions = total.first.shape
    zero = torch.zeros(dimensions, dtype=torch.float64)
    start = Gaussians(torch.zeros_like(total.first), torch.ones(count, dtype=torch.float64))
    if kind == "identity":
        return start.covariances
    start = start._replace(covariances=torch.zeros_like(total.second))
    each = m_step(total, zero, start, kind, 0.0).covariances
    shares = total.mass / total.mass.sum()
    pooled = (each * shares.view(-1, *[1] * (each.ndim - 1))).sum(0)
    pooled = pooled + regulariser * (
        torch.eye(dimensions, dtype=torch.float64) if kind == "full" else 1.0
    )
    return pooled.expand(count, *pooled.shape).clone()


def _where(held: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(held.view(-1, *[1] * (new.ndim - 1)), new, old)


@tree.register
class Frame(NamedTuple):
    """The coordinates in which embeddings are given: x ↦ (x - mean) · axes, or x itself where there
    are no axes.
    """

    mean: Tensor  # (F,)
    axes: Tensor | None  # (F, D)

    def project(self, x: Tensor) -> Tensor:
        return x if self.axes is None else (x - self.mean) @ self.axes


class Projection(nn.Module):
    """A frame as a module of x (N, F)."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.mean = nn.Buffer(frame.mean)
        self.axes = None if frame.axes is None else nn.Buffer(frame.axes)

    def forward(self, x: Tensor) -> Tensor:
        return x if self.axes is None else (x - self.mean) @ self.axes


def principal_axes(
    moments: Statistics, dimensions: int | None = None
) -> tuple[Frame, Tensor, Tensor]:
    """Principal components from summed moments: the frame, and in it the pooled mean (D,) and
    covariance (D, D).

    `dimensions` None keeps the coordinates as they are. An axis points to where its largest entry
    is positive.
    """
    mean = moments.first[0] / moments.mass[0]
    covariance = moments.second[0] / moments.mass[0] - torch.outer(mean, mean)
    if dimensions is None:
        return Frame(mean, None), mean, covariance
    variances, axes = torch.linalg.eigh((covariance + covariance.T) / 2)
    kept = min(dimensions, len(variances))
    axes = axes.flip(1)[:, :kept]
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return (
        Frame(mean, axes),
        torch.zeros(kept, dtype=torch.float64),
        variances.flip(0)[:kept].clamp_min(0).diag(),
    )
