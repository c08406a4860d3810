"""How well a score tells familiar samples from novel ones."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Novelty(NamedTuple):
    """The familiar samples are the positives; 1 is perfect. A score that knows nothing has AUROC
    0.5, the base rate as AP, and the F1 of calling everything familiar as max-F1.
    """

    auroc: float
    ap: float
    max_f1: float
    base_rate: float  # the share of the familiar samples

    @property
    def base_f1(self) -> float:
        """Of calling everything familiar."""
        return 2 * self.base_rate / (1 + self.base_rate)


def novelty(familiar: NDArray[np.floating], novel: NDArray[np.floating]) -> Novelty:
    """From scores that are high for what is familiar."""
    from sklearn.metrics import average_precision_score, precision_recall_curve, roc_auc_score

    truth = np.concatenate([np.ones(len(familiar)), np.zeros(len(novel))])
    scores = np.concatenate([familiar, novel])
    precision, recall, _ = precision_recall_curve(truth, scores)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    return Novelty(
        float(roc_auc_score(truth, scores)),
        float(average_precision_score(truth, scores)),
        float(f1.max()),
        float(truth.mean()),
    )
