"""Clients' private states on the machine that simulates them.

A step reads the state of the last committed round and writes a pending one; later steps of the same
round see the pending one; `commit` makes all pending states count together. States are packed
trees. On disk they lie in segments, files of many states each, named for the round in which they
were begun. `save` describes where each client's state lies; a checkpoint's manifest keeps that
description, and what no manifest names is ignored.
"""

import hashlib
import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import IO, Annotated, NamedTuple, NotRequired

from annotated_types import Len
from pydantic import InstanceOf, NonNegativeInt, StringConstraints, with_config
from typing_extensions import TypedDict

from ..core import CheckpointError, ClientId, FormatError
from .files import open_file, remove

MAX_SEGMENTS = 8  # of DiskStates; beyond, the next save writes all states into one segment

SegmentName = Annotated[str, StringConstraints(pattern=r"^states-[0-9]{8,12}\.bin$")]
FourNumbers = Annotated[list[NonNegativeInt], Len(4, 4)]


@with_config(extra="forbid")
class SavedStates(TypedDict):
    """Where all clients' states lie, as a manifest keeps it."""

    segments: list[SegmentName]
    # number of the segment, offset, length, crc32; InstanceOf: ids need not be valid Unicode
    clients: dict[InstanceOf[str], FourNumbers]


@with_config(extra="forbid")
class SavedVersion(TypedDict):
    """Which of its states a client had that keeps them itself."""

    number: NonNegativeInt
    sha256: str | None  # "" for no state; None where the client does not share it


@with_config(extra="forbid")
class SavedClients(TypedDict):
    """What an executor's clients keep, as a manifest has it.

    Both are None where clients keep their states and secrets themselves: then `versions` says which
    of its states each of them had at this checkpoint and at those before it that are kept.
    """

    secret: str | int | None
    states: SavedStates | None
    versions: NotRequired[list[dict[InstanceOf[str], SavedVersion]]]


NO_CLIENTS = SavedClients(secret=None, states=None)


class StateLocation(NamedTuple):
    """Where a packed state lies."""

    segment: str
    offset: int
    length: int
    crc: int


Locations = dict[ClientId, StateLocation]


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
    def save(self, folder: Path, round: int) -> SavedStates:
        """Bring all committed states to disk; where each of them lies."""

    @abstractmethod
    def load(self, folder: Path, saved: SavedStates) -> None:
        """Take up the states of a checkpoint, after making sure that none of them is damaged."""

    @abstractmethod
    def ids(self) -> list[ClientId]:
        """Clients with a committed state, in order."""

    def digest(self) -> str:
        """sha256 over all committed states, in the order of client ids."""
        total = hashlib.sha256()
        for id in self.ids():
            line = f"{id}\0{hashlib.sha256(self.get(id) or b'').hexdigest()}\n"
            total.update(line.encode(errors="surrogatepass"))
        return total.hexdigest()


class MemoryStates(ClientStates):
    """States in memory; only `save` touches the disk, and writes all of them into a new segment, so
    that no checkpoint depends on a file of another.
    """

    def __init__(self) -> None:
        self._committed: dict[ClientId, bytes] = {}
        self._pending: dict[ClientId, bytes] = {}

    def get(self, id: ClientId) -> bytes | None:
        return self._pending.get(id, self._committed.get(id))

    def put(self, id: ClientId, state: bytes) -> None:
        self._pending[id] = state

    def commit(self) -> None:
        self._committed |= self._pending
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedStates:
        if not self._committed:
            return describe({})
        segment = Segment(folder, round)
        locations = segment.append((id, self._committed[id]) for id in self.ids())
        segment.sync()
        return describe(locations)

    def load(self, folder: Path, saved: SavedStates) -> None:
        self._committed = dict(read_states(folder, locate(saved)))
        self._pending = {}

    def ids(self) -> list[ClientId]:
        return sorted(self._committed)


