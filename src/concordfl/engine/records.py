"""The files of a run folder.

config.toml                         the settings of the run
examples.npz                        the examples, of a run that was given them in Python
diagnosis.json                      how clients differ, of a run whose method `auto` has chosen
federation.json                     who takes part
refused.json                        why it could not begin with the clients that were there
executor.json                       how it is run: executor, workers, device
progress.json                       how far it is, for whoever watches it
.running                            locked while it runs: see running.py
records.jsonl                       a line per evaluated round
clients/round-00000005.npz          the figures of every client in an evaluated round
checkpoint/                         see checkpoint.py
models/final.safetensors            what is deployed; also `selected`
models/clients/<client>.safetensors a client's personal part
adapted/<client>.json, .safetensors what came of a client that joined later: see deploy/kept.py
tracked/<tool>/                     what trackers have written: see track/
summary.json                        the result; a run without one is not finished
received.safetensors                at a client of a real federation, in the place of records and
                                    checkpoints: see deploy/received.py
"""

import hashlib
import os
import reprlib
import shlex
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Required, Self

from annotated_types import MinLen
from filelock import FileLock, Timeout
from pydantic import InstanceOf, NonNegativeInt, with_config
from torch import Tensor
from typing_extensions import TypedDict

from ..core import (
    CheckpointError,
    ClientId,
    CountOrZero,
    FormatError,
    NonNegative,
    Tree,
    WorkerCount,
    tree,
)
from ..core.settings import MAX_COUNT
from ..data.memory import FILE_NAME as EXAMPLES_FILE
from . import client_table
from .client_table import ClientRows, Columns
from .files import (
    SealedJson,
    append,
    check_format,
    damage_in,
    file_name,
    make_folder,
    one_line,
    open_file,
    parse_json,
    read_file,
    refuse_links,
    remove,
    to_json,
    write_atomically,
)
from .running import RUNNING_FILE, Sign
from .sealed_tensors import join_header, seal_client_tree, split_header, verify_client_tree

RECORD_FORMAT = 1
MODEL_FORMAT = 1
PROGRESS_FILE = "progress.json"
REFUSAL_FILE = "refused.json"
DIAGNOSIS_FILE = "diagnosis.json"
RECEIVED_FILE = "received.safetensors"
# what is written before the first round is played
BEFORE_FIRST_ROUND = (
    *("config.toml", EXAMPLES_FILE, "federation.json", "executor.json", PROGRESS_FILE),
    *(REFUSAL_FILE, DIAGNOSIS_FILE),
)


# --- what the files hold --------------------------------------------------------------------------


@with_config(extra="allow")
class TaskFacts(TypedDict):
    """What a model for the run's data must take and give."""

    input_shape: list[CountOrZero]
    num_classes: CountOrZero
    objective: NotRequired[str]
    objective_settings: NotRequired[dict[str, Any]]


@with_config(extra="allow")
class RoundFacts(TypedDict, total=False):
    """The figures of a round that are shown; a method may lack any of them."""

    round: Required[CountOrZero]
    local_accuracy: float | None
    validation_accuracy: float | None
    local_worst_tenth: float | None
    local_auc: float | None
    local_f1: float | None
    local_log_likelihood: float | None
    global_accuracy: float | None


@with_config(extra="allow")
class BytesFacts(TypedDict):
    down: NonNegativeInt
    up: NonNegativeInt


@with_config(extra="allow")
class SecondsFacts(TypedDict):
    total: NonNegative


@with_config(extra="allow")
class FailureFacts(TypedDict):
    client: InstanceOf[str]  # which need not be valid Unicode
    step: str
    round: CountOrZero
    detail: str


class WarningFacts(TypedDict):
    kind: str
    text: str


@with_config(extra="allow")
class AutoFacts(TypedDict):
    """How `auto` has chosen the method of a run."""

    purpose: str
    method: str
    settings: dict[str, Any]
    because: str
    passed_over: list[str]
    found: list[str]  # what was diagnosed, in sentences


