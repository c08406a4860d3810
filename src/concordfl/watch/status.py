"""How runs are getting on, read from folders that other processes are writing.

Nothing is written, and no code that settings name is imported: how many rounds there are in all,
over the stages of a method, a run says itself in progress.json. Files may be half-written, damaged,
gone between two looks, or a stranger's: what cannot be read is a message, and the rest is shown.
"""

import math
import os
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from ..config import TOML_ERRORS, own_code
from ..core import ConcordError, FormatError, SettingError
from ..engine.checkpoint import Manifest, newest_manifest
from ..engine.records import (
    PROGRESS_FILE,
    SUMMARY_FILE,
    ExecutorChoice,
    FederationFacts,
    ProgressFacts,
    RunFolder,
    resume_command,
)
from ..engine.running import is_running
from ..metrics import criterion_in, is_better
from ..report.notes import notes_on
from ..report.tables import warning_lines

CONFIG_FILE = "config.toml"
SCOPES = ("local", "global")  # participants and newcomers
MAX_LEVELS = 2  # of folders between the one that is watched and runs
# The speed is that of the last part of the rounds: stages differ, and other work comes and goes.
SHARE_OF_ROUNDS_FOR_SPEED = 0.25

State = Literal["running", "stopped", "finished", "not begun"]
SelectedOn = Literal["validation", "training"]
Found = TypeVar("Found")


class Figures(NamedTuple):
    """What was measured after a round, by the run's criterion; None where nothing was."""

    round: int
    seconds: float
    participants: float | None
    newcomers: float | None
    worst_tenth: float | None
    validation: float | None
    training: float | None


class RunStatus(NamedTuple):
    """How a run is getting on."""

    name: str  # its folder, below the one that is watched
    method: str
    seed: int | None
    state: State
    round: int  # rounds played
    rounds: int | None  # of all stages; None where the run has not said it yet
    may_end_early: bool
    stage: str | None  # that is under way
    seconds: float
    seconds_per_round: float | None
    seconds_left: float | None
    criterion: str | None  # what `evaluated` are measured by
    evaluated: tuple[Figures, ...]
    best: Figures | None  # as the run itself selects it
    selected_on: SelectedOn
    facts: tuple[str, ...]  # clients and executor
    messages: tuple[str, ...]
    way_on: str | None  # the command that goes on with a run that is not under way

    @property
    def latest(self) -> Figures | None:
        return self.evaluated[-1] if self.evaluated else None


class Watcher:
    """Looks at a run, or at the runs below a folder, again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cache = _Cache()
        if not path.is_dir():
            raise SettingError(f"a folder to watch must exist, got {path}")
        if not self._folders():
            raise SettingError(
                "a folder to watch must be of a run, or of several as `concordfl compare` makes, "
                f"got {path} without {CONFIG_FILE}"
            )

    @property
    def is_single(self) -> bool:
        return _is_run(self.path)

    def look(self) -> list[RunStatus]:
        """All runs, in the order in which they were begun."""
        return [_status(self._name(folder), folder, self._cache) for folder in self._folders()]

    def _folders(self) -> list[Path]:
        if self.is_single:
            return [self.path]
        return sorted(_runs_below(self.path, MAX_LEVELS), key=_when_begun)

    def _name(self, folder: Path) -> str:
        return self.path.absolute().name if self.is_single else str(folder.relative_to(self.path))


def _runs_below(folder: Path, levels: int) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            inside = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:  # gone, or nobody may read it
        return
    for path in inside:
        if _is_run(path):
            yield path
        elif levels > 1:
            yield from _runs_below(path, levels - 1)


def _is_run(folder: Path) -> bool:
    return (folder / CONFIG_FILE).is_file()


def _when_begun(folder: Path) -> tuple[float, str]:
    return _changed_at(folder / CONFIG_FILE) or 0.0, str(folder)


def _changed_at(file: Path) -> float | None:
    try:
        return file.lstat().st_mtime
    except OSError:
        return None


# --- files ----------------------------------------------------------------------------------------


class _Cache:
    """What was found in files, which are read again only when they have changed."""

    def __init__(self) -> None:
        self._found: dict[Path, tuple[object, Any]] = {}

    def read(self, path: Path, load: Callable[[], Found], problems: list[str]) -> Found | None:
        """What `load` makes of the file or folder `path`; where it cannot, one line more in
        `problems`.
        """
        version = _version_of(path)  # before it is read: what is written meanwhile is read again
        known, found = self._found.get(path, (None, None))
        if known is None or known != version:
            try:
                found = load()
            except ConcordError as error:
                found = error
            self._found[path] = version, found
        if isinstance(found, ConcordError):
            problems.append(str(found))
            return None
        value: Found | None = found
        return value


def _version_of(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class _Recorded(NamedTuple):
    """What the records of a run come to so far."""

    criterion: str | None = None
    evaluated: tuple[Figures, ...] = ()
    missing: Mapping[str, int] = {}
    failures: Sequence[Mapping[str, Any]] = ()
    void_rounds: int = 0


class _Checkpoints(NamedTuple):
    newest: Manifest | None = None
    problems: Sequence[str] = ()


class _Contents(NamedTuple):
    """All that is read of a run's folder."""

    config: Mapping[str, Any]
    federation: FederationFacts | None
    executor: ExecutorChoice | None
    progress: ProgressFacts | None
    recorded: _Recorded
    checkpoints: _Checkpoints
    summary: Mapping[str, Any] | None
    problems: Sequence[str]  # files that cannot be read


