"""How well found groups of clients agree with the true ones, and how well points fall into them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Agreement(NamedTuple):
    """1 is perfect; ari is 0 for a random grouping, purity is the share of clients in their group's
    majority.
    """

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


class Separation(NamedTuple):
    """1 is perfect.

    Silhouette: how much nearer points are to their own group than to the next; ari: of k-means'
    groups.
    """

    silhouette: float
    ari: float


def separation(points: NDArray[np.floating], truth: Sequence[object]) -> Separation:
    """Of points (N, D) and their true groups, of which there are at least two."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    names = [str(item) for item in truth]
    found = KMeans(len(set(names)), n_init=10, random_state=0).fit_predict(points)
    return Separation(float(silhouette_score(points, names)), agreement(found.tolist(), names).ari)
