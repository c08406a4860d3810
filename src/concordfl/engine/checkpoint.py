"""Checkpoints: an atomic manifest, written after everything it names is on disk.

    checkpoint/manifest-00000012.json     what belongs together; the newest whole one counts
    checkpoint/server-00000012.bin        all that the server holds: its state, the state of the
                                          selected round, what it has published and to whom
    checkpoint/states-00000012.bin        a segment of client states, with an index (`segments.py`)

No size depends on the number of clients but those of states, which are only written when they have
changed, and of the lists of who has received or missed something.

What no kept manifest names is deleted. A manifest is sealed, and seals the rest: the server's file,
the segments' indices and the records up to then by their sha256, client states by a checksum each,
the settings and data of the run by its `identity`. If the newest checkpoint is damaged, the one
before it is used.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NotRequired

import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from ..core import (
    ByteCount,
    CheckpointError,
    ClientId,
    CountOrZero,
    FormatError,
    NonNegative,
    Tree,
    tree,
)
from ..core.errors import OtherFormatError
from .client_states import NO_CLIENTS, SavedClients
from .files import (
    SealedJson,
    make_folder,
    one_line,
    parse_json,
    read_file,
    remove,
    sync_folder,
    write_atomically,
)
from .records import NO_RECORDS, RecordsSeal, verify_records
from .traffic import Publications, Traffic

# What an identity that differs means, by its name.
IDENTITY_RULES = {
    "config": "config.toml was edited since the run began",
    "data": "the run was begun with other data",
}
# which runs did not record from the beginning, or which may be written into their folder later
LATER_IDENTITIES = ("network", "diagnosis")


class Selected(NamedTuple):
    """The evaluated round that did best on validation (or training) data so far, and the server's
    state after it.
    """

    round: int
    criterion: float  # accuracy, or the log-likelihood of a method without labels
    server: Tree


@dataclass
class Progress:
    """All that a run has come to: what a checkpoint holds and a resumed run starts from."""

    server: Tree
    round: int = 0  # rounds completed
    traffic: Traffic = field(default_factory=Traffic)
    publications: Publications = field(default_factory=Publications)
    absent: set[ClientId] = field(default_factory=set)  # missed a stage meant for everyone
    missing: dict[str, int] = field(default_factory=dict)  # replies that do not count, by reason
    failures: list[dict[str, Any]] = field(default_factory=list)  # the first of them in detail
    void_rounds: int = 0  # in which too few clients answered, each attempt of them
    void_training_rounds: int = 0  # which were left void, so that nothing was learnt
    momentum: dict[str, Tree] = field(default_factory=dict)  # of the server's steps
    selected: Selected | None = None
    seconds: float = 0.0
    # of them per stage, without evaluation and checkpoints
    step_seconds: dict[str, float] = field(default_factory=dict)
    records: RecordsSeal = NO_RECORDS


class Loaded(NamedTuple):
    """The newest whole checkpoint."""

    progress: Progress
    problems: tuple[str, ...]  # a line for every newer checkpoint that is damaged


# --- what a manifest holds ------------------------------------------------------------------------


class SelectedFacts(TypedDict):
    round: CountOrZero
    criterion: float


class PublicationFacts(TypedDict):
    size: ByteCount


class TrafficFacts(TypedDict):
    down: ByteCount
    up: ByteCount
    evaluation_down: ByteCount
    evaluation_up: ByteCount


class RecordsFacts(TypedDict):
    length: ByteCount
    sha256: str


@with_config(extra="forbid")
class Manifest(TypedDict):
    """All that a checkpoint of a run holds, apart from the server's file and the states."""

    round: CountOrZero
    identity: dict[str, str]
    server: str  # sha256 of the server's file
    selected: SelectedFacts | None
    published: dict[str, PublicationFacts]
    clients: SavedClients
    traffic: TrafficFacts
    missing: dict[str, CountOrZero]
    failures: list[dict[str, Any]]
    void_rounds: CountOrZero
    void_training_rounds: NotRequired[CountOrZero]  # not in checkpoints from before
    seconds: NonNegative
    step_seconds: dict[str, NonNegative]
    records: RecordsFacts


MANIFEST = SealedJson(Manifest, format=4)


# --- saving ---------------------------------------------------------------------------------------


