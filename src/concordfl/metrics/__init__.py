"""Figures of merit, from plain arrays."""

from .agreement import Agreement, agreement
from .classification import Scores, score, weighted_auc, weighted_f1

__all__ = ["Agreement", "Scores", "agreement", "score", "weighted_auc", "weighted_f1"]