def _read(path: Path, cache: _Cache) -> _Contents:
    folder, problems = RunFolder(path), list[str]()

    def read(name: str, load: Callable[[], Found]) -> Found | None:
        return cache.read(path / name, load, problems)

    # The summary is read first: a run that has one has written all the rest.
    summary = read(SUMMARY_FILE, folder.read_summary)
    return _Contents(
        config=read(CONFIG_FILE, lambda: _parse_config(folder)) or {},
        federation=read("federation.json", folder.read_federation),
        executor=read("executor.json", folder.read_executor),
        progress=read(PROGRESS_FILE, folder.read_progress),
        recorded=read("records.jsonl", lambda: _digest(folder.read_records_so_far()))
        or _Recorded(),
        checkpoints=read("checkpoint", lambda: _Checkpoints(*newest_manifest(folder.checkpoints)))
        or _Checkpoints(),
        summary=summary,
        problems=problems,
    )


def _parse_config(folder: RunFolder) -> dict[str, Any]:
    text = folder.read_config()
    try:
        return tomllib.loads(text)
    except TOML_ERRORS as error:
        raise FormatError(f"{folder.path / CONFIG_FILE} must be a TOML file: {error}") from None


def _digest(records: Sequence[Mapping[str, Any]]) -> _Recorded:
    if not records:
        return _Recorded()
    last = records[-1]
    measured = (_table(record, scope) for record in reversed(records) for scope in SCOPES)
    criterion = next((name for figures in measured if (name := criterion_in(figures))), None)
    return _Recorded(
        criterion,
        tuple(_figures(record, criterion or "") for record in records),
        {reason: count for reason, count in _table(last, "missing").items() if type(count) is int},
        [failure for record in records for failure in _failures(record)],
        void if type(void := last.get("void_rounds")) is int else 0,
    )


def _figures(record: Mapping[str, Any], criterion: str) -> Figures:
    local = _table(record, "local")
    return Figures(
        round=record["round"],
        seconds=_number(record.get("seconds")) or 0.0,
        participants=_number(local.get(criterion)),
        newcomers=_number(_table(record, "global").get(criterion)),
        worst_tenth=_number(local.get("worst_tenth")),
        validation=_number(_table(record, "validation").get(criterion)),
        training=_number(_table(record, "training").get(criterion)),
    )


