"""What the page and the terminal say of a run, in the same words."""

import math
from collections import Counter
from collections.abc import Sequence

from ..report.tables import ABSENT, figure
from .status import RunStatus


def titles(runs: Sequence[RunStatus]) -> list[str]:
    """A name for each: method and seed, or the folder where these do not tell runs apart."""
    names = [run.method if run.seed is None else f"{run.method}, seed {run.seed}" for run in runs]
    count = Counter(names)
    return [name if count[name] == 1 else run.name for name, run in zip(names, runs, strict=True)]


def headline(runs: Sequence[RunStatus]) -> str:
    """How many are in which state."""
    if len(runs) == 1:
        return ", ".join(filter(None, [runs[0].state, time_left(runs[0])]))
    count = Counter(run.state for run in runs)
    return f"{len(runs)} runs: " + ", ".join(f"{count[state]} {state}" for state in sorted(count))


def progress(run: RunStatus) -> list[str]:
    """How far it is, how fast, and how long it will take."""
    if run.state == "finished":
        parts = [f"{run.round} rounds in {duration(run.seconds)}", _speed(run)]
    else:
        stage = f"stage {run.stage}" if run.stage else ""
        so_far = f"{duration(run.seconds)} so far" if run.round else ""
        parts = [_round(run), stage, _speed(run), so_far, time_left(run)]
    return [part for part in parts if part]


def _round(run: RunStatus) -> str:
    if run.rounds is None:
        return f"round {run.round} of an unknown number" if run.round else "no round yet"
    return f"round {run.round} of {'at most ' * run.may_end_early}{run.rounds}"


def _speed(run: RunStatus) -> str:
    each = run.seconds_per_round
    if not each:
        return ""
    return f"{each:.2g} s a round" if each >= 0.1 else f"{1 / each:.0f} rounds a second"


def time_left(run: RunStatus) -> str:
    if run.seconds_left is None:
        return ""
    return f"{'at most' if run.may_end_early else 'about'} {duration(run.seconds_left)} left"


def duration(seconds: float) -> str:
    """
    >>> duration(42.4), duration(62), duration(3723)
    ('42 s', '1:02 min', '1:02:03 h')
    """
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d}:{rest:02d} h"
    return f"{minutes}:{rest:02d} min" if minutes else f"{rest} s"


def value(run: RunStatus, number: float | None) -> str:
    """A figure by the run's criterion."""
    return ABSENT if run.criterion is None else figure(run.criterion, number)


def figures(run: RunStatus) -> dict[str, str]:
    """The figures of the last evaluated round, and the participants' in the best one so far."""
    latest, best = run.latest, run.best
    which = f"best on {run.selected_on}" + (f", round {best.round}" if best else "")
    return {
        "participants": value(run, latest and latest.participants),
        "worst tenth": value(run, latest and latest.worst_tenth),
        "newcomers": value(run, latest and latest.newcomers),
        which: value(run, best and best.participants),
    }
