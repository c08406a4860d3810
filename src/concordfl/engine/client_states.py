"""Clients' private states on the machine that simulates them.

A step reads the state of the last committed round and writes a pending one; later steps of the same
round see the pending one; `commit` makes all pending states count together. States are packed
trees. On disk they lie in segments (`segments.py`), to which `save` adds those that have changed
since the last one. It names the segments; a checkpoint's manifest keeps these names, and what no
manifest names is ignored.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NotRequired

from pydantic import InstanceOf, NonNegativeInt, with_config
from typing_extensions import TypedDict

from ..core import ClientId
from .segments import Locations, SavedSegment, SegmentLog, read_state, read_states, segment_number


@with_config(extra="forbid")
class SavedStates(TypedDict):
    """Where all clients' states lie, as a manifest keeps it."""

    segments: list[SavedSegment]


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
        """Bring all committed states to disk; where they lie."""

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
    """States in memory; only `save` touches the disk.

    Saves take turns in two logs: a save writes what has changed since the last but one, and shares
    no file with the last one, so that a damaged file damages one of two successive checkpoints.
    """

    def __init__(self) -> None:
        self._committed: dict[ClientId, bytes] = {}
        self._pending: dict[ClientId, bytes] = {}
        # Both are the log whose turn it is, and then the other one's.
        self._logs = [SegmentLog(), SegmentLog()]
        self._unsaved: list[set[ClientId]] = [set(), set()]  # whose state the log does not have
        self._number = 0  # of the newest segment

    def get(self, id: ClientId) -> bytes | None:
        return self._pending.get(id, self._committed.get(id))

    def put(self, id: ClientId, state: bytes) -> None:
        self._pending[id] = state

    def commit(self) -> None:
        self._committed |= self._pending
        for unsaved in self._unsaved:
            unsaved.update(self._pending)
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedStates:
        log = self._logs[0]
        # Its files are gone where the last checkpoint but one was not kept.
        unsaved = self._unsaved[0] | log.forget_lost(folder)
        self._number = max(round, self._number + 1)  # never that of a segment of the other log
        if unsaved:
            states = ((id, self._committed[id]) for id in sorted(unsaved))
            log.keep(log.append(folder, states, self._number))
        segments = log.seal(folder, self._read, self._number)
        self._logs.reverse()
        self._unsaved = [self._unsaved[1], set()]
        return SavedStates(segments=segments)

    def _read(self, locations: Locations) -> Iterator[tuple[ClientId, bytes]]:
        return ((id, self._committed[id]) for id in sorted(locations))

    def load(self, folder: Path, saved: SavedStates) -> None:
        log = SegmentLog.load(folder, saved["segments"])
        self._committed = dict(read_states(folder, log.locations))
        self._pending = {}
        self._logs, self._unsaved = [SegmentLog(), log], [set(self._committed), set()]
        self._number = newest_number(saved)

    def ids(self) -> list[ClientId]:
        return sorted(self._committed)


class DiskStates(ClientStates):
    """States in segments from the start: memory holds only where they lie.

    A state is written when it changes, and moved a few times at most, so checkpoints share the
    segments of states that did not change between them: a damaged segment damages all checkpoints
    that need it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = SegmentLog()
        self._pending: Locations = {}
        self._number = 0  # of the next segment

    def get(self, id: ClientId) -> bytes | None:
        location = self._pending.get(id, self._log.locations.get(id))
        return None if location is None else read_state(self._folder, location, id)

    def put(self, id: ClientId, state: bytes) -> None:
        self._pending |= self._log.append(self._folder, [(id, state)], self._number)

    def commit(self) -> None:
        self._log.keep(self._pending)
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedStates:
        segments = self._log.seal(folder, partial(read_states, folder), self._number)
        self._number = round + 1
        return SavedStates(segments=segments)

    def load(self, folder: Path, saved: SavedStates) -> None:
        log = SegmentLog.load(folder, saved["segments"])
        for _ in read_states(folder, log.locations):
            pass  # only to notice a damaged one now
        self._log, self._pending = log, {}
        self._number = newest_number(saved) + 1

    def ids(self) -> list[ClientId]:
        return sorted(self._log.locations)


def newest_number(saved: SavedStates) -> int:
    """Of the segments; -1 where there are none."""
    return max((segment_number(segment["name"]) for segment in saved["segments"]), default=-1)
