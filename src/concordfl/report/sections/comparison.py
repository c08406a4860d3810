"""Which method is best: over clients, over seeds, and at what cost."""

import statistics
from typing import Literal

import numpy as np

from ...metrics import METRICS
from .. import verdict
from ..document import Absent, Cell, Chart, Column, Section, Table, View
from ..pictures import BOX_LEVELS, Panel, Series
from ..runs import Runs
from .parts import mean, percent_or_unit

TITLE = "How good each method is"


def comparison(runs: Runs) -> Section | Absent:
    if runs.criterion is None:
        return {"title": TITLE, "reason": "no run has a method that predicts"}
    views: list[View] = [
        {"name": "over clients", "charts": _over_clients(runs), "tables": [_table(runs)]}
    ]
    if len(runs.seeds) > 1:
        views.append({"name": "by seed", "charts": [_by_seed(runs)], "tables": [_table(runs)]})
    lead = verdict.verdict(runs.figures) or _single(runs)
    return {"id": "comparison", "title": TITLE, "lead": lead, "views": views}


def _ranked(runs: Runs) -> list[str]:
    """All rows, from the best to the worst."""
    known = verdict.ranking(runs.figures, runs.criterion or "accuracy")
    return [*known, *(row for row in runs.by_row if row not in known)]


def _single(runs: Runs) -> str:
    row = runs.firsts[0].row
    reached = mean(runs, row, f"local_{runs.criterion}")
    if reached is None:
        reached, whose = mean(runs, row, f"global_{runs.criterion}"), "newcomers"
    else:
        whose = "participants"
    title = METRICS[runs.criterion or "accuracy"].title
    return f"{row} reaches {title} {percent_or_unit(reached, runs)} for {whose}."


def _over_clients(runs: Runs) -> list[Chart]:
    boxes: list[Series] = []
    for row in _ranked(runs):
        scores = list(runs.mean_scores(row).values())
        if scores:
            levels = np.quantile(np.array(scores) * runs.unit, BOX_LEVELS)
            boxes.append({"name": row, "x": list(BOX_LEVELS), "y": levels.tolist()})
    if not boxes:
        return []
    panel: Panel = {
        "kind": "boxes",
        "title": "",
        "x_label": "",
        "y_label": runs.criterion_label,
        "series": boxes,
    }
    caption = (
        "Participants' test examples. Half of the clients lie in the box, the line is the median, "
        "four fifths lie between the whiskers."
    )
    return [{"id": "comparison-clients", "caption": caption, "panel": panel}]


def _by_seed(runs: Runs) -> Chart:
    series: list[Series] = [
        {
            "name": f"seed {seed}",
            "x": _ranked(runs),
            "y": [_of_seed(runs, row, seed) for row in _ranked(runs)],
        }
        for seed in runs.seeds
    ]
    panel: Panel = {
        "kind": "bars",
        "title": "",
        "x_label": "",
        "y_label": runs.criterion_label,
        "series": series,
    }
    caption = "The mean over participants: what another seed would have shown."
    return {"id": "comparison-seeds", "caption": caption, "panel": panel}


def _of_seed(runs: Runs, row: str, seed: int) -> float | None:
    for run in runs.by_row[row]:
        value = run.figures["final"].get(f"local_{runs.criterion}")
        if run.seed == seed and value is not None:
            return float(value) * runs.unit
    return None


def _table(runs: Runs) -> Table:
    higher = METRICS[runs.criterion or "accuracy"].higher_is_better
    best: Literal["highest", "lowest"] = "highest" if higher else "lowest"
    digits = 1 if runs.unit == 100 else 4
    several = len(runs.seeds) > 1
    over_seeds: list[Column] = [{"name": "± over seeds", "kind": "number", "digits": digits}]
    columns: list[Column] = [
        {"name": "method", "kind": "text"},
        {"name": "participants", "kind": "number", "digits": digits, "best": best},
        *(over_seeds if several else []),
        {"name": "± over clients", "kind": "number", "digits": digits},
        {"name": "worst tenth", "kind": "number", "digits": digits, "best": best},
        {"name": "newcomers", "kind": "number", "digits": digits, "best": best},
        {"name": "MB sent", "kind": "number", "digits": 1},
        {"name": "seconds", "kind": "number", "digits": 1},
    ]
    rows = [_line(runs, row, several=several) for row in _ranked(runs)]
    return {"title": runs.criterion_label, "columns": columns, "rows": rows}


def _line(runs: Runs, row: str, *, several: bool) -> list[Cell]:
    def shown(name: str) -> float | None:
        found = mean(runs, row, name)
        return None if found is None else found * runs.unit

    figures = runs.figures[row]
    own = [one["final"].get(f"local_{runs.criterion}") for one in figures]
    known = [value * runs.unit for value in own if value is not None]
    deviation = statistics.stdev(known) if len(known) > 1 else None
    sent = statistics.mean(one["bytes"]["down"] + one["bytes"]["up"] for one in figures) / 1e6
    return [
        row,
        shown(f"local_{runs.criterion}"),
        *([deviation] if several else []),
        shown(f"local_{runs.criterion}_std"),
        shown("local_worst_tenth"),
        shown(f"global_{runs.criterion}"),
        sent,
        statistics.mean(one["seconds"]["total"] for one in figures),
    ]
