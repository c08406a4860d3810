"""Clients' private states on the machine that simulates them.

A step reads the state of the last committed round and writes a pending one; later steps of the same
round see the pending one; `commit` makes all pending states count together. States are packed
trees. They lie in segments, files of many states each, named for the round in which they were
begun; a checkpoint's manifest says where each client's state lies, and what no manifest names is
ignored.
"""

import hashlib
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..core import CheckpointError, ClientId

MANY_SEGMENTS = 8  # beyond which the next save writes all states into one anew


class Place(NamedTuple):
    """Where a packed state lies."""

    segment: str
    offset: int
    length: int
    crc: int


class ClientStates(ABC):
    """Committed states by client, and the pending ones of the round that is going on."""

    @abstractmethod
    def get(self, id: ClientId) -> bytes | None:
        """The pending state, else the committed one, else None."""

    @abstractmethod
    def put(self, id: ClientId, state: bytes) -> None:
        """Make `state` the pending one."""

    @abstractmethod
    def commit(self) -> None:
        """Make pending states count."""

    @abstractmethod
    def discard(self) -> None:
        """Forget pending states: the round was void."""

    @abstractmethod
    def save(self, folder: Path, round: int) -> dict[ClientId, Place]:
        """Bring all committed states to disk; where each of them lies."""

    @abstractmethod
    def load(self, folder: Path, places: Mapping[ClientId, Place]) -> None:
        """Take up the states of a checkpoint, after making sure that none of them is damaged."""

    @abstractmethod
    def ids(self) -> list[ClientId]:
        """Clients with a committed state, in order."""

    def digest(self) -> str:
        """sha256 over all committed states, in the order of client ids."""
        total = hashlib.sha256()
        for id in self.ids():
            total.update(f"{id}\0{hashlib.sha256(self.get(id) or b'').hexdigest()}\n".encode())
        return total.hexdigest()


class MemoryStates(ClientStates):
    """States in memory; only `save` touches the disk."""

    def __init__(self) -> None:
        self._committed: dict[ClientId, bytes] = {}
        self._pending: dict[ClientId, bytes] = {}
        self._places: dict[
            ClientId, Place
        ] = {}  # of states that are already on disk as they are now

    def get(self, id: ClientId) -> bytes | None:
        return self._pending.get(id, self._committed.get(id))

    def put(self, id: ClientId, state: bytes) -> None:
        self._pending[id] = state

    def commit(self) -> None:
        self._committed |= self._pending
        for id in self._pending:
            self._places.pop(id, None)
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> dict[ClientId, Place]:
        if len({place.segment for place in self._places.values()}) >= MANY_SEGMENTS:
            self._places = {}
        changed = [id for id in sorted(self._committed) if id not in self._places]
        if changed:
            segment = Segment(folder, round)
            self._places |= {id: segment.append(self._committed[id]) for id in changed}
            segment.sync()
        return dict(self._places)

    def load(self, folder: Path, places: Mapping[ClientId, Place]) -> None:
        places = {id: Place(*place) for id, place in places.items()}
        self._committed = {id: read_state(folder, place, id) for id, place in places.items()}
        self._pending, self._places = {}, dict(places)

    def ids(self) -> list[ClientId]:
        return sorted(self._committed)


class DiskStates(ClientStates):
    """States in segments from the start: memory holds only where they lie."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[ClientId, Place] = {}
        self._written: dict[ClientId, Place] = {}  # pending ones
        self._segment: Segment | None = None
        self._next = 0

    def get(self, id: ClientId) -> bytes | None:
        place = self._written.get(id, self._places.get(id))
        return None if place is None else read_state(self._folder, place, id)

    def put(self, id: ClientId, state: bytes) -> None:
        if self._segment is None:
            self._segment = Segment(self._folder, self._next)
        self._written[id] = self._segment.append(state)

    def commit(self) -> None:
        self._places |= self._written
        self._written = {}

    def discard(self) -> None:
        self._written = {}

    def save(self, folder: Path, round: int) -> dict[ClientId, Place]:
        if len({place.segment for place in self._places.values()}) >= MANY_SEGMENTS:
            # Read all before anything is moved: a place is only valid together with its segment.
            for id in self.ids():
                self.put(id, self.get(id) or b"")
            self.commit()
        if self._segment is not None:
            self._segment.sync()
            self._segment = None
        self._next = round + 1
        return dict(self._places)

    def load(self, folder: Path, places: Mapping[ClientId, Place]) -> None:
        places = {id: Place(*place) for id, place in places.items()}
        for id, place in places.items():
            read_state(folder, place, id)
        self._places, self._written, self._segment = dict(places), {}, None
        self._next = 1 + max(
            (segment_round(place.segment) for place in places.values()), default=-1
        )

    def ids(self) -> list[ClientId]:
        return sorted(self._places)


class Segment:
    """A file of many packed states, being written.

    What was appended is on disk for good after `sync`.
    """

    def __init__(self, folder: Path, round: int) -> None:
        self.name = f"states-{round:08d}.bin"
        self._path = folder / self.name
        self._path.write_bytes(
            b""
        )  # a killed run may have left one of this name, which no manifest names
        self._end = 0

    def append(self, state: bytes) -> Place:
        place = Place(self.name, self._end, len(state), zlib.crc32(state))
        with open(self._path, "ab") as file:
            file.write(state)
        self._end += len(state)
        return place

    def sync(self) -> None:
        with open(self._path, "ab") as file:
            os.fsync(file.fileno())


def segment_round(name: str) -> int:
    return int(name.removeprefix("states-").removesuffix(".bin"))


def read_state(folder: Path, place: Place, id: ClientId) -> bytes:
    try:
        with open(folder / place.segment, "rb") as file:
            file.seek(place.offset)
            state = file.read(place.length)
    except OSError as error:
        raise CheckpointError(f"the state of client {id!r} cannot be read: {error}") from None
    if len(state) != place.length or zlib.crc32(state) != place.crc:
        raise CheckpointError(f"the state of client {id!r} in {place.segment} is damaged")
    return state