def save(
    folder: Path,
    progress: Progress,
    keep: int,
    clients: SavedClients = NO_CLIENTS,
    identity: Mapping[str, str] | None = None,
) -> None:
    """Write a checkpoint of `progress` and drop the oldest beyond `keep`.

    `clients` says where the executor has saved what clients keep. `identity` names what a run must
    be resumed with, such as hashes of its settings and data.
    """
    make_folder(folder)
    server = _pack_server(progress)
    write_atomically(_server_file(folder, progress.round), server)
    with one_line(folder, "written"):
        sync_folder(folder)
    manifest = _describe(progress, clients, hashlib.sha256(server).hexdigest(), identity or {})
    MANIFEST.write(_manifest_file(folder, progress.round), manifest)
    _clean_up(folder, manifest, keep)


def _describe(
    progress: Progress, clients: SavedClients, server_sha256: str, identity: Mapping[str, str]
) -> Manifest:
    selected, publications = progress.selected, progress.publications
    return Manifest(
        round=progress.round,
        identity=dict(identity),
        server=server_sha256,
        selected=selected and SelectedFacts(round=selected.round, criterion=selected.criterion),
        published={name: PublicationFacts(size=size) for name, size in publications.size.items()},
        clients=clients,
        traffic=TrafficFacts(**progress.traffic.to_dict()),  # type: ignore[typeddict-item]
        missing=progress.missing,
        failures=progress.failures,
        void_rounds=progress.void_rounds,
        void_training_rounds=progress.void_training_rounds,
        seconds=progress.seconds,
        step_seconds=progress.step_seconds,
        records=RecordsFacts(**progress.records._asdict()),  # type: ignore[typeddict-item]
    )


def _pack_server(progress: Progress) -> bytes:
    publications = progress.publications
    published = {name: _to_tensor(data) for name, data in publications.data.items()}
    delivered = {name: _pack_ids(ids) for name, ids in publications.delivered.items()}
    selected = None if progress.selected is None else progress.selected.server
    return tree.pack(
        {
            "server": progress.server,
            "selected": selected,
            "published": published,
            "delivered": delivered,
            "absent": _pack_ids(progress.absent),
            "momentum": progress.momentum,
        }
    )


def _pack_ids(ids: Iterable[ClientId]) -> Tensor:
    """As JSON: ids need not be valid Unicode."""
    return _to_tensor(json.dumps(sorted(ids)).encode())


def _to_tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def _clean_up(folder: Path, newest: Manifest, keep: int) -> None:
    """Delete what no kept checkpoint needs: older ones, and damaged ones of rounds that were played
    again.
    """
    kept = [newest]
    for round in _manifest_rounds(folder):
        if round < newest["round"] and len(kept) < keep:
            try:
                kept.append(_read_manifest(folder, round))
            except (FormatError, CheckpointError):
                continue  # damaged, and older than one that is whole
    needed = {path for manifest in kept for path in _needed_files(folder, manifest)}
    for pattern in ("manifest-*.json", "*.bin", "*.partial"):
        for path in folder.glob(pattern):
            if path not in needed and not path.is_dir():
                remove(path)


def _needed_files(folder: Path, manifest: Manifest) -> list[Path]:
    round, states = manifest["round"], manifest["clients"]["states"]
    segments = [] if states is None else [each["name"] for each in states["segments"]]
    files = [_manifest_file(folder, round), _server_file(folder, round)]
    return files + [folder / segment for segment in segments]


# --- loading --------------------------------------------------------------------------------------


def load(
    folder: Path,
    load_clients: Callable[[Path, SavedClients], None] | None = None,
    identity: Mapping[str, str] | None = None,
    records_file: Path | None = None,
) -> Loaded:
    """The newest checkpoint that is whole; nothing is changed on disk.

    `load_clients` takes up what clients keep, and says if it is damaged. With `identity`, a run
    that was begun with another one is refused. With `records_file`, a checkpoint counts as damaged
    where the records are not those it was written with.
    """
    problems = []
    for round in _manifest_rounds(folder):
        try:
            manifest = _read_manifest(folder, round)
            if records_file is not None:
                verify_records(records_file, RecordsSeal(**manifest["records"]))
            progress = _restore(folder, manifest, load_clients)
        except OtherFormatError as error:  # not damaged, so it may not be stepped over
            raise OtherFormatError(f"{_manifest_file(folder, round)}: {error}") from None
        except (FormatError, CheckpointError) as error:
            problems.append(f"{_manifest_file(folder, round).name}: {error}")
            continue
        check_identity(folder, manifest["identity"], identity)
        return Loaded(progress, tuple(problems))
    if problems:
        raise CheckpointError(
            f"every checkpoint in {folder} is damaged ({'; '.join(problems)}): put back a copy of "
            "these files, or begin the run again"
        )
    raise CheckpointError(f"{folder} must hold a checkpoint, got none")


