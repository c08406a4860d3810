"""Accuracy, loss, weighted AUC and weighted F1 of predicted class probabilities.

Written with numpy because they are computed for every client at every evaluation; the tests compare
them with scikit-learn.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MIN_PROBABILITY = 1e-12  # in the loss


class Scores(NamedTuple):
    """Undefined values (no examples, or an AUC with a single class) are NaN."""

    accuracy: float
    loss: float
    auc: float
    f1: float
    examples: int


def score(probabilities: NDArray[np.floating], labels: NDArray[np.integer]) -> Scores:
    """From probabilities (N, Y) and labels (N,)."""
    if not len(labels):
        return Scores(math.nan, math.nan, math.nan, math.nan, 0)
    predicted = probabilities.argmax(axis=1)
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return Scores(
        accuracy=float((predicted == labels).mean()),
        loss=float(-np.log(np.maximum(own, MIN_PROBABILITY)).mean()),
        auc=weighted_auc(probabilities, labels),
        f1=weighted_f1(predicted, labels),
        examples=len(labels),
    )


def weighted_auc(probabilities: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """One-against-rest AUC, averaged by class frequency; classes that are absent, or alone, are
    left out.
    """
    total, weight = 0.0, 0
    for label in np.unique(labels):
        positive = labels == label
        count = int(positive.sum())
        rest = len(labels) - count
        if rest:
            ranks = _average_ranks(probabilities[:, label])
            total += count * float(ranks[positive].sum() - count * (count + 1) / 2) / (count * rest)
            weight += count
    return total / weight if weight else math.nan


def weighted_f1(predicted: NDArray[np.integer], labels: NDArray[np.integer]) -> float:
    """F1 of each class that occurs, averaged by class frequency."""
    size = int(max(predicted.max(), labels.max())) + 1
    support = np.bincount(labels, minlength=size)
    claimed = np.bincount(predicted, minlength=size)
    right = np.bincount(labels[predicted == labels], minlength=size)
    f1 = 2 * right / np.maximum(support + claimed, 1)
    return float((f1 * support).sum() / support.sum())


def _average_ranks(values: NDArray[np.floating]) -> NDArray[np.floating]:
    """Ranks from 1, ties sharing their average."""
    ordered = np.sort(values)
    ranks: NDArray[np.floating] = (
        np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right") + 1
    ) / 2
    return ranks