def _failures(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    found = record.get("failures")
    for failure in found if isinstance(found, list) else ():
        if isinstance(failure, Mapping) and {"client", "step", "round", "detail"} <= failure.keys():
            yield failure


def _table(outer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    inner = outer.get(name)
    return inner if isinstance(inner, Mapping) else {}


def _number(value: object) -> float | None:
    """A figure that can be drawn."""
    return value if isinstance(value, float) and math.isfinite(value) else None


# --- what they come to ----------------------------------------------------------------------------


class _Played(NamedTuple):
    """How far a run is."""

    round: int
    rounds: int | None
    seconds: float


def _status(name: str, path: Path, cache: _Cache) -> RunStatus:
    runs = is_running(path)  # before its files are read: a run that ends has written its summary
    found = _read(path, cache)
    settings, method = _table(found.config, "run"), _table(found.config, "algorithm").get("name")
    played, seed = _played(found), settings.get("seed")
    state = _state(found, played, runs)
    speed = _seconds_per_round(found.recorded.evaluated, played)
    is_over = state == "finished"
    selected_on: SelectedOn = (
        "training" if settings.get("select_on") == "training" else "validation"
    )
    return RunStatus(
        name=name,
        method=method if isinstance(method, str) else "?",
        seed=seed if type(seed) is int else None,
        state=state,
        round=played.round,
        rounds=played.rounds,
        may_end_early=not is_over and "patience" in settings,
        stage=found.progress["stage"] if state == "running" and found.progress else None,
        seconds=played.seconds,
        seconds_per_round=speed,
        seconds_left=_seconds_left(played, speed, path) if state == "running" else None,
        criterion=found.recorded.criterion,
        evaluated=found.recorded.evaluated,
        best=_best(found.recorded, selected_on),
        selected_on=selected_on,
        facts=tuple(_facts(found)),
        messages=tuple(_messages(found)),
        way_on=None
        if runs or is_over
        else resume_command(path, trust=bool(own_code(found.config))),
    )


def _state(found: _Contents, played: _Played, runs: bool) -> State:
    if found.summary is not None:
        return "finished"
    if runs:
        return "running"
    return "stopped" if played.round else "not begun"


def _played(found: _Contents) -> _Played:
    """By the newest of what tells of it: each is written in its own time."""
    if found.summary is not None:
        rounds = found.summary["rounds"]
        return _Played(rounds, rounds, found.summary["seconds"]["total"])
    progress, manifest, evaluated = (
        found.progress,
        found.checkpoints.newest,
        found.recorded.evaluated,
    )
    told = [(0, 0.0)]
    if progress is not None:
        told.append((progress["round"], progress["seconds"]))
    if manifest is not None:
        told.append((manifest["round"], manifest["seconds"]))
    if evaluated:
        told.append((evaluated[-1].round, evaluated[-1].seconds))
    round, seconds = max(told)
    return _Played(round, None if progress is None else progress["rounds"], seconds)


def _seconds_per_round(evaluated: Sequence[Figures], played: _Played) -> float | None:
    """Since the last evaluated round that lies far enough back to judge by."""
    enough = max(1, played.round * SHARE_OF_ROUNDS_FOR_SPEED)
    known = [(0, 0.0), *((figures.round, figures.seconds) for figures in evaluated)]
    before = [point for point in known if played.round - point[0] >= enough]
    if not before:
        return None
    round, seconds = before[-1]
    return max(0.0, played.seconds - seconds) / (played.round - round)


def _seconds_left(played: _Played, speed: float | None, path: Path) -> float | None:
    """Counted from when the run last told how far it is."""
    told_at = _changed_at(path / PROGRESS_FILE)
    if speed is None or played.rounds is None or told_at is None:
        return None
    since = max(0.0, time.time() - told_at)
    return max(0.0, speed * (played.rounds - played.round) - since)


def _best(recorded: _Recorded, selected_on: SelectedOn) -> Figures | None:
    if recorded.criterion is None:
        return None
    best: tuple[float, Figures] | None = None
    for figures in recorded.evaluated:
        value = figures.training if selected_on == "training" else figures.validation
        if value is not None and (best is None or is_better(recorded.criterion, value, best[0])):
            best = value, figures
    return best and best[1]


def _facts(found: _Contents) -> Iterator[str]:
    if found.federation is not None:
        held_out = sum(client["held_out"] for client in found.federation["clients"])
        count = len(found.federation["clients"]) - held_out
        newcomers = f", {_counted(held_out, 'newcomer')}" if held_out else ""
        yield _counted(count, "client") + newcomers
    if found.executor is not None:
        workers, device = found.executor["workers"], found.executor["device"]
        yield f"{_counted(workers, 'worker process')} on {device}"


def _counted(count: int, noun: str) -> str:
    ending = "es" if noun.endswith("s") else "s"
    return f"{count} {noun}{ending * (count != 1)}"


def _messages(found: _Contents) -> Iterator[str]:
    yield from found.problems
    if found.summary is not None:
        yield from notes_on(found.summary)
        yield from warning_lines(found.summary.get("warnings", []))
        return
    for problem in found.checkpoints.problems:
        yield f"A checkpoint is damaged: {problem}"
    yield from notes_on(
        {
            **_missing_replies(found),
            "failures": found.recorded.failures,
            "clients_without_test": 0,
            "damaged_checkpoints": [],
        }
    )


def _missing_replies(found: _Contents) -> dict[str, Any]:
    """By the last checkpoint or the last record, whichever is newer."""
    manifest, recorded = found.checkpoints.newest, found.recorded
    last = recorded.evaluated[-1].round if recorded.evaluated else 0
    if manifest is not None and manifest["round"] > last:
        return {"missing": manifest["missing"], "void_rounds": manifest["void_rounds"]}
    return {"missing": recorded.missing, "void_rounds": recorded.void_rounds}
