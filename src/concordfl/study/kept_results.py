"""Kept results: `NAME.results.jsonl` beside the run file `NAME.toml`, a line per cell.

A line has the method, its seed, the settings that differ from the run file, and the figures that
tables and curves are made of; or, with a `measure`, what a script measured in the finished run.
Lines are checked when they are read. One that is damaged is refused. One whose settings, applied
to the run file, no longer give its `config_hash` is ignored: the run file, the defaults or the
data are others than they were.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NotRequired, Required, cast

import pydantic_core
from annotated_types import Ge, Le
from filelock import FileLock
from pydantic import ConfigDict, StringConstraints, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict  # pydantic cannot use that of typing before Python 3.12

from ..config import COMPARED, own_code, read_table
from ..core import ConcordError, DataError
from ..core.own_code import names_own_code
from ..core.settings import Count, CountOrZero, Finite, NonNegative, Probability
from ..data.files import kind_of, require_file
from ..engine.files import to_json, write_atomically
from ..engine.records import WarningFacts
from ..metrics import criterion_in
from .cells import ConfigHasher, apply_settings, cells

FORMAT = 1
MAX_BYTES_SENT = 10**18
# What a method says of its server is kept where it is short, not the history of every client.
MAX_SERVER_CHARACTERS = 500
MAX_CLIENTS_KEPT = 1000  # whose own figures are kept
DIGITS = 5  # of a client's figure
MAX_SHOWN_CHARACTERS = 60  # of a wrong value in an error message

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4,64}\+?$")]
Day = Annotated[str, StringConstraints(pattern=r"^\d{4}-\d\d-\d\d$")]
BytesSent = Annotated[int, Ge(0), Le(MAX_BYTES_SENT)]
Agreement = Annotated[float, Ge(-1), Le(1)]


# --- what a line must be --------------------------------------------------------------------------


@with_config(ConfigDict(extra="allow"))
class RoundFigures(TypedDict, total=False):
    """The figures of a round, of participants (local) and of held-out clients (global)."""

    round: Required[CountOrZero]
    local_accuracy: Probability | None
    validation_accuracy: Probability | None
    local_accuracy_std: Probability | None
    local_worst_tenth: float | None  # of the headline metric
    local_auc: Probability | None
    local_auc_std: Probability | None
    local_f1: Probability | None
    local_f1_std: Probability | None
    global_accuracy: Probability | None
    global_accuracy_std: Probability | None
    global_worst_tenth: float | None
    global_auc: Probability | None
    global_auc_std: Probability | None
    global_f1: Probability | None
    global_f1_std: Probability | None


class Traffic(TypedDict):
    down: BytesSent
    up: BytesSent
    evaluation_down: BytesSent
    evaluation_up: BytesSent


@with_config(ConfigDict(extra="allow"))
class Seconds(TypedDict):
    total: NonNegative


@with_config(ConfigDict(extra="allow"))
class Clusters(TypedDict):
    ari: Agreement | None


@with_config(ConfigDict(extra="allow"))
class EvaluatedRound(TypedDict):
    """An evaluated round in short: accuracy, or another criterion by its name, and the bytes and
    seconds it took to get there.
    """

    round: CountOrZero
    stage: str
    local_accuracy: NotRequired[Probability | None]
    global_accuracy: NotRequired[Probability | None]
    bytes: Traffic
    seconds: NotRequired[NonNegative]  # results from before do not have them


class Figures(TypedDict):
    """What is kept of the summary, the records and the clients of a run."""

    rounds: Count
    clients: Count
    parameters: CountOrZero
    final: RoundFigures
    selected: RoundFigures | None
    selected_on: str
    clusters: Clusters | None
    server: dict[str, Any] | None
    bytes: Traffic
    missing: dict[str, Count]  # how many replies, by the reason
    seconds: Seconds
    history: list[EvaluatedRound] | None  # None in results from before it was kept
    parameters_sha256: Sha256
    states_sha256: Sha256
    executor: str
    versions: dict[str, str]
    # What results from before do not have:
    algorithm: NotRequired[str]
    stopped_early: NotRequired[bool]  # by run.patience
    last_ten: NotRequired[dict[str, Finite] | None]  # over the last ten evaluated rounds
    warnings: NotRequired[list[WarningFacts]]
    group_sizes: NotRequired[list[Count] | None]  # of the groups found, the largest first
    # the criterion on every participant's test examples, rounded; not of very many clients
    client_scores: NotRequired[dict[str, Finite]]


@with_config(ConfigDict(extra="forbid"))
class Line(TypedDict):
    """A line of a results file. `figures` are `Figures`, or anything if there is a `measure`."""

    format: int
    method: str
    settings: dict[str, Any]
    seed: int
    measure: NotRequired[str]
    config_hash: Hash
    revision: Revision | None
    date: Day | None
    figures: Any


_LINE = TypeAdapter(Line)
_FIGURES = TypeAdapter(Figures)


def figures_of(
    summary: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    clients: Mapping[str, Mapping[str, Any]] | None = None,
) -> Figures:
    """The part of a finished run that is worth keeping; of its `clients`, where they are known."""
    figures = {key: summary.get(key) for key in Figures.__required_keys__}
    later = ("algorithm", "stopped_early", "warnings", "group_sizes", "last_ten")
    figures |= {key: summary[key] for key in later if key in summary}
    scores = client_scores(clients or {})
    if scores:
        figures["client_scores"] = scores
    for part in ("final", "selected"):
        figures[part] = summary[part] and {
            key: value for key, value in summary[part].items() if key != "clients"
        }
    figures["server"] = summary["server"] and {
        key: json.loads(text)
        for key, value in summary["server"].items()
        if len(text := to_json(value)) <= MAX_SERVER_CHARACTERS
    }
    figures["versions"] = {
        key: value for key, value in summary["versions"].items() if key != "revision"
    }  # the line has the revision
    figures["history"] = [evaluated_round(record) for record in records]
    return cast(Figures, figures)


def client_scores(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The criterion on the test examples of every participant that has any."""
    participants = {id: row for id, row in rows.items() if not row["new"]}
    names = [criterion_in(row) for row in participants.values()]
    name = next((name for name in names if name is not None), None)
    return {
        # an id need not be valid Unicode, and JSON must be
        id.encode(errors="backslashreplace").decode(): float(f"{row[name]:.{DIGITS}g}")
        for id, row in sorted(participants.items())
        if name is not None and row.get(name) is not None
    }


