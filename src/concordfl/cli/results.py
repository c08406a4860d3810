"""What `run` and `resume` show of a run, and what they say when it is stopped."""

import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from .. import runner
from ..report import tables
from .progress import show_progress
from .signals import exit_code, raised_signals
from .terminal import complain, console, say, show


def show_run(
    folder: Path,
    work: Callable[[runner.Observer], runner.Result],
    *,
    title: str,
    trust: bool,
) -> None:
    """Do the work of a run in `folder` with a progress bar, then show its figures."""
    command = f"concordfl resume {shlex.quote(str(folder))}" + " --trust" * trust
    with stoppable(f"`{command}`"), show_progress(console, title) as observe:
        result = work(observe)
    summary = result.summary
    show(tables.run_table(summary))
    down, up = (tables.size(summary["bytes"][way]) for way in ("down", "up"))
    executor = f"{summary['executor']}: {summary['executor_reason']}"
    say(
        f"{down} down, {up} up, {summary['seconds']['total']:.1f} s ({executor})",
        f"Results are in {folder}",
    )


@contextmanager
def stoppable(way_on: str) -> Iterator[None]:
    """Say on Ctrl-C, SIGTERM or SIGHUP how to go on."""
    try:
        with raised_signals():
            yield
    except KeyboardInterrupt as interrupt:
        complain(f"stopped; {way_on} goes on from the last checkpoint")
        raise typer.Exit(exit_code(interrupt)) from None
