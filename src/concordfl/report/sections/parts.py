"""What several sections need."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from ..document import Chart, View
from ..pictures import Panel, Series
from ..runs import Run, Runs
from ..tables import figure

MOST_POINTS = 2000  # in a picture; more take a browser seconds to draw
SAME = 0.995  # an agreement of groups that is shown as 1.00


def mean(runs: Runs, row: str, name: str) -> float | None:
    """Of a final figure over seeds; None where none has it."""
    values = [one["final"].get(name) for one in runs.figures[row]]
    known = [float(value) for value in values if value is not None]
    return statistics.mean(known) if known else None


def percent_or_unit(value: float | None, runs: Runs) -> str:
    """A figure of the criterion with its unit."""
    shown = figure(runs.criterion or "accuracy", value)
    return f"{shown}\N{NO-BREAK SPACE}%" if runs.unit == 100 and value is not None else shown


def agreements(runs: Runs) -> dict[str, float]:
    """How well the groups of a row agree with the true ones (ARI), with the worst of its seeds;
    nothing of rows without groups.
    """
    found: dict[str, float] = {}
    for row, figures in runs.figures.items():
        known = [one["clusters"]["ari"] for one in figures if one.get("clusters")]
        if len(known) == len(figures) and None not in known:
            found[row] = min(known)
    return found


def slug(text: str) -> str:
    """A part of an id: letters, digits and hyphens."""
    kept = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in text.lower()
    )
    return "-".join(part for part in kept.split("-") if part) or "run"


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def view_per_run(runs: Iterable[Run], charts: Callable[[Run], list[Chart]]) -> list[View]:
    """A reader chooses the run; one without charts is none."""
    made = [(run, charts(run)) for run in runs]
    return [{"name": run.name, "charts": own} for run, own in made if own]


def points(series: list[Series], x_label: str, y_label: str, title: str = "") -> Panel:
    return {
        "kind": "points",
        "title": title,
        "x_label": x_label,
        "y_label": y_label,
        "series": series,
    }


def heatmap(
    lines: Mapping[str, Sequence[float | None]], columns: Sequence[str], x_label: str, y_label: str
) -> Panel:
    series: list[Series] = [
        {"name": name, "x": list(columns), "y": list(values)} for name, values in lines.items()
    ]
    return {
        "kind": "heatmap",
        "title": "",
        "x_label": x_label,
        "y_label": y_label,
        "series": series,
    }
