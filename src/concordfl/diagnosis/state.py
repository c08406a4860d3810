"""What the server of a diagnosis knows."""

from typing import NamedTuple

from torch import Tensor

from ..core import Tree, tree
from ..toolbox import gaussian
from ..toolbox.class_heads import ClassSums
from .concept import Found


@tree.register
class DiagnoseServer(NamedTuple):
    """What is known so far; the rest is None."""

    frame: gaussian.Frame | None = None
    sums: ClassSums | None = None  # (2, G, …) of the heads of all candidates, in EM
    round: int = -1  # in which clients have joined them
    scores: Tensor | None = None  # (2, candidates) of the assignments behind them
    shares: Tensor | None = None  # (2, Y) pooled label shares by half
    heads: ClassSums | None = None  # (2, G', …) of the best candidates
    counts: dict[str, Tree] | None = None
    judged: dict[str, Tree] | None = None
    found: Found | None = None
    cells: ClassSums | None = None  # (K, …) of the groups that were found
    displaced: dict[str, Tree] | None = None
