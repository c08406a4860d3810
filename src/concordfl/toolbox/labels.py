"""How much clients' label shares differ, from sums over clients, and what that says of each.

Counts of a client's labels are drawn from shares of its own, which are drawn from a Dirichlet
distribution around the common ones. Its concentration says how far to trust a client's own counts.
"""

from typing import NamedTuple

from torch import Tensor

from ..core import tree

MIN_LIKENESS, MAX_LIKENESS = 1e-4, 0.999  # what concentrations are computed from


@tree.register
class LabelPairs(NamedTuple):
    """Sums over clients: label counts (Y,), and squares of these and of the clients' sizes."""

    counts: Tensor
    same: Tensor
    all: Tensor


def pairs(counts: Tensor) -> LabelPairs:
    """What one client with such label counts (Y,) adds."""
    return LabelPairs(counts, counts.square().sum(), counts.sum().square())


def likeness(sums: LabelPairs) -> float | None:
    """ρ: how much likelier two examples have one label if they are of one client; 0 where clients
    are alike, 1 where each has one label. Without bias from the clients' sizes. None where there
    are no two clients, no two examples of one, or no two labels: nothing is known.
    """
    size = sums.counts.sum()
    within = (sums.same - size) / (sums.all - size)
    between = (sums.counts.square().sum() - sums.same) / (size.square() - sums.all)
    found = (within - between) / (1 - between)
    return float(found.clamp(0, 1)) if found.isfinite() else None


def share_prior(counts: Tensor, sums: LabelPairs, otherwise: float) -> Tensor:
    """(Y,) examples to add to a client's label counts, so that their shares are what is known of
    the client's: the mean of the Dirichlet distribution that its counts leave. The common shares
    are those of `counts`; where `sums` tell nothing of how much clients differ, the examples are
    `otherwise`.
    """
    known, examples = likeness(sums), otherwise
    if known is not None:
        rho = min(max(known, MIN_LIKENESS), MAX_LIKENESS)
        examples = (1 - rho) / rho
    return examples * ((counts + 1) / (counts + 1).sum())
