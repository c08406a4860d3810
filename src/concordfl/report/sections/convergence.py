"""How fast methods learn: against rounds, bytes sent and seconds."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..document import Absent, Chart, Section, View
from ..pictures import Panel, Series
from ..runs import Run, Runs
from .parts import listed

TITLE = "How fast, and at what cost"
Evaluated = Mapping[str, Any]


def _megabytes(evaluated: Evaluated) -> float:
    return float(evaluated["bytes"]["down"] + evaluated["bytes"]["up"]) / 1e6


AXES: dict[str, tuple[str, Callable[[Evaluated], float | None]]] = {
    "rounds": ("round", lambda one: float(one["round"])),
    "bytes": ("MB sent, down and up", _megabytes),
    "seconds": ("seconds", lambda one: one.get("seconds")),
}
SCOPES = {"local": "participants", "global": "newcomers"}


def convergence(runs: Runs) -> Section | Absent:
    views: list[View] = []
    for axis in AXES:
        charts = [chart for scope in SCOPES if (chart := _chart(runs, axis, scope)) is not None]
        if charts:
            views.append({"name": f"against {axis}", "charts": charts})
    if not views:
        return {"title": TITLE, "reason": "no run has figures of more than its last round"}
    return {"id": "convergence", "title": TITLE, "lead": _lead(runs), "views": views}


def _chart(runs: Runs, axis: str, scope: str) -> Chart | None:
    series = [found for row in runs.by_row if (found := _line(runs, row, axis, scope)) is not None]
    if not any(len(one["y"]) > 1 for one in series):
        return None
    panel: Panel = {
        "kind": "lines",
        "title": SCOPES[scope],
        "x_label": AXES[axis][0],
        "y_label": runs.criterion_label,
        "series": series,
    }
    band = " The band is one standard deviation over seeds." if len(runs.seeds) > 1 else ""
    caption = f"The mean over {SCOPES[scope]} at every evaluation.{band}"
    return {"id": f"convergence-{axis}-{SCOPES[scope]}", "caption": caption, "panel": panel}


def _line(runs: Runs, row: str, axis: str, scope: str) -> Series | None:
    place, name = AXES[axis][1], f"{scope}_{runs.criterion}"
    rounds = _by_round(runs.by_row[row], name)
    known = [several for several in rounds if all(place(one) is not None for one in several)]
    if not known:
        return None
    series: Series = {
        "name": row,
        "x": [statistics.mean(place(one) or 0.0 for one in several) for several in known],
        "y": [statistics.mean(runs.unit * one[name] for one in several) for several in known],
    }
    if len(runs.by_row[row]) > 1:
        series["spread"] = [
            statistics.pstdev(runs.unit * one[name] for one in several) for several in known
        ]
    return series


def _by_round(runs: Sequence[Run], name: str) -> list[list[Evaluated]]:
    """What every seed had come to by each evaluated round."""
    found: dict[int, list[Evaluated]] = defaultdict(list)
    for run in runs:
        for one in run.figures.get("history") or []:
            if one.get(name) is not None:
                found[one["round"]].append(one)
    return [found[round] for round in sorted(found)]


def _lead(runs: Runs) -> str:
    """Who was still improving."""
    improving = _warned(runs, "still-improving")
    if not improving and _warned(runs, "few-evaluations"):
        return "Too few evaluations to tell whether methods were still improving."
    if not improving:
        return "No method was clearly still improving when it ended."
    if len(improving) == len(runs.by_row) > 1:
        return "All methods were still improving when they ended: more rounds may change the order."
    verb = "was" if len(improving) == 1 else "were"
    return f"{listed(improving)} {verb} still improving at the end: more rounds may change that."


def _warned(runs: Runs, kind: str) -> list[str]:
    """Rows of which some run has such a warning."""
    return [
        row
        for row, figures in runs.figures.items()
        if any(each["kind"] == kind for one in figures for each in one.get("warnings") or [])
    ]