class DiskStates(ClientStates):
    """States in segments from the start: memory holds only where they lie.

    A state is written once, when it changes, so checkpoints share the segments of states that did
    not change between them: a damaged segment damages all checkpoints that need it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._committed: Locations = {}
        self._pending: Locations = {}
        self._segment: Segment | None = None  # the one that is being written
        self._next_round = 0  # names the next segment

    def get(self, id: ClientId) -> bytes | None:
        location = self._pending.get(id, self._committed.get(id))
        return None if location is None else read_state(self._folder, location, id)

    def put(self, id: ClientId, state: bytes) -> None:
        if self._segment is None:
            self._segment = Segment(self._folder, self._next_round)
        self._pending |= self._segment.append([(id, state)])

    def commit(self) -> None:
        self._committed |= self._pending
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedStates:
        if len({location.segment for location in self._committed.values()}) >= MAX_SEGMENTS:
            # Read all before anything is moved: a location is only valid together with its segment.
            for id in self.ids():
                self.put(id, self.get(id) or b"")
            self.commit()
        if self._segment is not None:
            self._segment.sync()
            self._segment = None
        self._next_round = round + 1
        return describe(self._committed)

    def load(self, folder: Path, saved: SavedStates) -> None:
        locations = locate(saved)
        for _ in read_states(folder, locations):
            pass  # only to notice a damaged one now
        self._committed, self._pending, self._segment = locations, {}, None
        self._next_round = 1 + max(map(segment_round, saved["segments"]), default=-1)

    def ids(self) -> list[ClientId]:
        return sorted(self._committed)


# --- segments -------------------------------------------------------------------------------------


class Segment:
    """A file of many packed states, being written.

    What was appended is on disk for good after `sync`.
    """

    def __init__(self, folder: Path, round: int) -> None:
        self.name = f"states-{round:08d}.bin"
        self._path = folder / self.name
        self._end = 0
        remove(self._path)  # a killed run may have left one, which no whole checkpoint needs
        with open_file(self._path, "xb"):
            pass

    def append(self, states: Iterable[tuple[ClientId, bytes]]) -> Locations:
        """Where the states lie now."""
        locations = {}
        with open_file(self._path, "ab") as file:
            for id, state in states:
                file.write(state)
                locations[id] = StateLocation(self.name, self._end, len(state), zlib.crc32(state))
                self._end += len(state)
        return locations

    def sync(self) -> None:
        with open_file(self._path, "ab") as file:
            os.fsync(file.fileno())


def segment_round(name: str) -> int:
    return int(name.removeprefix("states-").removesuffix(".bin"))


def describe(locations: Mapping[ClientId, StateLocation]) -> SavedStates:
    segments = sorted({location.segment for location in locations.values()})
    number = {name: index for index, name in enumerate(segments)}
    clients = {
        id: [number[segment], offset, length, crc]
        for id, (segment, offset, length, crc) in locations.items()
    }
    return SavedStates(segments=segments, clients=clients)


def locate(saved: SavedStates) -> Locations:
    """What `describe` has described."""
    segments = saved["segments"]
    for id, (number, *_) in saved["clients"].items():
        if number >= len(segments):
            raise FormatError(f"the state of client {id!r} lies in segment {number}, got no such")
    return {
        id: StateLocation(segments[number], offset, length, crc)
        for id, (number, offset, length, crc) in saved["clients"].items()
    }


def read_state(folder: Path, location: StateLocation, id: ClientId) -> bytes:
    ((_, state),) = read_states(folder, {id: location})
    return state


def read_states(folder: Path, locations: Locations) -> Iterator[tuple[ClientId, bytes]]:
    """All states, segment by segment; one that is damaged is refused."""
    ordered = sorted(locations.items(), key=lambda item: item[1][:2])
    for segment, items in groupby(ordered, key=lambda item: item[1].segment):
        with open_file(folder / segment, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            for id, location in items:
                yield id, _read(file, size, location, id)


def _read(file: IO[bytes], size: int, location: StateLocation, id: ClientId) -> bytes:
    # The size first: nobody can read, or make room for, more than there is.
    if location.offset + location.length <= size:
        file.seek(location.offset)
        state = file.read(location.length)
        if zlib.crc32(state) == location.crc:
            return state
    raise CheckpointError(f"the state of client {id!r} in {location.segment} is damaged")