@with_config(extra="allow")
class Summary(TypedDict):
    """What readers of `summary.json` rely on; it holds more."""

    algorithm: str
    rounds: CountOrZero
    training_rounds: CountOrZero
    seed: int
    final: RoundFacts
    selected: RoundFacts | None
    selected_on: str
    clusters: dict[str, Any] | None
    server: dict[str, Any] | None
    thresholds: dict[str, Annotated[list[float], MinLen(1)]] | None
    bytes: BytesFacts
    missing: dict[str, CountOrZero]
    failures: list[FailureFacts]
    void_rounds: CountOrZero
    seconds: SecondsFacts
    executor: str
    executor_reason: str
    task: TaskFacts
    preprocessing: dict[str, Any]
    clients_without_test: CountOrZero
    damaged_checkpoints: list[str]
    warnings: NotRequired[list[WarningFacts]]  # results from before they were found have none
    group_sizes: NotRequired[list[CountOrZero] | None]
    auto: NotRequired[AutoFacts]
    versions: dict[str, str]
    records_sha256: str  # of records.jsonl


@with_config(extra="allow")
class ClientFacts(TypedDict):
    id: InstanceOf[str]  # which need not be valid Unicode
    held_out: bool


@with_config(extra="allow")
class FederationFacts(TypedDict):
    """Who takes part, and what the run must be resumed with."""

    identity: dict[str, str]
    clients: list[ClientFacts]


class RefusalFacts(TypedDict):
    why: str


class ExecutorChoice(TypedDict):
    name: Literal["serial", "vectorized", "processes", "ray", "flower"]
    workers: WorkerCount
    reason: str
    device: Literal["cpu", "cuda", "mps"]


class ProgressFacts(TypedDict):
    """How far a run is."""

    round: CountOrZero  # rounds played
    rounds: CountOrZero  # of all stages
    stage: str  # of the round that is played next
    seconds: NonNegative


REWRITE = "remove it and `concordfl resume {folder}` writes it again"
SUMMARY_FILE = "summary.json"
# A finished run is only read: without its summary it is not finished.
REWRITE_BOTH = "remove it and summary.json, and `concordfl resume {folder}` writes both again"
SUMMARY = SealedJson(Summary, format=1, advice=REWRITE, indent=2)
EXECUTOR = SealedJson(ExecutorChoice, format=1, advice=REWRITE_BOTH)
REFUSAL = SealedJson(RefusalFacts, format=1, advice="remove it: nothing depends on it")
FEDERATION = SealedJson(FederationFacts, format=1, advice=REWRITE_BOTH)
PROGRESS = SealedJson(
    ProgressFacts, format=1, advice="the run writes it again when it goes on", durable=False
)


class RecordsSeal(NamedTuple):
    """The records up to a moment: their length in bytes, and a sha256 of these bytes."""

    length: int = 0
    sha256: str = hashlib.sha256().hexdigest()


NO_RECORDS = RecordsSeal()


