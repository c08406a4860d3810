"""Groups of clients from one vector each: k-means, a number of groups by the elbow, groups of
bounded size.

Shapes: C clients, D entries of a vector, K groups. Groups are numbered by their first client: the
same groups always have the same numbers.
"""

import warnings

import numpy as np

from ..core.random import Key

MAX_ELBOW_GROUPS = 15  # among which the elbow is looked for


def kmeans(
    points: np.ndarray, count: int, key: Key, weights: np.ndarray | None = None
) -> np.ndarray:
    """(C,) the group of each of `points` (C, D): one each if there are no more points; else at most
    one per distinct point. `weights` (C,) say for how many a point stands.
    """
    if count >= len(points):
        return np.arange(len(points))
    return _numbered(_fit(points, count, key, weights)[0])


def elbow(points: np.ndarray, key: Key, most: int = MAX_ELBOW_GROUPS) -> int:
    """The number of groups at which the curve of squared distances bends: farthest below the line
    between its ends.
    """
    most, distinct = min(most, len(points)), len(np.unique(points, axis=0))
    if min(most, distinct) < 3:
        return min(most, distinct)
    # With as many groups as there are distinct points nothing is left: the curve goes on at 0.
    curve = np.array(
        [_fit(points, count, key)[2] if count < distinct else 0.0 for count in range(1, most + 1)]
    )
    x, y = np.linspace(0, 1, most), curve / curve[0]
    line = y[0] + (y[-1] - y[0]) * x
    return int((line - y).argmax()) + 1


def balanced(points: np.ndarray, count: int, key: Key) -> np.ndarray:
    """k-means, then the farthest members of groups that are too large move to the nearest group
    that has room.

    A group may hold max(⌈C/K⌉, ⌊1.2 C/K⌋) members.
    """
    if count >= len(points):
        return np.arange(len(points))
    groups, centres, _ = _fit(points, count, key)
    groups, count = groups.copy(), len(centres)
    cap = largest_group(len(points), count)
    distances = np.linalg.norm(points[:, None] - centres, axis=2)
    while (sizes := np.bincount(groups, minlength=count)).max() > cap:
        full = int(sizes.argmax())
        members = np.flatnonzero(groups == full)
        farthest = members[distances[members, full].argmax()]
        room = np.flatnonzero(sizes < cap)
        groups[farthest] = room[distances[farthest, room].argmin()]
    return _numbered(groups)


def largest_group(size: int, count: int) -> int:
    return max(-(-size // count), int(1.2 * size / count + 1e-9))


def _fit(
    points: np.ndarray, count: int, key: Key, weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float]:
    """Groups, centres and the sum of squared distances."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    count = min(count, len(np.unique(points, axis=0)))
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # of points that differ by rounding alone
        method = KMeans(count, n_init=10, random_state=key.number % 2**32)
        found = method.fit(points, sample_weight=weights)
    return found.labels_, found.cluster_centers_, float(found.inertia_)


def _numbered(groups: np.ndarray) -> np.ndarray:
    """The same groups, numbered from 0 in the order of their first members."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    numbers: np.ndarray = np.argsort(np.argsort(first))[inverse]
    return numbers


def bipartition(vectors: np.ndarray) -> np.ndarray:
    """(C,) 0 or 1: two groups of vectors (C, D) by cosine similarity, complete linkage."""
    from sklearn.cluster import AgglomerativeClustering

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    directions = vectors / np.maximum(lengths, 1e-12)
    distances = 1 - directions @ directions.T
    found = AgglomerativeClustering(2, metric="precomputed", linkage="complete").fit(distances)
    return _numbered(found.labels_)
