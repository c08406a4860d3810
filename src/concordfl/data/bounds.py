"""Where each client's examples lie: a row of four numbers, and no Python object, per client."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

import numpy as np

from ..core import ClientId

# where a client's three splits begin and end: train from the first to the second, and so on
Bounds = tuple[int, int, int, int]


class BoundsTable(Mapping[ClientId, Bounds]):
    """A mapping of any number of clients that is as large as its numbers."""

    def __init__(self, bounds: Mapping[ClientId, Bounds]) -> None:
        self._ids = tuple(sorted(bounds))
        self._rows = np.array([bounds[id] for id in self._ids], dtype=np.int64).reshape(-1, 4)

    def __getitem__(self, id: ClientId) -> Bounds:
        index = bisect_left(self._ids, id)
        if index == len(self._ids) or self._ids[index] != id:
            raise KeyError(id)
        first, second, third, end = self._rows[index].tolist()
        return first, second, third, end

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