class RunFolder:
    """A run folder, held by one process at a time.

    `with RunFolder.create(...)` or `with RunFolder.open(...)`: the lock ends with the block, or
    with the process. The folder's own path may be a link; no link inside it is followed.
    """

    def __init__(self, path: Path, *, wait_seconds: float = 0) -> None:
        self.path = path
        self._wait_seconds = wait_seconds  # for another process to be done
        self.checkpoints = path / "checkpoint"
        self.records_file = path / "records.jsonl"
        self._lock = FileLock(path / ".lock")
        self._sign = Sign(path)

    @staticmethod
    def require_new(path: Path) -> None:
        """Refuse a folder that `create` would refuse, before any work is done."""
        _read_leftovers(path)

    @classmethod
    def create(
        cls, path: Path, config: str, files: Mapping[str, bytes] | None = None
    ) -> "RunFolder":
        """A new run in `path`, which must not hold more than a start that failed before its first
        round. It is locked from the start.

        `files` are what the settings name, by name.
        """
        leftovers = _read_leftovers(path)  # before a lock file is laid into somebody's folder
        make_folder(path)
        with cls(path) as folder:
            if _read_leftovers(path, locked=True) != leftovers:
                raise _used(path)  # somebody else has begun a run here in the meantime
            for name in leftovers:
                remove(path / name)
            for name, content in (files or {}).items():
                write_atomically(path / name, content)
            write_atomically(path / "config.toml", _encode(config))
            folder._lock.acquire()  # a second time: it outlives this block
        return folder

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """A run that exists."""
        with one_line(path, "read"):
            found = (path / "config.toml").is_file()
        if not found:
            raise CheckpointError(f"a run directory must hold config.toml, got {path} without one")
        refuse_links(path)
        return cls(path)

    def __enter__(self) -> Self:
        if self._lock.is_locked:  # by `create`
            return self
        with one_line(self.path / ".lock", "locked"):
            try:
                self._lock.acquire(timeout=self._wait_seconds)
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
        self._sign.take_down()
        self._lock.release()

    # --- how it is run ----------------------------------------------------------------------------

    def read_config(self) -> str:
        file = self.path / "config.toml"
        try:
            return read_file(file).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{file} must be text in UTF-8, got {error}") from None

    def config_digest(self) -> str:
        """sha256 of the settings as they stand in the folder."""
        return hashlib.sha256(read_file(self.path / "config.toml")).hexdigest()

    def diagnosis_digest(self) -> dict[str, str]:
        """sha256 of the diagnosis that the run's method was chosen by; empty without one."""
        file = self.path / DIAGNOSIS_FILE
        return {"diagnosis": hashlib.sha256(read_file(file)).hexdigest()} if file.exists() else {}

    def write_executor(self, choice: Mapping[str, Any]) -> None:
        """A resumed run goes on with the executor, and on the device, that it began with."""
        EXECUTOR.write(self.path / "executor.json", choice)

    def read_executor(self) -> ExecutorChoice | None:
        return EXECUTOR.read(self.path / "executor.json")

    def write_federation(self, federation: Mapping[str, Any]) -> None:
        """Who takes part; written when a run begins."""
        FEDERATION.write(self.path / "federation.json", federation)
        remove(self.path / REFUSAL_FILE)

    def write_refusal(self, why: str) -> None:
        """Why a run could not begin with its clients; the next try may."""
        REFUSAL.write(self.path / REFUSAL_FILE, {"why": why})

    def read_federation(self) -> FederationFacts | None:
        return FEDERATION.read(self.path / "federation.json")

    # --- for whoever watches ----------------------------------------------------------------------

    def show_running(self) -> None:
        """Let others see that a run is under way; the sign ends with the lock."""
        self._sign.show()

    def write_progress(self, progress: ProgressFacts) -> None:
        """How far the run is. It does not depend on the file: where it cannot be written, nobody
        sees it.
        """
        self.show_running()
        with suppress(CheckpointError):
            PROGRESS.write(self.path / PROGRESS_FILE, progress)

    def read_progress(self) -> ProgressFacts | None:
        return PROGRESS.read(self.path / PROGRESS_FILE)

    # --- records ----------------------------------------------------------------------------------

    def append_record(self, record: Mapping[str, Any]) -> RecordsSeal:
        """Add a line; the seal of all lines."""
        line = to_json({"format": RECORD_FORMAT, **record})
        append(self.records_file, line.encode() + b"\n")
        return seal_records(self.records_file)

    def cut_records(self, seal: RecordsSeal = NO_RECORDS) -> None:
        """Forget what was recorded after the checkpoint that a run goes on from."""
        verify_records(self.records_file, seal)
        with open_file(self.records_file, "ab") as file:
            file.truncate(seal.length)

    def read_records(self) -> list[dict[str, Any]]:
        self._require_servers()
        data = _read_records(self.records_file)
        self._verify_final_records(data)
        return self._parse_records(data)

    def _require_servers(self) -> None:
        """Refuse the folder of a client, which was given the result alone."""
        if (self.path / RECEIVED_FILE).exists():
            raise CheckpointError(
                f"a run directory must hold the run's records, got {self.path}, which is what a "
                "client was given of it: the server has them"
            )

    def read_records_so_far(self) -> list[dict[str, Any]]:
        """The records of a run that another process may be writing: its last line counts once its
        end is there.
        """
        data = _read_records(self.records_file)
        return self._parse_records(data[: data.rfind(b"\n") + 1])

    def _parse_records(self, data: bytes) -> list[dict[str, Any]]:
        lines = data.split(b"\n")
        return [self._parse_record(number, line) for number, line in enumerate(lines, 1) if line]

    def _verify_final_records(self, data: bytes) -> None:
        """A finished run's summary seals its records; before, its checkpoints do."""
        summary = SUMMARY.read(self.path / SUMMARY_FILE)
        if summary is not None and summary["records_sha256"] != hashlib.sha256(data).hexdigest():
            with damage_in(self.records_file, "put back a copy of it, or begin the run again"):
                raise FormatError("it must have the sha256 that summary.json names, got another")

    def _parse_record(self, number: int, line: bytes) -> dict[str, Any]:
        advice = "put back a copy of the file, or begin the run again"
        with damage_in(f"{self.records_file}, line {number},", advice):
            record = parse_json(line)
            if not isinstance(record, dict):
                raise FormatError(f"it must be a JSON object, got {reprlib.repr(record)}")
            check_format(record.pop("format", None), RECORD_FORMAT)
            round = record.get("round")
            if type(round) is not int or not 0 <= round <= MAX_COUNT:
                found = reprlib.repr(round)
                raise FormatError(
                    f"round must be a whole number from 0 to {MAX_COUNT}, got {found}"
                )
        return record

    # --- figures of every client ------------------------------------------------------------------

    def write_clients(self, round: int, rows: ClientRows) -> None:
        """The figures of clients in an evaluated round: flat mappings by client."""
        make_folder(self.path / "clients")
        write_atomically(self._clients_file(round), client_table.pack(round, rows))

    def read_clients(self, rounds: Iterable[int] | None = None) -> Columns:
        """Columns over all clients and evaluated rounds (or only `rounds`): `round`, `client`, and
        whatever was written. Numbers are float64, NaN where a client has none; other columns hold
        Python values, None where a client has none.
        """
        wanted = self._clients_rounds() if rounds is None else sorted(rounds)
        return client_table.join([self._read_clients(round) for round in wanted])

    def read_client_rows(self, round: int) -> dict[ClientId, dict[str, Any]]:
        """The figures of an evaluated round as they were written, by client."""
        return client_table.to_rows(self._read_clients(round))

    def has_clients(self, round: int) -> bool:
        """Whether there are figures of an evaluated round."""
        return round in self._clients_rounds()

    def cut_clients(self, round: int) -> None:
        """Forget the figures of rounds after `round`, that a run goes on from."""
        for later in self._clients_rounds():
            if later > round:
                remove(self._clients_file(later))

    def _read_clients(self, round: int) -> Columns:
        self._require_servers()
        file = self._clients_file(round)
        data = read_file(file)
        with damage_in(file, "remove it, and the figures of clients in that round with it"):
            return client_table.unpack(round, data)

    def _clients_file(self, round: int) -> Path:
        return self.path / "clients" / f"round-{round:08d}.npz"

    def _clients_rounds(self) -> list[int]:
        names = [path.stem.removeprefix("round-") for path in self.path.glob("clients/round-*.npz")]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    # --- results ----------------------------------------------------------------------------------

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        seal = seal_records(self.records_file)
        SUMMARY.write(self.path / SUMMARY_FILE, {**summary, "records_sha256": seal.sha256})

    def read_summary(self) -> dict[str, Any] | None:
        """What was given to `write_summary`; None where the run is not finished."""
        summary = SUMMARY.read(self.path / SUMMARY_FILE)
        if summary is None:
            return None
        return {key: value for key, value in summary.items() if key != "records_sha256"}

    def write_model(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors by their names as safetensors: what a user deploys."""
        from safetensors.torch import save

        if tensors:
            make_folder(self.path / "models")
            separate = {key: value.contiguous().clone() for key, value in tensors.items()}
            # Others' loaders look for `format`, which says by which library tensors were saved.
            header, data = split_header(save(separate, {"format": "pt"}))
            header["__metadata__"]["concordfl_format"] = str(MODEL_FORMAT)
            file = self.path / "models" / f"{name}.safetensors"
            write_atomically(file, join_header(header, data))

    def write_client_state(self, id: ClientId, state: bytes) -> None:
        """A client's personal part, a safetensors file too: what that client deploys beside the
        model. It carries the client's id and a sha256 as metadata.

        It is not forced to disk, which would take minutes for many clients: the last checkpoint has
        it too.
        """
        file = self._client_state_file(id)
        make_folder(file.parent)
        write_atomically(file, seal_client_tree(id, state), durable=False)

    def read_client_state(self, id: ClientId) -> Tree:
        """A client's personal part; None where it has none."""
        file = self._client_state_file(id)
        if not os.path.lexists(file):
            return None
        data = read_file(file)
        summary = self.path / SUMMARY_FILE
        with damage_in(file, f"remove {summary} and `concordfl resume {self.path}` writes both"):
            verify_client_tree(id, data)
            return tree.unpack(data)

    def _client_state_file(self, id: ClientId) -> Path:
        return self.path / "models" / "clients" / file_name(id, ".safetensors")


def resume_command(path: Path, *, trust: bool) -> str:
    """How a user goes on with a run."""
    return f"concordfl resume {shlex.quote(str(path))}" + " --trust" * trust


def _read_leftovers(path: Path, *, locked: bool = False) -> dict[str, bytes]:
    """What a start that failed has left in `path`; a folder that holds anything else is refused.

    Nobody but us makes a lock file, which is there unless it was made just now (`locked`).
    """
    with one_line(path, "read"):
        if path.exists() and not path.is_dir():
            raise _used(path)
        entries = [*filter(_counts, path.iterdir())] if path.exists() else []
        file = next((parent for parent in path.parents if parent.is_file()), None)
        begun = locked or (path / ".lock").is_file()
        if entries and not (begun and all(map(_is_leftover, entries))):
            raise _used(path)
    if file is not None:
        raise CheckpointError(
            f"the output folder must lie in a folder, got {path}, where {file} is a file"
        )
    return {entry.name: read_file(entry) for entry in entries}


def _is_leftover(entry: Path) -> bool:
    return entry.name in BEFORE_FIRST_ROUND and entry.is_file() and not entry.is_symlink()


def _used(path: Path) -> CheckpointError:
    what = "a run" if (path / "config.toml").exists() else "files"
    hint = f", or go on with `concordfl resume {path}`" if what == "a run" else ""
    return CheckpointError(
        f"the output folder must be new or empty, got {path}, which holds {what}: choose another"
        f"{hint}"
    )


def _counts(entry: Path) -> bool:
    """Whether a file makes a folder a used one: not what a run that was killed at once leaves
    behind.
    """
    return entry.name not in (".lock", RUNNING_FILE) and entry.suffix != ".partial"


def _encode(config: str) -> bytes:
    try:
        return config.encode()
    except UnicodeEncodeError as error:
        raise CheckpointError(f"settings must be valid Unicode, got {error.object!r}") from None


# --- seals ----------------------------------------------------------------------------------------


def seal_records(file: Path) -> RecordsSeal:
    data = _read_records(file)
    return RecordsSeal(len(data), hashlib.sha256(data).hexdigest())


def verify_records(file: Path, seal: RecordsSeal) -> None:
    """Refuse records that are not those that were there when `seal` was made."""
    data = _read_records(file)
    if len(data) < seal.length:
        raise CheckpointError(f"{file} must have at least {seal.length} bytes, got {len(data)}")
    if hashlib.sha256(data[: seal.length]).hexdigest() != seal.sha256:
        raise CheckpointError(
            f"{file} must begin with the {seal.length} bytes that were recorded, got edited ones"
        )


def _read_records(file: Path) -> bytes:
    """No file yet is the same as no record yet."""
    return read_file(file) if os.path.lexists(file) else b""
