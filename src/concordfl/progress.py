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

from .engine.experiment import Event
from .report.tables import percent
from .runner import Observer


@contextmanager
def shown(console: Console, title: str) -> Iterator[Observer]:
    """An observer that shows what it is told on `console`."""
    if not console.is_terminal:
        yield lambda event: _print_line(console, title, event)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(title, total=None, figures="")

        def update(event: Event) -> None:
            progress.update(bar, total=event.rounds, completed=event.turn.round)
            if event.record is not None:
                progress.update(bar, figures=_figures(event))

        yield update


@contextmanager
def downloading(console: Console, title: str) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar for a download; on a pipe, one line when it begins."""
    if not console.is_terminal:
        console.print(f"fetching {title}", highlight=False, soft_wrap=True)
        yield lambda *_: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _print_line(console: Console, title: str, event: Event) -> None:
    if event.record is not None:
        rounds = f"round {event.turn.round}/{event.rounds}"
        line = f"{title}: {rounds}  {_figures(event)}  {event.seconds:.1f} s"
        console.print(line, highlight=False, soft_wrap=True)


def _figures(event: Event) -> str:
    record = event.record or {}
    parts = [f"local {percent(record.get('local', {}).get('accuracy'))}"]
    if "global" in record:
        parts.append(f"global {percent(record['global'].get('accuracy'))}")
    return "  ".join(parts)
