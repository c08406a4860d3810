"""Figures of merit, from plain arrays."""

from .agreement import Agreement, Separation, agreement, separation
from .classification import Scores, score, weighted_auc, weighted_f1
from .names import CRITERIA, METRICS, Metric, criterion_in, is_better
from .novelty import Novelty, novelty

__all__ = [
    "CRITERIA",
    "METRICS",
    "Agreement",
    "Metric",
    "Novelty",
    "Scores",
    "Separation",
    "agreement",
    "criterion_in",
    "is_better",
    "novelty",
    "score",
    "separation",
    "weighted_auc",
    "weighted_f1",
]
