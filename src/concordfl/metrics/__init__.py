"""Figures of merit, from plain arrays."""

from .agreement import Agreement, Separation, agreement, separation
from .classification import Scores, score, weighted_auc, weighted_f1
from .novelty import Novelty, novelty

__all__ = [
    "Agreement",
    "Novelty",
    "Scores",
    "Separation",
    "agreement",
    "novelty",
    "score",
    "separation",
    "weighted_auc",
    "weighted_f1",
]
