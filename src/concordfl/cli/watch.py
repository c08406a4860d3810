"""`concordfl watch`."""

import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from ..core import SettingError
from ..watch import words
from ..watch.server import Server
from ..watch.status import RunStatus, Watcher
from .progress import figures_text, round_line
from .signals import Stopped, exit_code, raised_signals
from .terminal import console, say
from .watch_display import Display

SECONDS_BETWEEN_LOOKS = 1.0
# A comparison begins its next run when one has finished: only after so long is it taken for over.
SECONDS_UNTIL_OVER = 5.0


def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run, or of several as `compare` makes.", show_default=False
        ),
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=65535, help="Of the page; by default any that is free.", show_default=False
        ),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Show it here, and end when all runs have finished.")
    ] = False,
    open: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Follow runs in progress: a page for this computer alone, or in the terminal."""
    if terminal and (port is not None or open):
        given = "--open" if port is None else "--port"
        raise SettingError(f"--terminal must not be given with --port or --open, got {given} too")
    watcher = Watcher(folder)
    with _ended_quietly():
        if terminal:
            _show_in_terminal(watcher)
        else:
            _serve(watcher, port or 0, open)


@contextmanager
def _ended_quietly() -> Iterator[None]:
    """Ctrl-C is how one ends watching: nothing is lost by it."""
    try:
        with raised_signals():
            yield
    except KeyboardInterrupt as interrupt:
        say("No longer watching; runs go on")
        if isinstance(interrupt, Stopped):
            raise typer.Exit(exit_code(interrupt)) from None


def _serve(watcher: Watcher, port: int, open: bool) -> None:
    with Server(watcher, port) as server:
        say(f"Watching {watcher.path} at {server.url} (Ctrl-C ends it)")
        if open:
            webbrowser.open(server.url)
        server.serve_forever()


# --- the terminal ---------------------------------------------------------------------------------


def _show_in_terminal(watcher: Watcher) -> None:
    if not console.is_terminal:
        _print_lines(watcher)
        return
    with Live(console=console, auto_refresh=False) as live:
        for runs in _looks(watcher):
            live.update(Display(watcher.path, runs), refresh=True)


def _looks(watcher: Watcher) -> Iterator[list[RunStatus]]:
    """What is seen once a second, until all runs have finished."""
    patience = 0.0 if watcher.is_single else SECONDS_UNTIL_OVER
    unfinished_at = time.monotonic()
    while True:
        runs = watcher.look()
        yield runs
        if any(run.state != "finished" for run in runs):
            unfinished_at = time.monotonic()
        elif time.monotonic() - unfinished_at >= patience:
            return
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _print_lines(watcher: Watcher) -> None:
    """A line per evaluated round, and one where a run begins, stops, goes on or finishes."""
    states: dict[str, str] = {}
    printed: dict[str, int] = {}  # the last round, by run
    for runs in _looks(watcher):
        for run, title in zip(runs, words.titles(runs), strict=True):
            before = printed.get(run.name, 0)
            print_rounds(run, title, before)
            printed[run.name] = max([before, *(figures.round for figures in run.evaluated)])
            if states.get(run.name) != run.state:
                way_on = f"; `{run.way_on}` goes on with it" if run.way_on else ""
                say(f"{title}: {run.state}{way_on}")
            states[run.name] = run.state


def print_rounds(run: RunStatus, title: str, after: int) -> None:
    """A line for each evaluated round after the given one."""
    for figures in run.evaluated:
        if figures.round > after and run.criterion is not None:
            scores = {"participants": (run.criterion, figures.participants)}
            if figures.newcomers is not None:
                scores["newcomers"] = run.criterion, figures.newcomers
            text = figures_text(scores)
            say(round_line(title, figures.round, run.rounds, text, figures.seconds))
