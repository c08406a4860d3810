"""`concordfl bench scale`: runs of a few and of many clients, side by side."""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..engine.records import RunFolder
from ..federate.services import descendants
from .children import own_environment, own_program, run_program, scratch
from .findings import Cell, Findings, FindingsTable, bars, rounded
from .turns import Report, ratio, silent

METHODS = ("fedavg", "fedconceptem", "apfl")
ROWS_PER_FILE = 20
MEGABYTE = 1e6
COLUMNS = (
    "method",
    "clients",
    "s to the end of the first round",
    "s a round",
    "times the few's",
    "s of a checkpoint",
    "s to resume",
    "MB of memory",
    "MB on disk",
    "files of checkpoints",
)

Figures = dict[str, float]


class Sizes(NamedTuple):
    populations: tuple[int, int] = (2_000, 100_000)
    cohort: int = 1_000
    examples: int = 10  # of each client
    rounds: int = 6
    files: int = 10_000  # of .csv, a client each


QUICK = Sizes(populations=(40, 80), cohort=20, rounds=4, files=10)


def measure_scale(
    repeats: int,
    *,
    names: Sequence[str] = METHODS,
    quick: bool = False,
    report: Report = silent,
    sizes: Sizes | None = None,
) -> Findings:
    """These methods with few and with many clients, in processes of their own; then a folder of
    files.
    """
    sizes = sizes or (QUICK if quick else Sizes())
    found: dict[tuple[str, int], list[Figures]] = {}
    files = []
    for _ in range(repeats):
        for method in names:
            for population in sizes.populations:
                found.setdefault((method, population), []).append(
                    _measure_run(method, population, sizes)
                )
                report(f"{method}, {population:,} clients")
        files.append(_measure_files(sizes))
        report(f"{sizes.files:,} files")
    title = (
        f"{sizes.examples} examples per client, {sizes.cohort:,} clients a round, linear model, "
        "in one process"
    )
    rows = tuple(
        _row(method, population, figures, found[method, sizes.populations[0]])
        for (method, population), figures in found.items()
    )
    seconds = {
        f"{population:,} clients": {
            method: _median(found[method, population], "round") for method in names
        }
        for population in sizes.populations
    }
    return Findings(
        "scale",
        (FindingsTable(title, COLUMNS, rows, labels=2), _files_table(files, sizes)),
        ("Memory is the largest of a process and those it started.",),
        (bars("a round", "seconds", seconds),),
        repeats,
    )


def count_steps(repeats: int, names: Sequence[str] = METHODS) -> int:
    """How often `report` is called."""
    return repeats * (len(names) * len(Sizes().populations) + 1)


def _measure_run(method: str, population: int, sizes: Sizes) -> Figures:
    """One run, up to its last round but one, and its last one in another process."""
    with scratch() as folder:
        out = folder / "run"
        sections = {
            "data": {
                "name": "synthetic-mixture",
                "clients": population,
                "examples_per_client": sizes.examples,
            },
            "scenario": {"partition": {"kind": "natural"}},
            "algorithm": {"name": method},
            "model": {"name": "linear"},
            "training": {"batch_size": sizes.examples},
            "run": {
                "rounds": sizes.rounds,
                "cohort": sizes.cohort,
                "evaluate_clients": sizes.cohort,
                "evaluate_every": sizes.rounds - 1,
                "executor": "serial",
                "checkpoint_seconds": 0.0,
            },
        }
        begun = _perform("begin", {"out": str(out), "sections": sections}, folder)
        disk = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
        files = sum(path.is_file() for path in RunFolder(out).checkpoints.rglob("*"))
        resumed = _perform("resume", {"out": str(out)}, folder)
    memory = max(begun["memory"], resumed["memory"])
    return {**resumed, **begun, "memory": memory, "disk": float(disk), "files": float(files)}


def _measure_files(sizes: Sizes) -> Figures:
    """A client per .csv file."""
    cohort = min(sizes.cohort, sizes.files)
    with scratch() as folder:
        _write_files(folder / "clients", sizes.files)
        sections = {
            "data": {"folder": str(folder / "clients"), "label": "y"},
            "model": {"name": "linear"},
            "run": {
                "rounds": 1,
                "cohort": cohort,
                "evaluate_clients": cohort,
                "executor": "serial",
            },
        }
        return _perform("first_round", {"sections": sections}, folder)


def _write_files(folder: Path, count: int) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        x = rng.normal(size=(ROWS_PER_FILE, 8))
        x[0, 0], x[1, 0] = 1.0, -1.0  # so that every client has both classes
        lines = ["a,b,c,d,e,f,g,h,y"]
        lines += [",".join(f"{value:.4f}" for value in row) + f",{int(row[0] > 0)}" for row in x]
        (folder / f"client-{number:06d}.csv").write_text("\n".join(lines) + "\n")


def _perform(task: str, settings: Mapping[str, Any], folder: Path) -> Figures:
    """What a task has measured, and the largest memory of its process and of those it started."""
    result = folder / f"{task}.json"
    largest = 0

    def look(pid: int) -> None:
        nonlocal largest
        largest = max(largest, memory_of(pid))

    command = [*own_program("scale_task"), task, json.dumps(settings), str(result)]
    run_program(command, own_environment(), folder, look)
    figures: Figures = json.loads(result.read_text())
    return {**figures, "memory": float(largest)}


def memory_of(root: int) -> int:
    """Bytes of a process and its descendants, as Linux tells them; what several of them share
    counts once. 0 where the system does not tell.
    """
    return sum(_own_memory(pid) for pid in {root, *(member.pid for member in descendants([root]))})


def _own_memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if "Pss:" in line), 0)


# --- what is shown --------------------------------------------------------------------------------


def _row(
    method: str, population: int, found: list[Figures], few: list[Figures]
) -> tuple[Cell, ...]:
    slower = ratio([each["round"] for each in found], [each["round"] for each in few])
    seconds = [_median(found, name) for name in ("first_round", "round", "checkpoint", "resume")]
    memory, disk = (_median(found, name) / MEGABYTE for name in ("memory", "disk"))
    figures = (seconds[0], seconds[1], slower, seconds[2], seconds[3], memory, disk)
    return rounded((method, population, *figures, round(_median(found, "files"))))


def _files_table(found: list[Figures], sizes: Sizes) -> FindingsTable:
    row = (
        f"{sizes.files:,} .csv files of {ROWS_PER_FILE} rows",
        _median(found, "first_round"),
        _median(found, "memory") / MEGABYTE,
    )
    columns = ("data", "s to the end of the first round", "MB of memory")
    return FindingsTable("A folder with a file per client", columns, (rounded(row),))


def _median(found: list[Figures], name: str) -> float:
    return statistics.median(each[name] for each in found)
