"""Who gains and who loses by learning together: every client beside training alone and FedAvg."""

from ...metrics import METRICS
from .. import verdict
from ..document import Absent, Chart, Section, View
from ..pictures import Series
from ..runs import Runs
from .parts import MOST_POINTS, points, slug

TITLE = "Who gains and who is harmed"
REFERENCES = {"local": "training alone", "fedavg": "FedAvg"}


def gains(runs: Runs) -> Section | Absent:
    """A view for each method, over seeds."""
    references = [row for method in REFERENCES if (row := runs.row_of(method)) is not None]
    if not references:
        return {"title": TITLE, "reason": "no run of local or fedavg to measure gains against"}
    charts = {row: _chart(runs, row, references) for row in _others(runs, references)}
    views: list[View] = [{"name": row, "charts": own} for row, own in charts.items() if own]
    if not views:
        return {"title": TITLE, "reason": "no other method has figures of the same clients"}
    return {"id": "gains", "title": TITLE, "lead": _lead(runs), "views": views}


def _others(runs: Runs, references: list[str]) -> list[str]:
    """The best row first. FedAvg is shown beside training alone."""
    ranked = verdict.ranking(runs.figures, runs.criterion or "accuracy")
    return [row for row in ranked if row != references[0]]


def gain_by_client(runs: Runs, row: str, reference: str) -> dict[str, float]:
    """How much better each client is served, in the criterion's unit; positive is better."""
    own, other = runs.mean_scores(row), runs.mean_scores(reference)
    sign = runs.unit if METRICS[runs.criterion or "accuracy"].higher_is_better else -runs.unit
    return {id: sign * (own[id] - other[id]) for id in own if id in other}


def _chart(runs: Runs, row: str, references: list[str]) -> list[Chart]:
    series: list[Series] = []
    for reference in references:
        found = gain_by_client(runs, row, reference)
        if reference == row or not found:
            continue
        ordered = sorted(found.items(), key=lambda pair: pair[1])
        series.append(
            {
                "name": f"beside {reference}",
                "x": list(range(1, len(ordered) + 1)),
                "y": [gain for _, gain in ordered],
                "names": [id for id, _ in ordered],
            }
        )
    if not series:
        return []
    unit = "points" if runs.unit == 100 else METRICS[runs.criterion or "accuracy"].title
    panel = points(series, "clients, from the greatest loss to the greatest gain", f"gain, {unit}")
    if max(len(one["x"]) for one in series) > MOST_POINTS:
        panel["kind"] = "lines"
    caption = "Each point is a client. Below zero, learning together has made it worse."
    return [{"id": f"gains-{slug(row)}", "caption": caption, "panel": panel}]


def _lead(runs: Runs) -> str:
    """Of the best method, and of the one that harms most."""
    alone = runs.row_of("local") or runs.row_of("fedavg") or ""
    counted = {}
    for row in verdict.ranking(runs.figures, runs.criterion or "accuracy"):
        found = gain_by_client(runs, row, alone)
        if row != alone and found:
            worse = sum(value < -verdict.ROUNDING for value in found.values())
            counted[row] = (worse, len(found))
    if not counted:
        return "No other method has figures of the same clients."
    beside = REFERENCES[runs.by_row[alone][0].method]
    best = next(iter(counted))
    text = f"{best} is worse than {beside} for {_of(*counted[best])}"
    most = max(counted, key=lambda row: counted[row][0])
    if most != best and counted[most][0] > counted[best][0]:
        return f"{text}; {most} for {_of(*counted[most])}."
    return f"{text}."


def _of(worse: int, clients: int) -> str:
    return f"{worse if worse else 'none'} of {clients} clients"
