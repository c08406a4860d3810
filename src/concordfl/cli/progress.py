"""Progress of a run: a bar on a terminal, plain lines on a pipe."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..engine.experiment import Event
from ..engine.observers import Observer
from ..metrics import METRICS, criterion_in
from ..report.tables import figure
from .terminal import printable


@contextmanager
def show_progress(console: Console, title: str, *, validation: bool = False) -> Iterator[Observer]:
    """An observer that shows on `console` how far a run is, with figures of `validation` data alone
    where settings are chosen by them.
    """
    figures = _validation_figures if validation else _figures
    if not console.is_terminal:
        yield lambda event: _print_line(console, title, event, figures)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(printable(title), total=None, figures="")

        def update(event: Event) -> None:
            progress.update(bar, total=event.rounds, completed=event.turn.round)
            if event.record is not None:
                progress.update(bar, figures=figures(event))

        yield update


@contextmanager
def show_download(console: Console, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar for a download; on a pipe, one line when it begins."""
    if not console.is_terminal:
        console.print(f"fetching {title}", soft_wrap=True)
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(printable(title), total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _print_line(
    console: Console, title: str, event: Event, figures: Callable[[Event], str]
) -> None:
    if event.record is not None:
        rounds = f"round {event.turn.round}/{event.rounds}"
        line = f"{title}: {rounds}  {figures(event)}  {event.seconds:.1f} s"
        console.print(line, soft_wrap=True)


def _figures(event: Event) -> str:
    record = event.record or {}
    names = {"local": "participants", "global": "newcomers"}
    parts = []
    for scope, name in names.items():
        if scope in record:
            criterion = criterion_in(record[scope]) or "accuracy"
            parts.append(f"{name} {figure(criterion, record[scope].get(criterion))}")
    return "  ".join(parts)


def _validation_figures(event: Event) -> str:
    found = (event.record or {}).get("validation", {})
    name = criterion_in(found) or "accuracy"
    return f"validation {METRICS[name].title} {figure(name, found.get(name))}"
