"""What `concordfl watch --terminal` shows: how far runs are, their figures, curves and messages."""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..metrics import METRICS
from ..watch import words
from ..watch.status import RunStatus
from .braille import Line, Range, plot
from .terminal import printable

SERIES_STYLES = ("cyan", "yellow", "magenta", "green", "blue", "red", "white", "bright_black")
STATE_STYLES = {"running": "cyan", "finished": "green", "stopped": "yellow", "not begun": "dim"}
CURVE_LINES = 9
MAX_WIDTH = 76  # of bars and curves, in columns
MIN_CURVE_WIDTH = 30
MAX_MESSAGES = 8
FURTHER_LINES = 8  # of headings and axes
MIN_RUNS = 5  # that are listed, however low the terminal is
LABEL_WIDTH = 8  # of figures at the side of a curve


class Display(NamedTuple):
    """Drawn anew for every look."""

    folder: Path
    runs: Sequence[RunStatus]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        titles = words.titles(self.runs)
        if len(self.runs) == 1:
            yield from _one_run(self.runs[0], titles[0], min(options.max_width, MAX_WIDTH))
        else:
            yield Text(printable(f"{self.folder}: {words.headline(self.runs)}"))
            others = CURVE_LINES + MAX_MESSAGES + FURTHER_LINES
            left_out = _left_out(self.runs, max(MIN_RUNS, console.height - others))
            yield _table_of(self.runs, titles, left_out, options.max_width)
            if left_out:
                yield Text(f"{len(left_out)} more have finished", "dim")
        if not options.ascii_only and options.max_width >= MIN_CURVE_WIDTH:
            yield from _curves(self.runs, min(options.max_width, MAX_WIDTH))
        yield from _messages(self.runs, titles)


def _one_run(run: RunStatus, title: str, width: int) -> Iterator[RenderableType]:
    yield Text.assemble(
        (printable(title), "bold"), "  ", (run.state, STATE_STYLES[run.state]), "  ",
        (printable(" · ".join(run.facts)), "dim"),
    )  # fmt: skip
    yield Columns([_bar(run, width)])
    yield Text(printable(" · ".join(words.progress(run))))
    yield _figures_of(run)
    if run.way_on is not None:
        yield Text.assemble("go on with it: ", (printable(run.way_on), "bold"))


def _figures_of(run: RunStatus) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    figures = words.figures(run)
    for name in figures:
        table.add_column(name)
    table.add_row(*figures.values(), style="bold")
    return table


def _bar(run: RunStatus, width: int) -> ProgressBar:
    return ProgressBar(
        total=run.rounds or 1,
        completed=run.round if run.rounds else 0,
        width=width,
        complete_style=STATE_STYLES[run.state],
        finished_style=STATE_STYLES[run.state],
    )


def _left_out(runs: Sequence[RunStatus], room: int) -> set[int]:
    """The oldest of the finished runs, where not all have room."""
    finished = [index for index, run in enumerate(runs) if run.state == "finished"]
    return set(finished[: max(0, len(runs) - room)])


def _table_of(
    runs: Sequence[RunStatus], titles: Sequence[str], left_out: Collection[int], width: int
) -> Table:
    table = Table(box=None, padding=(0, 1), pad_edge=False)
    table.add_column("run", overflow="fold", min_width=8)
    for name in ("state", "", "round", "left", "participants", "newcomers", "best round"):
        justify: JustifyMethod = "left" if name in ("state", "") else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for number, (run, title) in enumerate(zip(runs, titles, strict=True)):
        if number in left_out:
            continue
        left = "" if run.seconds_left is None else words.duration(run.seconds_left)
        participants, _, newcomers, at_best = words.figures(run).values()
        table.add_row(
            Text.assemble(("● ", _style(number)), printable(title)),
            Text(run.state, STATE_STYLES[run.state]),
            _bar(run, max(8, min(20, width // 6))),
            f"{run.round}/{run.rounds or '?'}",
            left,
            participants,
            newcomers,
            f"{run.best.round}: {at_best}" if run.best else at_best,
        )
    return table


def _style(number: int) -> str:
    return SERIES_STYLES[number % len(SERIES_STYLES)]


# --- curves ---------------------------------------------------------------------------------------


def _curves(runs: Sequence[RunStatus], width: int) -> Iterator[RenderableType]:
    """Participants of the runs that are measured as the first one is; of one run, newcomers too."""
    criterion = next((run.criterion for run in runs if run.criterion is not None), None)
    if criterion is None:
        return
    metric = METRICS[criterion]
    unit = 100 if metric.is_share else 1
    scopes = ("participants", "newcomers") if len(runs) == 1 else ("participants",)
    lines = [
        (scope, Line(_points(run, scope, unit), _style(index + number)))
        for index, run in enumerate(runs)
        for number, scope in enumerate(scopes)
        if run.criterion == criterion
    ]
    lines = [(scope, line) for scope, line in lines if len(line.points) > 1]
    if not lines:
        return
    legend = [part for scope, line in lines for part in (("● ", line.style), (f"{scope} ", ""))]
    named = legend if len(runs) == 1 else [("participants: ", "")]
    yield Text.assemble("\n", *named, (metric.title + " in percent" * metric.is_share, "dim"))
    last_round = max(run.rounds or run.round for run in runs)
    yield from _drawn([line for _, line in lines], last_round, width)


def _points(run: RunStatus, scope: str, unit: int) -> list[tuple[int, float]]:
    known = [(figures.round, getattr(figures, scope)) for figures in run.evaluated]
    return [(round, unit * value) for round, value in known if value is not None]


def _drawn(lines: Sequence[Line], last_round: int, width: int) -> Iterator[Text]:
    values = [value for line in lines for _, value in line.points]
    y_range, x_range = Range(min(values), max(values)), Range(0, last_round)
    width -= LABEL_WIDTH + 2
    labels = {0: y_range.high, CURVE_LINES - 1: y_range.low}
    for number, row in enumerate(plot(lines, width, CURVE_LINES, x_range, y_range)):
        label = f"{labels[number]:.4g}" if number in labels else ""
        yield Text.assemble((f"{label:>{LABEL_WIDTH}} │", "dim"), row)
    yield Text(" " * LABEL_WIDTH + " └" + "─" * width, "dim")
    end = f"round {last_round}"
    yield Text(" " * (LABEL_WIDTH + 2) + "0" + end.rjust(width - 1), "dim")


# --- messages -------------------------------------------------------------------------------------


def _messages(runs: Sequence[RunStatus], titles: Sequence[str]) -> Iterator[Text]:
    named = [
        text if len(runs) == 1 else f"{title}: {text}"
        for run, title in zip(runs, titles, strict=True)
        for text in run.messages
    ]
    if named:
        yield Text("")
    for text in named[:MAX_MESSAGES]:
        yield Text.assemble(("! ", "yellow"), printable(text))
    if len(named) > MAX_MESSAGES:
        yield Text(f"and {len(named) - MAX_MESSAGES} more", "dim")