def evaluated_round(record: Mapping[str, Any]) -> dict[str, Any]:
    name = criterion_in(record.get("local", {})) or "accuracy"
    reached = {
        f"{scope}_{name}": record[scope].get(name)
        for scope in ("local", "global")
        if scope in record
    }
    return {
        "round": record["round"],
        "stage": record["stage"],
        **reached,
        "bytes": record["bytes"],
        "seconds": record["seconds"],
    }


# --- the file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeptResults:
    """The lines of a results file that belong to its run file as it is now."""

    file: Path
    results: Mapping[str, Line]  # by config_hash
    measures: Mapping[tuple[str, str], Line]  # by measure and config_hash
    ignored: Mapping[int, str]  # by line number: why

    def describe_ignored(self) -> str | None:
        """One sentence about the lines that do not count."""
        if not self.ignored:
            return None
        by_reason: dict[str, list[str]] = {}
        for number, reason in self.ignored.items():
            by_reason.setdefault(reason, []).append(str(number))
        parts = [
            f"line{'s' * (len(numbers) > 1)} {', '.join(numbers)} ignored: {reason}"
            for reason, numbers in by_reason.items()
        ]
        return f"{self.file}: {'; '.join(parts)}"


def describe_kept(lines: Sequence[Line], cells: int) -> str | None:
    """One sentence about those of the `cells` whose figures were not computed but kept."""
    if not lines:
        return None
    days = sorted({line["date"] for line in lines if line["date"]})
    computed = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "date unknown"
    known = sorted({line["revision"] or "unknown" for line in lines})
    revisions = f"revision{'s' * (len(known) > 1)} {', '.join(known)}"
    return f"kept: {len(lines)} of {cells} cells ({computed}, {revisions})"


def results_file(run_file: Path) -> Path:
    return run_file.with_name(f"{run_file.stem}.results.jsonl")


def read(run_file: Path, hasher: ConfigHasher) -> KeptResults:
    """What is kept beside `run_file`; nothing if there is no such file."""
    file = results_file(run_file)
    table = read_table(run_file)
    results: dict[str, Line] = {}
    measures: dict[tuple[str, str], Line] = {}
    ignored: dict[int, str] = {}
    for number, line in _read_lines(file).items():
        if reason := _mismatch(table, line, hasher):
            ignored[number] = reason
        elif "measure" in line:
            measures[line["measure"], line["config_hash"]] = line
        else:
            results[line["config_hash"]] = line
    return KeptResults(file, results, measures, ignored)


