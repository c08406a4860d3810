"""Clients' states in Ray's object store: this process holds where they are, not what they are."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import ray

from ...core import ClientId
from ..client_states import ClientStates, DiskStates, SavedStates

STATES_AT_A_TIME = 256  # that are brought here to be saved


class StoredStates(ClientStates):
    """States in the object store, which brings them to disk where memory is short.

    A checkpoint reads those that have changed since the last one, and shares the files of the
    others with it, as DiskStates do. After a load a state is on disk alone until it is needed.
    """

    def __init__(self) -> None:
        self._committed: dict[ClientId, Any] = {}
        self._pending: dict[ClientId, Any] = {}
        self._unsaved: set[ClientId] = set()  # whose committed state is not on disk
        self._saved: DiskStates | None = None

    def reference(self, id: ClientId) -> Any:
        """Where the state is that `get` would give, for a worker; None if there is none."""
        found = self._pending.get(id, self._committed.get(id))
        if found is None and (state := self._read(id)) is not None:
            found = self._committed[id] = ray.put(state)
        return found

    def put_reference(self, id: ClientId, reference: Any) -> None:
        """Make the state that is there the pending one."""
        self._pending[id] = reference

    def get(self, id: ClientId) -> bytes | None:
        if id in self._pending or id in self._unsaved:
            state: bytes = ray.get(self.reference(id))
            return state
        return self._read(id)

    def put(self, id: ClientId, state: bytes) -> None:
        self.put_reference(id, ray.put(state))

    def commit(self) -> None:
        self._committed |= self._pending
        self._unsaved |= self._pending.keys()
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedStates:
        saved = DiskStates(folder) if self._saved is None else self._saved
        for ids in _batches(sorted(self._unsaved)):
            states = ray.get([self._committed[id] for id in ids])
            for id, state in zip(ids, states, strict=True):
                saved.put(id, state)
        saved.commit()
        self._saved, self._unsaved = saved, set()
        return saved.save(folder, round)

    def load(self, folder: Path, saved: SavedStates) -> None:
        on_disk = DiskStates(folder)
        on_disk.load(folder, saved)
        self._saved, self._unsaved = on_disk, set()
        self._committed, self._pending = {}, {}

    def ids(self) -> list[ClientId]:
        saved = () if self._saved is None else self._saved.ids()
        return sorted({*self._unsaved, *saved})

    def _read(self, id: ClientId) -> bytes | None:
        return None if self._saved is None else self._saved.get(id)


def _batches(ids: list[ClientId]) -> Iterator[list[ClientId]]:
    rest = iter(ids)
    while batch := list(islice(rest, STATES_AT_A_TIME)):
        yield batch
