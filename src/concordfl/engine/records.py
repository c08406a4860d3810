"""The files of a run directory: `config.toml`, `records.jsonl`, `summary.json`, `checkpoint/`,
`models/`.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from torch import Tensor

from ..core import CheckpointError, ClientId, Tree, tree
from .files import write_atomically


class RunFolder:
    """A run directory, held by one process at a time.

    `with RunFolder.create(...)` or `with RunFolder.open(...)`: the lock ends with the block, or
    with the process.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoint"
        self.records_file = path / "records.jsonl"
        self._lock = FileLock(path / ".lock")

    @classmethod
    def create(cls, path: Path, config: str) -> "RunFolder":
        """A new run in `path`, which must not hold anything yet."""
        if path.exists() and (not path.is_dir() or any(_counts(entry) for entry in path.iterdir())):
            what = "a run" if (path / "config.toml").exists() else "files"
            hint = f", or go on with `concordfl resume {path}`" if what == "a run" else ""
            raise CheckpointError(
                f"the output folder must be new or empty, got {path}, which holds {what}: choose "
                f"another{hint}"
            )
        if (
            file := next((parent for parent in path.parents if parent.is_file()), None)
        ) is not None:
            raise CheckpointError(
                f"the output folder must lie in a folder, got {path}, where {file} is a file"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        write_atomically(path / "config.toml", config)
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that exists."""
        if not (path / "config.toml").is_file():
            raise CheckpointError(f"a run directory must hold config.toml, got {path} without one")
        return cls(path)

    def __enter__(self) -> "RunFolder":
        try:
            self._lock.acquire(blocking=False)
        except Timeout:
            raise CheckpointError(
                f"a run directory must be used by one process at a time, got {self.path} in use"
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._lock.release()

    # --- records ----------------------------------------------------------------------------------

    def append_record(self, record: Mapping[str, Any]) -> int:
        """Add a line; the file's length in bytes."""
        with open(self.records_file, "ab") as file:
            file.write(to_json(record).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def cut_records(self, length: int) -> None:
        """Forget what was recorded after the checkpoint that a run goes on from."""
        if not self.records_file.exists():
            self.records_file.touch()
        if self.records_file.stat().st_size < length:
            raise CheckpointError(
                f"{self.records_file} must have at least {length} bytes, got "
                f"{self.records_file.stat().st_size}"
            )
        os.truncate(self.records_file, length)

    def read_records(self) -> list[dict[str, Any]]:
        if not self.records_file.exists():
            return []
        return [json.loads(line) for line in self.records_file.read_text().splitlines()]

    def write_clients(self, round: int, rows: Any) -> None: ...

    # --- how it is run ----------------------------------------------------------------------------

    def write_executor(self, choice: Mapping[str, Any]) -> None:
        """A resumed run goes on with the executor, and on the device, that it began with."""
        write_atomically(self.path / "executor.json", to_json(choice) + "\n")

    def read_executor(self) -> dict[str, Any] | None:
        return self._read_json("executor.json")

    # --- results ----------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        write_atomically(self.path / "summary.json", to_json(summary, indent=2) + "\n")

    def read_summary(self) -> dict[str, Any] | None:
        return self._read_json("summary.json")

    def _read_json(self, name: str) -> dict[str, Any] | None:
        file = self.path / name
        if not file.exists():
            return None
        content: dict[str, Any] = json.loads(file.read_text())
        return content

    def write_model(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors by their names as safetensors: what a user deploys."""
        from safetensors.torch import save

        if tensors:
            (self.path / "models").mkdir(exist_ok=True)
            apart = {key: value.contiguous().clone() for key, value in tensors.items()}
            write_atomically(self.path / "models" / f"{name}.safetensors", save(apart))

    def write_client_state(self, id: ClientId, state: bytes) -> None:
        """A client's personal part, a safetensors file too: what that client deploys beside the
        model.
        """
        file = self._client_file(id)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, state)

    def read_client_state(self, id: ClientId) -> Tree:
        """A client's personal part; None where it has none."""
        file = self._client_file(id)
        return tree.unpack(file.read_bytes()) if file.exists() else None

    def _client_file(self, id: ClientId) -> Path:
        return self.path / "models" / "clients" / f"{quote(id, safe=' ')}.safetensors"


def _counts(entry: Path) -> bool:
    """Whether a file makes a folder a used one: not what a run that was killed at once leaves
    behind.
    """
    return entry.name != ".lock" and entry.suffix != ".partial"


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"cannot be recorded: {type(value).__name__}")
