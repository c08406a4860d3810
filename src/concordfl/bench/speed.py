"""`concordfl bench speed`: the engine beside bare PyTorch loops, and how long a start takes."""

import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

from .. import assemble
from ..engine.threads import one_thread
from ..papers.entries import experiments_folder
from .bare import BareLoop, BareLoops
from .children import (
    own_environment,
    own_program,
    run_program,
    scratch,
    seconds_to_first_line,
    time_program,
)
from .engine_rounds import engine_rounds
from .findings import Cell, Findings, FindingsTable, rounded, timing_bars
from .turns import NUM_WARM_UPS, Report, Timing, ratio, silent, take_turns
from .workload import (
    MANY_CLIENTS,
    MANY_IMAGES,
    Workload,
    images,
    make_config,
    stack_clients,
    write_workload,
)

LIMITS = {"serial": "bare loop", "processes, two workers": "two bare loops"}
FIRST_ROUNDS = {"concordfl, processes": "concordfl_rounds", "two bare loops": "bare_rounds"}
EXECUTORS = ("auto", "processes")
FIRST_LINE = "first progress line of `concordfl run`"
NUM_TIMED = 4  # of the steps of a workload's turn


def measure_speed(repeats: int, *, quick: bool = False, report: Report = silent) -> Findings:
    """Both workloads, then the start of a process."""
    tables, panels = [], []
    workloads = [each.quick() if quick else each for each in (MANY_IMAGES, MANY_CLIENTS)]
    for workload in workloads:
        timings = _time_workload(workload, repeats, report)
        tables.append(_workload_table(workload, timings))
        panels.append(timing_bars(f"{workload.name}: a round", timings))
    source = images(workloads[-1].clients * workloads[-1].examples).source
    tables.append(_first_rounds(workloads[0], repeats, report))
    tables.append(_start(repeats, report))
    return Findings("speed", tuple(tables), (source,), tuple(panels), repeats)


def count_steps(repeats: int) -> int:
    """How often `report` is called."""
    of_start = len(FIRST_ROUNDS) + len(EXECUTORS) + 1
    return 2 * (repeats + NUM_WARM_UPS) * NUM_TIMED + repeats * of_start


def _time_workload(workload: Workload, repeats: int, report: Report) -> dict[str, Timing]:
    settings = make_config(workload, repeats + NUM_WARM_UPS)
    federation = assemble.make_federation(settings)
    clients = stack_clients(workload)
    with one_thread(), ExitStack() as stack:
        serial = stack.enter_context(engine_rounds(settings, federation, "serial"))
        processes = stack.enter_context(engine_rounds(settings, federation, "processes"))
        two_bare = stack.enter_context(closing(BareLoops(workload, clients)))
        plays = {
            "bare loop": BareLoop(workload, clients).play,
            "serial": serial.play,
            "two bare loops": two_bare.play,
            "processes, two workers": processes.play,
        }
        return take_turns(plays, repeats, report)


def _workload_table(workload: Workload, timings: dict[str, Timing]) -> FindingsTable:
    rows: list[tuple[Cell, ...]] = []
    for name, timing in timings.items():
        limit = timings.get(LIMITS.get(name, ""))
        reached = None if limit is None else ratio(limit.seconds, timing.seconds)
        rows.append(rounded((name, timing.median, timing.low, timing.high, reached)))
    columns = ("who", "s a round", "lowest", "highest", "of its limit")
    return FindingsTable(f"FedAvg, {workload.description}", columns, tuple(rows))


# --- the start of a process -----------------------------------------------------------------------


def _first_rounds(workload: Workload, repeats: int, report: Report) -> FindingsTable:
    """From the start of a process to the end of its first round."""
    seconds: dict[str, list[float]] = {name: [] for name in FIRST_ROUNDS}
    with scratch() as folder:
        write_workload(workload, folder / "workload.pt")
        for _ in range(repeats):
            for name, program in FIRST_ROUNDS.items():
                marks = time_program(
                    own_program(program), own_environment(), folder / "workload.pt", rounds=1
                )
                seconds[name].append(marks.first)
                report(f"{name}, first round")
    title = f"From process start to the end of the first round, {workload.description}"
    return _seconds_table(title, seconds)


def _start(repeats: int, report: Report) -> FindingsTable:
    """Where the time of a small run goes before its second round."""
    run_file = experiments_folder() / "demo.toml"
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        for executor in EXECUTORS:
            for phase, spent in _phases(run_file, executor).items():
                seconds.setdefault(f"{executor}: {phase}", []).append(spent)
            report(f"start, {executor}")
        seconds.setdefault(FIRST_LINE, []).append(_first_line(run_file))
        report("first progress line")
    return _seconds_table("Start of a run of digits (experiments/demo.toml)", seconds)


def _phases(run_file: Path, executor: str) -> dict[str, float]:
    """Seconds of what is done up to the end of the first round, and in all."""
    with scratch() as folder:
        marks = folder / "marks"
        began = last = time.time()
        command = [*own_program("first_round"), str(run_file), executor, str(marks)]
        run_program(command, own_environment(), folder)
        phases = {}
        for line in marks.read_text().splitlines():
            at, _, name = line.partition(" ")
            phases[name] = float(at) - last
            last = float(at)
    return {**phases, "total": last - began}


def _first_line(run_file: Path) -> float:
    """Seconds until `concordfl run` has printed how far it is."""
    settings = ("--set", "run.evaluate_every=1", "--set", "run.rounds=2")
    command = [sys.executable, "-m", "concordfl", "run", str(run_file), "--out", "run", *settings]
    with scratch() as folder:
        return seconds_to_first_line(command, own_environment(), folder)


def _seconds_table(title: str, seconds: dict[str, list[float]]) -> FindingsTable:
    timings = {name: Timing(tuple(values)) for name, values in seconds.items()}
    rows = tuple(
        rounded((name, timing.median, timing.low, timing.high)) for name, timing in timings.items()
    )
    return FindingsTable(title, ("what", "s", "lowest", "highest"), rows)