def newest_manifest(folder: Path) -> tuple[Manifest | None, list[str]]:
    """The newest manifest that is whole, of a run that another process may be writing, and a line
    for every newer one that is not.
    """
    problems: list[str] = []
    for round in _manifest_rounds(folder):
        try:
            return _read_manifest(folder, round), problems
        except (FormatError, CheckpointError) as error:
            file = _manifest_file(folder, round)
            if file.exists():  # else the run has dropped it meanwhile
                problems.append(f"{file.name}: {error}")
    return None, problems


def _restore(
    folder: Path,
    manifest: Manifest,
    load_clients: Callable[[Path, SavedClients], None] | None,
) -> Progress:
    held = _read_server(folder, manifest)
    publications = Publications()
    for name, facts in manifest["published"].items():
        publications.publish(name, held.published[name], facts["size"])
        publications.delivered[name] = held.delivered[name]
    selected = manifest["selected"]
    if load_clients is not None:
        load_clients(folder, manifest["clients"])
    return Progress(
        held.server,
        round=manifest["round"],
        traffic=Traffic(**manifest["traffic"]),
        publications=publications,
        absent=set(held.absent),
        missing=manifest["missing"],
        failures=manifest["failures"],
        void_rounds=manifest["void_rounds"],
        void_training_rounds=manifest.get("void_training_rounds", manifest["void_rounds"]),
        momentum=held.momentum,
        selected=selected and Selected(selected["round"], selected["criterion"], held.selected),
        seconds=manifest["seconds"],
        step_seconds=manifest["step_seconds"],
        records=RecordsSeal(**manifest["records"]),
    )


class ServerFile(NamedTuple):
    """What the server's file holds."""

    server: Tree
    selected: Tree
    published: dict[str, bytes]
    delivered: dict[str, frozenset[ClientId]]  # who has received what was published
    absent: frozenset[ClientId]
    momentum: dict[str, Tree]


def _read_server(folder: Path, manifest: Manifest) -> ServerFile:
    file = _server_file(folder, manifest["round"])
    data = read_file(file)
    if hashlib.sha256(data).hexdigest() != manifest["server"]:
        raise FormatError(f"{file.name} is damaged")
    match tree.unpack(data):
        case {
            "server": server,
            "selected": selected,
            "published": dict(published),
            "delivered": dict(delivered),
            "absent": absent,
            "momentum": dict(momentum),
        } if (
            _are_bytes([*published.values(), *delivered.values(), absent])
            and published.keys() == delivered.keys() == manifest["published"].keys()
        ):
            names = {name: value.numpy().tobytes() for name, value in published.items()}
            received = {name: _unpack_ids(value) for name, value in delivered.items()}
            return ServerFile(server, selected, names, received, _unpack_ids(absent), momentum)
    raise FormatError(f"{file.name} must hold what a server holds, got another tree")


def _unpack_ids(text: Tensor) -> frozenset[ClientId]:
    ids = parse_json(text.numpy().tobytes())
    if not isinstance(ids, list) or not all(isinstance(id, str) for id in ids):
        raise FormatError("clients must be a list of texts, got another")
    return frozenset(ids)


def _are_bytes(values: Iterable[Tree]) -> bool:
    return all(isinstance(value, Tensor) and value.dtype == torch.uint8 for value in values)


def _read_manifest(folder: Path, round: int) -> Manifest:
    manifest = MANIFEST.parse(read_file(_manifest_file(folder, round)))
    if manifest["round"] != round:
        raise FormatError(f"it must be of round {round}, got {manifest['round']}")
    return manifest


def check_identity(
    folder: Path, begun_with: Mapping[str, str], identity: Mapping[str, str] | None
) -> None:
    """Refuse to go on with other settings or data than the run began with."""
    for name in sorted({*begun_with, *identity} if identity is not None else ()):
        if name in LATER_IDENTITIES and name not in begun_with:
            continue
        before, now = begun_with.get(name, "none"), (identity or {}).get(name, "none")
        if before != now:
            rule = IDENTITY_RULES.get(name, f"the run was begun with another {name}")
            raise CheckpointError(f"{folder}: {rule}: {name} must be {before[:16]}, got {now[:16]}")


def _manifest_rounds(folder: Path) -> list[int]:
    """The rounds after which a checkpoint was written, the newest first."""
    names = [path.stem.removeprefix("manifest-") for path in folder.glob("manifest-*.json")]
    return sorted(
        (int(name) for name in names if len(name) == 8 and name.isascii() and name.isdigit()),
        reverse=True,
    )


def _manifest_file(folder: Path, round: int) -> Path:
    return folder / f"manifest-{round:08d}.json"


def _server_file(folder: Path, round: int) -> Path:
    return folder / f"server-{round:08d}.bin"
