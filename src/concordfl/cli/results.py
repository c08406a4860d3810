"""What `run` and `resume` show of a run, and what they say when it is stopped."""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import RenderableType

from ..diagnosis.auto import described_choice
from ..engine.observers import Observer
from ..engine.records import resume_command
from ..report import tables
from ..report.notes import notes_on
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
    command = resume_command(folder, trust=trust)
    if track is not None:
        command += f" --track {shlex.quote(track)}"
    with stoppable(f"`{command}`"), show_progress(console, title) as observe:
        result = work(observe)
    show_summary(result.summary, folder)


def show_summary(summary: Mapping[str, Any], folder: Path) -> None:
    """The figures of a finished run, after how its method was chosen."""
    if "auto" in summary:
        say(*summary["auto"]["found"], described_choice(summary["auto"]))
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
