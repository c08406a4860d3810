"""Question 1: do clients' label shares P_i(y) differ?

The statistic is Pearson's χ² of the table of clients by classes. Its null are random tables with
the same margins, the clients' sizes and the pooled counts, which is exact for any sizes.
"""

from typing import NamedTuple

import numpy as np
from scipy import stats

from ..core import Key


class LabelTest(NamedTuple):
    effect: float  # mean distance of a client's shares from the pooled ones, noise taken off
    p: float
    distances: np.ndarray  # (clients,) the same for each client
    statistic: float


def label_test(table: np.ndarray, draws: int, key: Key) -> LabelTest:
    """Of (clients, classes) counts."""
    table = np.asarray(table, dtype=np.int64)
    kept = table[:, table.sum(0) > 0]
    sizes = kept.sum(1)
    if min(kept.shape) < 2 or (sizes > 0).sum() < 2:
        return LabelTest(0.0, 1.0, np.zeros(len(table)), 0.0)
    observed, distances = _chi_square(kept), _distances(kept)
    null = stats.random_table(sizes, kept.sum(0))
    rng = key.numpy()
    beyond, by_chance = 0, np.zeros(len(table))
    for _ in range(draws):
        drawn = null.rvs(random_state=rng)
        beyond += bool(_chi_square(drawn) >= observed - 1e-9)
        by_chance += _distances(drawn) ** 2 / draws
    true = np.sqrt(np.clip(distances**2 - by_chance, 0, None))
    total = np.sum(sizes * (distances**2 - by_chance)) / sizes.sum()
    return LabelTest(float(np.sqrt(max(total, 0.0))), (1 + beyond) / (1 + draws), true, observed)


def _chi_square(table: np.ndarray) -> float:
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    return float(((table - expected) ** 2 / np.where(expected > 0, expected, 1)).sum())


def _distances(table: np.ndarray) -> np.ndarray:
    """(clients,) in total variation: the share of a client's examples that would need another
    label.
    """
    pooled = table.sum(0) / table.sum()
    shares = table / np.maximum(table.sum(1, keepdims=True), 1)
    distances: np.ndarray = np.abs(shares - pooled).sum(1) / 2
    return np.where(table.sum(1) > 0, distances, 0.0)
