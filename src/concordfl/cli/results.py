"""What `run` and `resume` show of a run, and what they say when it is stopped."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from ..engine.observers import Observer
from ..report import tables
from ..result import Result
from .progress import show_progress
from .signals import exit_code, raised_signals
from .terminal import complain, console, say, show


def show_run(
    folder: Path,
    work: Callable[[Observer], Result],
    *,
    title: str,
    trust: bool,
    track: str | None = None,
) -> None:
    """Do the work of a run in `folder` with a progress bar, then show its figures."""
    command = f"concordfl resume {shlex.quote(str(folder))}" + " --trust" * trust
    if track is not None:
        command += f" --track {shlex.quote(track)}"
    with stoppable(f"`{command}`"), show_progress(console, title) as observe:
        result = work(observe)
    summary = result.summary
    show(tables.run_table(summary))
    down, up = (tables.size(summary["bytes"][way]) for way in ("down", "up"))
    executor = f"{summary['executor']}: {summary['executor_reason']}"
    say(
        f"{down} down, {up} up, {summary['seconds']['total']:.1f} s ({executor})",
        *notes_on(summary),
        *tables.warning_lines(summary.get("warnings", [])),
        f"Results are in {folder}",
    )


def show_parts(parts: Iterable[RenderableType]) -> None:
    """Print tables, and text in lines that are not broken."""
    for part in parts:
        if isinstance(part, str):
            say(*part.splitlines())
        else:
            show(part)


def notes_on(summary: Mapping[str, Any]) -> Iterator[str]:
    """What a reader of the figures must know of how they came about."""
    if summary.get("stopped_early"):  # by run.patience, or by a function that watched it
        selected, where = summary["selected"], f"on {summary['selected_on']} data"
        best = f": round {selected['round']} was the best {where}" if selected else ""
        yield f"Stopped early, after round {summary['rounds']}{best}"
    missing = {reason: count for reason, count in summary["missing"].items() if count}
    if missing:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
        yield f"Replies that do not count: {reasons}"
    if summary["failures"]:
        first = summary["failures"][0]
        where = f"client {first['client']!r}, step {first['step']!r}, round {first['round']}"
        yield f"The first of those with a reason: {where}: {first['detail']}"
    if summary["void_rounds"]:
        yield f"{summary['void_rounds']} rounds were void: fewer answered than run.min_replies asks"
    if summary["clients_without_test"]:
        yield f"{summary['clients_without_test']} clients have no test examples, and no figures"
    for problem in summary["damaged_checkpoints"]:
        yield f"A checkpoint was damaged, and the one before it was used: {problem}"


@contextmanager
def stoppable(way_on: str | None) -> Iterator[None]:
    """Say on Ctrl-C, SIGTERM or SIGHUP how to go on, where one can."""
    try:
        with raised_signals():
            yield
    except KeyboardInterrupt as interrupt:
        how = f"; {way_on} goes on from the last checkpoint" if way_on else ""
        complain(f"stopped{how}")
        raise typer.Exit(exit_code(interrupt)) from None
