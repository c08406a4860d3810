"""How well found groups of clients agree with the true ones."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Agreement(NamedTuple):
    """1 is perfect; ari is 0 for a random grouping, purity is the share of clients in their group's majority."""

    ari: float
    nmi: float
    purity: float


def agreement(found: Sequence[object], truth: Sequence[object]) -> Agreement:
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
    from sklearn.metrics.cluster import contingency_matrix

    found_names, truth_names = [str(item) for item in found], [str(item) for item in truth]
    table = contingency_matrix(truth_names, found_names)
    return Agreement(
        ari=float(adjusted_rand_score(truth_names, found_names)),
        nmi=float(normalized_mutual_info_score(truth_names, found_names)),
        purity=float(np.max(table, axis=0).sum() / table.sum()),
    )
