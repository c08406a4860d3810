"""Partitions: who gets which examples. Each is named for what it really does, as "Dirichlet" means several things."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core import ClientId, DataError, Key, Positive, Settings
from ..data import Dataset


@dataclass(frozen=True)
class Partition(Settings, ABC):
    about: ClassVar[str]

    @abstractmethod
    def assign(self, data: Dataset, clients: int | None, key: Key) -> dict[ClientId, np.ndarray]:
        """The places of each client's training examples; no example goes to two clients."""


@dataclass(frozen=True)
class Iid(Partition):
    """Equal shares of a random order."""

    about: ClassVar[str] = "equal random shares"

    def assign(self, data: Dataset, clients: int | None, key: Key) -> dict[ClientId, np.ndarray]:
        count = _check_count(data, clients)
        return _named(np.array_split(key.numpy().permutation(len(data.train.y)), count))


@dataclass(frozen=True)
class DirichletByClient(Partition):
    """Each client's class mix is drawn from Dir(alpha, ..., alpha); equal sizes."""

    about: ClassVar[str] = "each client's class mix ~ Dir(alpha, ..., alpha), equal sizes"

    alpha: Positive = 0.5

    def assign(self, data: Dataset, clients: int | None, key: Key) -> dict[ClientId, np.ndarray]:
        def mix(remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return rng.dirichlet(np.full(len(remaining), self.alpha))

        return _draw_by_mix(data, _check_count(data, clients), mix, key)


@dataclass(frozen=True)
class Lda(Partition):
    """Each client's class mix is drawn from Dir(alpha * p), p the proportions of what is left; equal sizes.

    What FedConceptEM's experiments call LDA: as p sums to 1, alpha = 1 over ten classes means about 0.1 per class.
    """

    about: ClassVar[str] = "each client's class mix ~ Dir(alpha * remaining class proportions), equal sizes"

    alpha: Positive = 1.0

    def assign(self, data: Dataset, clients: int | None, key: Key) -> dict[ClientId, np.ndarray]:
        def mix(remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            left = remaining > 0
            drawn = np.zeros(len(remaining))
            drawn[left] = rng.dirichlet(self.alpha * remaining[left] / remaining.sum())
            return drawn

        return _draw_by_mix(data, _check_count(data, clients), mix, key)


@dataclass(frozen=True)
class Natural(Partition):
    """As the data came: by writer, hospital, domain, or as they were generated."""

    about: ClassVar[str] = "by writer, hospital, domain, or as generated"

    def assign(self, data: Dataset, clients: int | None, key: Key) -> dict[ClientId, np.ndarray]:
        if data.owners is None:
            raise DataError("the partition 'natural' needs data that say whose each example is, got data that do not")
        owners = np.unique(data.owners)
        if clients is not None:
            if clients > len(owners):
                raise DataError(f"scenario.clients must be <= {len(owners)}, the owners in these data, got {clients}")
            owners = np.sort(key.numpy().permutation(owners)[:clients])
        return {str(owner): np.flatnonzero(data.owners == owner) for owner in owners}


PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet-by-client": DirichletByClient,
    "iid": Iid,
    "lda": Lda,
    "natural": Natural,
}


def _check_count(data: Dataset, clients: int | None) -> int:
    if clients is None:
        raise DataError("scenario.clients must be given for this partition, got none")
    if clients > len(data.train.y):
        raise DataError(f"scenario.clients must be <= {len(data.train.y)}, the number of examples, got {clients}")
    return clients


def _named(parts: list[np.ndarray]) -> dict[ClientId, np.ndarray]:
    width = len(str(len(parts) - 1))
    return {f"client-{place:0{width}d}": np.sort(part) for place, part in enumerate(parts)}


def _draw_by_mix(
    data: Dataset, clients: int, mix: Callable[[np.ndarray, np.random.Generator], np.ndarray], key: Key
) -> dict[ClientId, np.ndarray]:
    """Equal sizes, drawn without replacement by a class mix of each client's own; where a class runs out, by the rest."""
    rng = key.numpy()
    pools = [rng.permutation(np.flatnonzero(data.train.y == label)) for label in range(data.num_classes)]
    used = np.zeros(data.num_classes, dtype=int)
    sizes = np.array([len(pool) for pool in pools])
    parts = []
    for share in np.array_split(np.arange(len(data.train.y)), clients):
        weights, counts = mix(sizes - used, rng), np.zeros(data.num_classes, dtype=int)
        while (missing := len(share) - counts.sum()) > 0:
            left = sizes - used - counts
            weights = np.where(left > 0, weights, 0.0)
            if weights.sum() <= 0:  # the mix holds only classes that have run out
                weights = left.astype(float)
            counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        parts.append(np.concatenate([pool[at : at + n] for pool, at, n in zip(pools, used, counts, strict=True)]))
        used += counts
    return _named(parts)
