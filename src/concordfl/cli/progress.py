"""Progress of a run: a bar on a terminal, plain lines on a pipe."""

import math
from collections.abc import Callable, Iterator, Mapping
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
from ..metrics import METRICS, criterion_in, is_better
from ..report.tables import figure
from .braille import sparkline
from .signals import heed_signals
from .terminal import printable

SPARKLINE_WIDTH = 12


@contextmanager
def show_progress(console: Console, title: str, *, validation: bool = False) -> Iterator[Observer]:
    """An observer that shows on `console` how far a run is, with figures of `validation` data alone
    where settings are chosen by them.
    """
    figures = _validation_figures if validation else _figures
    if not console.is_terminal:

        def report(event: Event) -> None:
            heed_signals()
            _print_line(console, title, event, figures)

        yield report
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}", markup=False),
    )
    trend = _Trend(console)
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(printable(title), total=None, figures="")

        def update(event: Event) -> None:
            heed_signals()
            progress.update(bar, total=event.rounds, completed=event.turn.round)
            if event.record is not None:
                # Figures of test data are not shown where settings are chosen, drawn or not.
                course = "" if validation else trend.add(event)
                progress.update(bar, figures=f"{figures(event)}  {course}")

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


@contextmanager
def show_steps(console: Console, title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar for work in about so many steps, each named when it is done; on a pipe, one
    line when it begins.
    """
    if not console.is_terminal:
        console.print(f"{title}: about {total} steps", soft_wrap=True)
        yield lambda _: heed_signals()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(printable(title), total=total)

        def update(name: str) -> None:
            heed_signals()
            progress.update(bar, advance=1, description=f"{title}: {name}")

        yield update


def _print_line(
    console: Console, title: str, event: Event, figures: Callable[[Event], str]
) -> None:
    if event.record is not None:
        line = round_line(title, event.turn.round, event.rounds, figures(event), event.seconds)
        console.print(line, soft_wrap=True)


def round_line(title: str, round: int, rounds: int | None, figures: str, seconds: float) -> str:
    """An evaluated round, for a pipe."""
    of_all = "" if rounds is None else f"/{rounds}"
    return f"{title}: round {round}{of_all}  {figures}  {seconds:.1f} s"


def figures_text(scores: Mapping[str, tuple[str, float | None]]) -> str:
    """Figures by what they are called, each with the metric it is of."""
    return "  ".join(f"{name} {figure(metric, value)}" for name, (metric, value) in scores.items())


def _figures(event: Event) -> str:
    record = event.record or {}
    names = {"local": "participants", "global": "newcomers"}
    scores = {}
    for scope, name in names.items():
        if scope in record:
            criterion = criterion_in(record[scope]) or "accuracy"
            scores[name] = criterion, record[scope].get(criterion)
    return figures_text(scores)


def _validation_figures(event: Event) -> str:
    name, value = _criterion(event, "validation")
    return f"validation {METRICS[name].title} {figure(name, value)}"


def _criterion(event: Event, scope: str) -> tuple[str, float | None]:
    """The metric that a round is judged by, and its value."""
    found = (event.record or {}).get(scope, {})
    name = criterion_in(found) or "accuracy"
    return name, found.get(name)


class _Trend:
    """The course of the participants' figures in a few characters, and the best round so far, as
    the run itself selects it: by training data where these are evaluated, else by validation data.
    """

    def __init__(self, console: Console) -> None:
        self._is_drawn = not console.options.ascii_only
        self._values: list[float] = []
        self._best: tuple[float, int] | None = None

    def add(self, event: Event) -> str:
        """What is shown after an evaluated round."""
        _, value = _criterion(event, "local")
        if value is not None and math.isfinite(value):
            self._values.append(value)
        is_trained = "training" in (event.record or {})
        name, judged = _criterion(event, "training" if is_trained else "validation")
        if judged is not None and (self._best is None or is_better(name, judged, self._best[0])):
            self._best = judged, event.turn.round
        curve = sparkline(self._values, SPARKLINE_WIDTH) if self._is_drawn else ""
        best = "" if self._best is None else f"best in round {self._best[1]}"
        return f"{curve}  {best}".strip()
