"""Hamming and subset accuracy, macro F1 and loss of predicted probabilities of several labels."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .classification import MIN_PROBABILITY


class MultiLabelScores(NamedTuple):
    """Undefined values (no examples, or an F1 of labels that are neither there nor claimed) are
    NaN.
    """

    hamming_accuracy: float  # the share of labels that are right
    subset_accuracy: float  # the share of examples of which all labels are right
    macro_f1: float
    loss: float  # the sum of the labels' binary cross-entropies
    examples: int


def score_multi_label(
    probabilities: NDArray[np.floating], labels: NDArray[np.number]
) -> MultiLabelScores:
    """From probabilities (N, L) and labels (N, L) that are 0 or 1; above a half is a claim."""
    if not len(labels):
        return MultiLabelScores(math.nan, math.nan, math.nan, math.nan, 0)
    truth, claimed = np.asarray(labels) > 0.5, np.asarray(probabilities) > 0.5
    own = np.where(truth, probabilities, 1 - np.asarray(probabilities, dtype=np.float64))
    return MultiLabelScores(
        hamming_accuracy=float((truth == claimed).mean()),
        subset_accuracy=float((truth == claimed).all(axis=1).mean()),
        macro_f1=_macro_f1(truth, claimed),
        loss=float(-np.log(np.maximum(own, MIN_PROBABILITY)).sum(axis=1).mean()),
        examples=len(labels),
    )


def _macro_f1(truth: NDArray[np.bool_], claimed: NDArray[np.bool_]) -> float:
    """Over the labels that are there or claimed."""
    counts = truth.sum(axis=0) + claimed.sum(axis=0)
    known = counts > 0
    if not known.any():
        return math.nan
    return float((2 * (truth & claimed).sum(axis=0)[known] / counts[known]).mean())
