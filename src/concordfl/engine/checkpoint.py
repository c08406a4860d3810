"""Checkpoints: an atomic manifest, written after everything it names is on disk.

    checkpoint/manifest-00000012.json     what belongs together; the newest complete one counts
    checkpoint/server-00000012.bin        the server's state; also that of the selected round
    checkpoint/published-<digest>.bin     what the server has published, once each
    checkpoint/states-00000012.bin        segments of client states

What no kept manifest names is deleted. If the newest checkpoint is damaged, the one before it is
used.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..core import CheckpointError, ClientId, Tree, tree
from .files import sync_folder, write_atomically
from .traffic import Publications, Traffic

FORMAT = 2


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
    missing: dict[str, int] = field(default_factory=dict)
    failures: list[dict[str, Any]] = field(default_factory=list)
    momentum: dict[str, Tree] = field(default_factory=dict)
    selected: Selected | None = None
    seconds: float = 0.0
    step_seconds: dict[str, float] = field(
        default_factory=dict
    )  # of them per stage, without evaluation and checkpoints
    records_length: int = 0  # bytes of records.jsonl


def save(
    folder: Path, progress: Progress, keep: int, states: dict[str, Any], identity: Any
) -> None:
    """Write a checkpoint of `progress` and drop the oldest beyond `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    selected = progress.selected
    published = {}
    for name, data in progress.publications.data.items():
        digest = hashlib.sha256(data).hexdigest()
        _write_once(folder / f"published-{digest}.bin", data)
        published[name] = {
            "sha256": digest,
            "size": progress.publications.size[name],
            "delivered": sorted(progress.publications.delivered[name]),
        }
    sync_folder(folder)
    body = {
        "format": FORMAT,
        "round": progress.round,
        "server": _write_server(folder, progress.round, progress.server),
        "selected": selected
        and [
            selected.criterion,
            selected.round,
            _write_server(folder, selected.round, selected.server),
        ],
        "states": states,
        "published": published,
        "traffic": progress.traffic.to_dict(),
        "absent": sorted(progress.absent),
        "missing": progress.missing,
        "failures": progress.failures,
        "seconds": progress.seconds,
        "step_seconds": progress.step_seconds,
        "records_length": progress.records_length,
    }
    write_atomically(folder / f"manifest-{progress.round:08d}.json", _seal(body))
    _clean_up(folder, keep)


def load(folder: Path, states: Any) -> Progress:
    """The newest checkpoint that is whole.

    Damaged ones are removed, so that nothing is built on them again.
    """
    problems = []
    for manifest in sorted(folder.glob("manifest-*.json"), reverse=True):
        try:
            progress = _load(folder, manifest, states)
        except (CheckpointError, OSError, KeyError, TypeError, ValueError) as error:
            problems.append((manifest, error))
            continue
        for damaged, _ in problems:
            damaged.unlink()
        return progress
    if problems:
        reasons = "; ".join(f"{manifest.name}: {error}" for manifest, error in problems)
        raise CheckpointError(f"every checkpoint in {folder} is damaged ({reasons})")
    raise CheckpointError(f"{folder} must hold a checkpoint, got none")


def _load(folder: Path, manifest: Path, states: Any) -> Progress:
    body = _unseal(manifest)
    if body["format"] != FORMAT:
        raise CheckpointError(f"format must be {FORMAT}, got {body['format']}")
    selected = None
    if body["selected"]:
        criterion, round, entry = body["selected"]
        selected = Selected(round, criterion, _read_server(folder, entry))
    publications = Publications()
    for name, entry in body["published"].items():
        data = _read_checked(folder / f"published-{entry['sha256']}.bin", entry["sha256"])
        publications.publish(name, data, entry["size"])
        publications.delivered[name] = set(entry["delivered"])
    states(folder, body["states"])
    return Progress(
        _read_server(folder, body["server"]),
        round=body["round"],
        traffic=Traffic(**body["traffic"]),
        publications=publications,
        absent=set(body["absent"]),
        missing=body["missing"],
        failures=body["failures"],
        selected=selected,
        seconds=body["seconds"],
        step_seconds=body["step_seconds"],
        records_length=body["records_length"],
    )


def _write_server(folder: Path, round: int, server: Tree) -> dict[str, str]:
    data = tree.pack(server)
    entry = {"file": f"server-{round:08d}.bin", "sha256": hashlib.sha256(data).hexdigest()}
    _write_once(folder / entry["file"], data)
    return entry


def _write_once(path: Path, data: bytes) -> None:
    """What is there and whole is left alone."""
    if not path.exists() or path.read_bytes() != data:
        write_atomically(path, data)


def _read_server(folder: Path, entry: dict[str, str]) -> Tree:
    return tree.unpack(_read_checked(folder / entry["file"], entry["sha256"]))


def _read_checked(path: Path, sha256: str) -> bytes:
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError(f"{path.name} is damaged")
    return data


def _seal(body: dict[str, Any]) -> str:
    text = json.dumps(body)
    return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest()}) + "\n" + text + "\n"


def _unseal(manifest: Path) -> dict[str, Any]:
    seal, _, text = manifest.read_text().partition("\n")
    text = text.rstrip("\n")
    if json.loads(seal)["sha256"] != hashlib.sha256(text.encode()).hexdigest():
        raise CheckpointError(f"{manifest.name} is damaged")
    body: dict[str, Any] = json.loads(text)
    return body


def _clean_up(folder: Path, keep: int) -> None:
    manifests = sorted(folder.glob("manifest-*.json"))
    kept = manifests[-keep:]
    named = {manifest.name for manifest in kept}
    for manifest in kept:
        try:
            body = _unseal(manifest)
        except (CheckpointError, ValueError, KeyError):
            named.remove(manifest.name)  # damaged, and older than one that is whole
            continue
        named.add(body["server"]["file"])
        if body["selected"]:
            named.add(body["selected"][2]["file"])
        named |= {f"published-{entry['sha256']}.bin" for entry in body["published"].values()}
        named |= {place[0] for place in body["states"]["states"].values()}
    for path in [*manifests, *folder.glob("*.bin"), *folder.glob("*.partial")]:
        if path.name not in named:
            path.unlink(missing_ok=True)
