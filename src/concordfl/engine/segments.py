"""Clients' packed states in a few files on disk, of which a save writes only what is new.

A segment is a file of many states, one after the other, and an index at its end that says whose
they are and where they lie. A checkpoint's manifest names its segments and seals their indices, so
that its size does not depend on the number of clients. What a later segment holds of a client
counts; what earlier ones hold of it is waste. Segments of about one size are merged into one, and
so are those that are mostly waste: there are never many, and a state is written a few times at
most, however long it stays unchanged.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import torch
from pydantic import NonNegativeInt, StringConstraints, with_config
from torch import Tensor
from typing_extensions import TypedDict

from ..core import CheckpointError, ClientId, FormatError, tree
from .files import open_file, parse_json, remove

MAX_SEGMENTS = 12  # that a save leaves
MERGE_RATIO = 2  # a segment is merged into a new one unless it is larger by more than this

SegmentName = Annotated[str, StringConstraints(pattern=r"^states-[0-9]{8,12}\.bin$")]


@with_config(extra="forbid")
class SavedSegment(TypedDict):
    """A segment as a manifest names it."""

    name: SegmentName
    states: NonNegativeInt  # bytes, from the beginning of the file
    index: NonNegativeInt  # bytes, which follow
    sha256: str  # of the index


class StateLocation(NamedTuple):
    """Where a packed state lies."""

    segment: str
    offset: int
    length: int
    crc: int


Locations = dict[ClientId, StateLocation]
# the states that lie there
Read = Callable[[Locations], Iterable[tuple[ClientId, bytes]]]


class SegmentLog:
    """Where the states of all clients lie; the states that are added lie in a segment that is still
    open, and are on disk for good after `seal`.
    """

    def __init__(self) -> None:
        self.locations: Locations = {}  # of states that count
        self._members: dict[str, Locations] = {}  # the same by segment
        self._live: dict[str, int] = {}  # bytes of the states that count, by segment
        self._sealed: dict[str, SavedSegment] = {}
        self._open: Segment | None = None
        self._next_number = 0  # names the next segment

    # --- writing ----------------------------------------------------------------------------------

    def append(
        self, folder: Path, states: Iterable[tuple[ClientId, bytes]], number: int = 0
    ) -> Locations:
        """Write states, which do not count before `keep`; a new segment is called by `number`, or
        by a higher one if that was used before.
        """
        if self._open is None:
            self._open = Segment(folder, max(number, self._next_number))
            self._next_number = self._open.number + 1
        return self._open.append(states)

    def keep(self, locations: Mapping[ClientId, StateLocation]) -> None:
        """Let the states count that lie there, in place of what their clients had before."""
        for id, location in locations.items():
            before = self.locations.get(id)
            if before is not None:
                del self._members[before.segment][id]
                self._live[before.segment] -= before.length
            self.locations[id] = location
            self._members.setdefault(location.segment, {})[id] = location
            self._live[location.segment] = self._live.get(location.segment, 0) + location.length

    def seal(self, folder: Path, read: Read, number: int = 0) -> list[SavedSegment]:
        """Merge what should be merged, states as `read` gives them, and bring all to disk; the
        segments that are needed.
        """
        new = 0 if self._open is None else self._live.get(self._open.name, 0)
        sizes = {name: saved["states"] for name, saved in self._sealed.items()}
        merged = choose_merged({name: self._live.get(name, 0) for name in sizes}, sizes, new)
        for name in merged:
            members = self._members.get(name, {})
            if members:
                self.keep(self.append(folder, read(members), number))
        if self._open is not None:
            members = self._members.get(self._open.name, {})
            if members:
                self._sealed[self._open.name] = self._open.seal(members)
            self._open = None
        for name in [name for name in self._sealed if not self._members.get(name)]:
            self._forget(name)
        return [self._sealed[name] for name in sorted(self._sealed, key=segment_number)]

    def forget_lost(self, folder: Path) -> set[ClientId]:
        """Forget segments that are not there any more, and whose states these were."""
        lost = [name for name, saved in self._sealed.items() if not _is_whole(folder, saved)]
        ids = {id for name in lost for id in self._members[name]}
        for name in lost:
            self._forget(name)
        for id in ids:
            del self.locations[id]
        return ids

    def _forget(self, name: str) -> None:
        for facts in (self._sealed, self._members, self._live):
            facts.pop(name, None)

    # --- reading ----------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: Path, saved: Sequence[SavedSegment]) -> "SegmentLog":
        """What was saved, as far as the indices tell; the states themselves are not read."""
        log = cls()
        for segment in sorted(saved, key=lambda one: segment_number(one["name"])):
            if segment["name"] in log._sealed:
                raise FormatError(f"segments must be different, got {segment['name']} twice")
            log.keep(read_index(folder, segment))
            log._sealed[segment["name"]] = segment
            log._next_number = segment_number(segment["name"]) + 1
        return log


def choose_merged(live: Mapping[str, int], sizes: Mapping[str, int], new: int) -> list[str]:
    """The segments to merge into a new one of `new` bytes, by the bytes of their states that count
    and of all.

    What is left is each time larger by more than MERGE_RATIO, as in a counter whose digits carry:
    a state moves only when the segment that it lies in has grown by as much again. To move what is
    left of a segment that is mostly waste costs less than writing the waste has cost.
    """
    merged = [name for name in sizes if 2 * live[name] < sizes[name]]
    total = new + sum(live[name] for name in merged)
    rest = sorted((name for name in sizes if name not in merged), key=lambda name: live[name])
    while rest and (live[rest[0]] <= MERGE_RATIO * total or len(rest) >= MAX_SEGMENTS):
        total += live[rest[0]]
        merged.append(rest.pop(0))
    return merged


# --- one segment ----------------------------------------------------------------------------------


class Segment:
    """A file of many packed states, being written."""

    def __init__(self, folder: Path, number: int) -> None:
        self.number, self.name = number, f"states-{number:08d}.bin"
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

    def seal(self, locations: Mapping[ClientId, StateLocation]) -> SavedSegment:
        """Write the index of the states that count, and force all to disk."""
        index = pack_index(locations)
        with open_file(self._path, "ab") as file:
            file.write(index)
            file.flush()
            os.fsync(file.fileno())
        return SavedSegment(
            name=self.name,
            states=self._end,
            index=len(index),
            sha256=hashlib.sha256(index).hexdigest(),
        )


def _is_whole(folder: Path, saved: SavedSegment) -> bool:
    """Whether a segment is there, as far as its size tells."""
    try:
        return (folder / saved["name"]).lstat().st_size == saved["states"] + saved["index"]
    except OSError:
        return False


def segment_number(name: str) -> int:
    return int(name.removeprefix("states-").removesuffix(".bin"))


def pack_index(locations: Mapping[ClientId, StateLocation]) -> bytes:
    """Ids as JSON, as they need not be valid Unicode; offset, length and crc32 as an array."""
    ids = json.dumps(list(locations)).encode()
    numbers = [location[1:] for location in locations.values()]
    return tree.pack(
        {
            "clients": torch.frombuffer(bytearray(ids), dtype=torch.uint8),
            "locations": torch.tensor(numbers, dtype=torch.int64).reshape(-1, 3),
        }
    )


def read_index(folder: Path, saved: SavedSegment) -> Locations:
    """Where the states of a segment lie."""
    name = saved["name"]
    with open_file(folder / name, "rb") as file:
        index = _read_part(file, saved["states"], saved["index"])
    if index is None or hashlib.sha256(index).hexdigest() != saved["sha256"]:
        raise CheckpointError(f"the index of {name} is damaged")
    ids, numbers = _unpack_index(name, tree.unpack(index))
    if (numbers < 0).any():
        raise FormatError(f"the locations in {name} must be >= 0, got others")
    return {
        id: StateLocation(name, *location)
        for id, location in zip(ids, numbers.tolist(), strict=True)
    }


def _unpack_index(name: str, index: Any) -> tuple[list[str], Tensor]:
    match index:
        case {"clients": Tensor(dtype=torch.uint8) as text, "locations": Tensor() as numbers}:
            ids = parse_json(text.numpy().tobytes())
            are_ids = isinstance(ids, list) and all(isinstance(id, str) for id in ids)
            fits = numbers.dtype == torch.int64 and are_ids and numbers.shape == (len(ids), 3)
            if fits and len(set(ids)) == len(ids):
                return ids, numbers
    raise FormatError(f"the index of {name} must say where each client's state lies, got another")


def read_state(folder: Path, location: StateLocation, id: ClientId) -> bytes:
    ((_, state),) = read_states(folder, {id: location})
    return state


def read_states(
    folder: Path, locations: Mapping[ClientId, StateLocation]
) -> Iterator[tuple[ClientId, bytes]]:
    """All states, segment by segment; one that is damaged is refused."""
    ordered = sorted(locations.items(), key=lambda item: item[1][:2])
    for segment, items in groupby(ordered, key=lambda item: item[1].segment):
        with open_file(folder / segment, "rb") as file:
            for id, location in items:
                state = _read_part(file, location.offset, location.length)
                if state is None or zlib.crc32(state) != location.crc:
                    raise CheckpointError(f"the state of client {id!r} in {segment} is damaged")
                yield id, state


def _read_part(file: IO[bytes], offset: int, length: int) -> bytes | None:
    """None where the file is too short: nobody can read, or make room for, more than there is."""
    if offset + length > os.fstat(file.fileno()).st_size:
        return None
    file.seek(offset)
    return file.read(length)
