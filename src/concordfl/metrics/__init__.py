"""Figures of merit, from plain arrays."""

from .agreement import Agreement, Separation, agreement, separation
from .classification import Scores, score, weighted_auc, weighted_f1
from .last_ten import last_ten
from .multi_label import MultiLabelScores, score_multi_label
from .names import CRITERIA, METRICS, Metric, criterion_in, is_better
from .novelty import Novelty, novelty
from .regression import RegressionScores, score_regression

__all__ = [
    "CRITERIA",
    "METRICS",
    "Agreement",
    "Metric",
    "MultiLabelScores",
    "Novelty",
    "RegressionScores",
    "Scores",
    "Separation",
    "agreement",
    "criterion_in",
    "is_better",
    "last_ten",
    "novelty",
    "score",
    "score_multi_label",
    "score_regression",
    "separation",
    "weighted_auc",
    "weighted_f1",
]