def keep(run_file: Path, line: Line) -> None:
    """Add a line to the results of `run_file`, or put it where one of the same cell is."""
    file = results_file(run_file)
    figures = line["figures"]
    if "measure" not in line and len(figures.get("client_scores", ())) > MAX_CLIENTS_KEPT:
        short = {key: value for key, value in figures.items() if key != "client_scores"}
        line = {**line, "figures": short}
    try:
        checked = _check_line(json.loads(to_json(line)))
    except ValueError as error:
        raise DataError(f"{file} must hold whole results, got one that is not: {error}") from None
    with _one_at_a_time(file):
        lines = {_identity(kept): kept for kept in _read_lines(file).values()}
        lines[_identity(checked)] = checked
        text = "".join(to_json(kept) + "\n" for kept in sorted(lines.values(), key=_order))
        write_atomically(file, text)


def _one_at_a_time(file: Path) -> FileLock:
    """A lock on a results file, which lies elsewhere: its folder may be under version control."""
    name = hashlib.sha256(str(file.resolve()).encode(errors="surrogateescape")).hexdigest()
    return FileLock(Path(tempfile.gettempdir()) / f"concordfl-{name[:16]}.lock")


def _read_lines(file: Path) -> dict[int, Line]:
    """The checked lines by their number, counted from 1."""
    if kind_of(file) is None:
        return {}
    require_file(file)
    try:
        content = file.read_bytes()
    except OSError as error:
        raise DataError(f"{file} must be a file of kept results: {error}") from None
    lines: dict[int, Line] = {}
    numbers: dict[str, int] = {}
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            line = _check_line(pydantic_core.from_json(text))
            if (first := numbers.setdefault(_identity(line), number)) != number:
                raise ValueError(f"it repeats line {first}")
        except ValueError as error:
            raise DataError(f"{file}, line {number}, must be a kept result: {error}") from None
        lines[number] = line
    return lines


def _check_line(value: Any) -> Line:
    """`value` as a line, or ValueError."""
    number = value.get("format") if isinstance(value, dict) else None
    if type(number) is int and number > FORMAT:
        raise ValueError(
            f"its format must be at most {FORMAT}, got {number}: a newer concordfl wrote it"
        )
    if type(number) is not int or number != FORMAT:
        raise ValueError(f"its format must be {FORMAT}, got {number!r}")
    line: Line = validate(_LINE, value, ())
    if "measure" not in line:
        validate(_FIGURES, line["figures"], ("figures",))
    return line


def validate(adapter: TypeAdapter[Any], value: Any, within: tuple[str, ...]) -> Any:
    """`value` if it is what it must be; ValueError with the first thing that is wrong."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in (*within, *problem["loc"]))
    if problem["type"] == "missing":
        raise ValueError(f"{path} must be there, got none")
    rule = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    raise ValueError(f"{path} must be {rule}, got {_shortened(problem['input'])}")


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."


def _mismatch(table: Mapping[str, Any], line: Line, hasher: ConfigHasher) -> str | None:
    """Why a line does not belong to the run file; None if it does."""
    method, seed = line["method"], line["seed"]
    try:
        changed = apply_settings(table, line["settings"])
        if names_own_code(method) or not _own_methods(changed) <= _own_methods(table):
            return "it names a method that is not one of ours, nor its run file's"
        settings = cells(changed, [method], [seed])[method, seed]
    except ConcordError as error:
        return f"its settings no longer fit the run file: {error}"
    if settings.own_code():  # which the hash would import
        return "it names code that is not ours, of which no results are kept"
    if hasher(settings) != line["config_hash"]:
        return "the run file, the defaults or the data have changed since"
    return None


def _own_methods(table: Mapping[str, Any]) -> set[str]:
    """Users' own classes of methods that a run file names: reading it imports them."""
    named = own_code(table).items()
    return {name for key, name in named if key == "algorithm.name" or key.startswith(COMPARED)}


def _identity(line: Line) -> str:
    """Equal for lines of which one replaces the other."""
    return json.dumps(
        [line["method"], line["settings"], line["seed"], line.get("measure")], sort_keys=True
    )


def _order(line: Line) -> tuple[Any, ...]:
    """By method, settings and seed; numbers by their size."""
    settings = [
        (key, 0, value, "") if type(value) in (int, float) else (key, 1, 0, json.dumps(value))
        for key, value in sorted(line["settings"].items())
    ]
    return line["method"], settings, line.get("measure", ""), line["seed"]
