"""Figures of merit, from plain arrays."""

from .agreement import Agreement, agreement
from .classification import Scores, score, weighted_auc, weighted_f1
from .novelty import Novelty, novelty

__all__ = ["Agreement", "Novelty", "Scores", "agreement", "novelty", "score", "weighted_auc", "weighted_f1"]
