"""What a client keeps on its own disk for a run, so that a restarted node finds it again.

    <folder>/<run id>/run.json                    what the run must go on with
    <folder>/<run id>/secret                      what its noise is drawn from
    <folder>/<run id>/states/<version>.safetensors   a version of its private state
    <folder>/<run id>/published/<sha256>          what the server has given for good
    <folder>/<run id>/result/                     what came of the run: see deploy/received.py

The server says which version counts: a state whose reply was not counted is never begun with, and
is deleted with the versions that nobody can resume at any more. Versions are numbers that grow, and
a request deletes only older ones than its own, so that one that is late does no harm.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Collection
from pathlib import Path

from pydantic import InstanceOf, with_config
from typing_extensions import TypedDict

from ...core import CheckpointError, ClientId, FormatError, tree
from ..files import SealedJson, damage_in, make_folder, one_line, read_file, remove
from ..files import write_atomically as write
from ..sealed_tensors import seal_client_tree, verify_client_tree

ONLY_OWNER = 0o700
ADVICE = "put back a copy of it"


@with_config(extra="forbid")
class Begun(TypedDict):
    """What a client has begun a run with."""

    client: InstanceOf[str]  # which need not be valid Unicode
    config: str  # sha256 of the run file
    data: str  # sha256 of its examples


BEGUN = SealedJson(Begun, format=1, advice=ADVICE)


class Refused(CheckpointError):  # noqa: N818 - an answer, not a fault
    """Why a client does nothing, in words that name neither its data nor its files."""


class ClientStore:
    """The files of one client for one run."""

    def __init__(self, folder: Path, run_id: str, client: ClientId) -> None:
        self._client, self._folder = client, folder / run_id
        self._states, self._published = self._folder / "states", self._folder / "published"
        self.result = self._folder / "result"

    def begin(self, config: str, data: str) -> None:
        """Open the run's files; what goes on with other settings or data than it began with is
        refused.
        """
        for path in (self._folder, self._states, self._published):
            make_folder(path)
        with one_line(self._folder, "kept private"):
            self._folder.chmod(ONLY_OWNER)
        now = Begun(
            client=self._client, config=hashlib.sha256(config.encode()).hexdigest(), data=data
        )
        before = BEGUN.read(self._folder / "run.json")
        if before is None:
            BEGUN.write(self._folder / "run.json", now)
        elif before != now:
            changed = next(name for name in Begun.__annotations__ if before[name] != now[name])  # type: ignore[literal-required]
            raise Refused(f"the run must go on with the {changed} that it began with")

    def secret(self) -> str:
        """Made once: a resumed run draws the same noise."""
        path = self._folder / "secret"
        if not path.exists():
            own = path.with_name(f"secret.{os.getpid()}")
            write(own, secrets.token_hex(16))
            # Another process of this client may be quicker: the first secret counts.
            with one_line(path, "written"), contextlib.suppress(FileExistsError):
                os.link(own, path)
            remove(own)
        return read_file(path).decode()

    # --- states -----------------------------------------------------------------------------------

    def read(self, version: int) -> bytes | None:
        """A version of the packed state; None of a client that had none."""
        path = self._state_file(version)
        if not path.exists():
            raise Refused(f"the client must have version {version} of its state, got none")
        data = read_file(path)
        if not data:
            return None
        with damage_in(path, ADVICE):
            verify_client_tree(self._client, data)
            return tree.pack(tree.unpack(data))

    def write(self, version: int, state: bytes | None, keep: Collection[int]) -> None:
        """Keep a new version, and delete older ones but those to `keep`."""
        data = b"" if state is None else seal_client_tree(self._client, state)
        write(self._state_file(version), data)
        for other in self.versions():
            if other < version and other not in keep:
                remove(self._state_file(other))

    def versions(self) -> list[int]:
        names = [path.stem for path in self._states.glob("*.safetensors")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _state_file(self, version: int) -> Path:
        return self._states / f"{version:020d}.safetensors"

    # --- publications -----------------------------------------------------------------------------

    def publication(self, sha256: str) -> bytes | None:
        """None where there is no whole copy: it is asked for again."""
        path = self._published / sha256
        data = read_file(path) if path.exists() else None
        return data if data is not None and hashlib.sha256(data).hexdigest() == sha256 else None

    def keep_publication(self, sha256: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != sha256:
            raise FormatError("a publication must have the sha256 that it is sent under")
        write(self._published / sha256, data)
