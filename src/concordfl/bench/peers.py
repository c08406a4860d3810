"""`concordfl bench peers`: the same workloads by other libraries, each in an environment of its
own.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..federate.services import ServiceError
from .children import (
    PROGRAMS,
    Marks,
    other_environment,
    own_environment,
    own_program,
    scratch,
    time_program,
)
from .findings import Cell, Findings, FindingsTable, rounded, timing_bars
from .turns import Report, Timing, ratio, silent
from .venvs import FLOWER, PFL, Library, Skipped, python_of
from .workload import MANY_CLIENTS, MANY_IMAGES, Workload, images, write_workload

OWN, LIMIT = "concordfl, processes", "two bare loops"
COLUMNS = (
    "who",
    "s to the end of the first round",
    "s a round",
    "lowest",
    "highest",
    "concordfl's throughput, times its",
)
FEW_ROUNDS = 2
ROUNDS = 6  # of every process: the first, and those that are timed
NUM_PROCESSES = 2


class Contestant(NamedTuple):
    """A program, and how its process is started."""

    title: str
    command: tuple[str, ...]
    environment: Mapping[str, str]


class Entry(NamedTuple):
    """One way to run a library: how its command is made from its interpreter."""

    title: str
    library: Library
    command: Callable[[str], tuple[str, ...]]


def _program(name: str) -> str:
    return str(PROGRAMS / f"{name}.py")


ENTRIES = (
    Entry(
        f"{PFL.title}, one process",
        PFL,
        lambda python: (python, _program("pfl_rounds")),
    ),
    Entry(
        f"{PFL.title}, two by torchrun",
        PFL,
        lambda python: (
            *(python, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(NUM_PROCESSES), _program("pfl_rounds")),
        ),
    ),
    Entry(
        f"{FLOWER.title}, two Ray workers",
        FLOWER,
        lambda python: (python, _program("flower_rounds")),
    ),
)


def compare_peers(
    repeats: int,
    *,
    quick: bool = False,
    venvs: Path,
    report: Report = silent,
    install: Callable[[Library, Path], Path] = python_of,
) -> Findings:
    """Everybody plays some rounds in a process of its own, one after the other and again."""
    with scratch() as folder:
        contestants, notes = _contestants(folder, venvs, install)
        report("environments")
        tables, panels = [], []
        for workload in _workloads(quick):
            file = folder / "workload.pt"
            write_workload(workload, file)
            marks, failed = _take_turns(contestants, file, repeats, quick, report)
            notes += failed
            tables.append(_table(workload, marks))
            seconds = {title: _seconds(found) for title, found in marks.items()}
            first = {title: _first(found) for title, found in marks.items()}
            panels.append(timing_bars(f"{workload.name}: a round", seconds))
            panels.append(timing_bars(f"{workload.name}: to the first round's end", first))
        notes.append(images(_workloads(quick)[-1].clients * _workloads(quick)[-1].examples).source)
    return Findings("peers", tuple(tables), tuple(notes), tuple(panels), repeats)


def count_steps(repeats: int) -> int:
    """How often `report` is called at most."""
    return 1 + len(_workloads(False)) * repeats * (2 + len(ENTRIES))


def _workloads(quick: bool) -> list[Workload]:
    both = (MANY_IMAGES, MANY_CLIENTS)
    return [each.quick() if quick else each for each in both]


def _contestants(
    folder: Path, venvs: Path, install: Callable[[Library, Path], Path]
) -> tuple[list[Contestant], list[str]]:
    """Ourselves, the limit and all libraries that could be installed; and why others are not
    there.
    """
    own = own_environment()
    found = [
        Contestant(OWN, tuple(own_program("concordfl_rounds")), own),
        Contestant(LIMIT, tuple(own_program("bare_rounds")), own),
    ]
    notes, pythons = [], {}
    for library in dict.fromkeys(entry.library for entry in ENTRIES):
        try:
            pythons[library] = install(library, venvs)
        except Skipped as reason:
            notes.append(f"{library.title} is skipped: {reason}")
    for entry in ENTRIES:
        if entry.library in pythons:
            command = entry.command(str(pythons[entry.library]))
            found.append(Contestant(entry.title, command, other_environment(folder)))
    return found, notes


def _take_turns(
    contestants: Sequence[Contestant], file: Path, repeats: int, quick: bool, report: Report
) -> tuple[dict[str, list[Marks]], list[str]]:
    """The marks of every repeat; a library whose program fails takes no further part."""
    marks: dict[str, list[Marks]] = {each.title: [] for each in contestants}
    notes = []
    for _ in range(repeats):
        for each in contestants:
            if each.title not in marks:
                continue
            try:
                rounds = FEW_ROUNDS if quick else ROUNDS
                marks[each.title].append(time_program(each.command, each.environment, file, rounds))
            except ServiceError as error:
                if each.title in (OWN, LIMIT):
                    raise
                del marks[each.title]
                notes.append(f"{each.title} is skipped: {error}")
            report(each.title)
    return marks, notes


def _seconds(marks: Sequence[Marks]) -> Timing:
    """Of a round after the first: the median of every process."""
    return Timing(tuple(statistics.median(each.later) for each in marks))


def _first(marks: Sequence[Marks]) -> Timing:
    """From the start of the process to the end of its first round."""
    return Timing(tuple(each.first for each in marks))


def _table(workload: Workload, marks: Mapping[str, Sequence[Marks]]) -> FindingsTable:
    own = _seconds(marks[OWN]).seconds
    rows: list[tuple[Cell, ...]] = []
    for title, found in marks.items():
        spent = _seconds(found)
        figures = (_first(found).median, spent.median, spent.low, spent.high)
        rows.append(rounded((title, *figures, ratio(spent.seconds, own))))
    return FindingsTable(f"FedAvg, {workload.description}", COLUMNS, tuple(rows))
