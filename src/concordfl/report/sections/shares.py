"""How much each model is used, over rounds; and which were removed."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..document import Absent, Chart, Section
from ..pictures import Panel, Series
from ..runs import Run, Runs, mixture_weights
from .parts import listed, slug, view_per_run

TITLE = "How models share the clients, over rounds"
MOST_ROUNDS = 60  # whose figures of clients are read


def shares(runs: Runs) -> Section | Absent:
    views = view_per_run((run for run in runs.all if run.weights), _charts)
    if not views:
        return {"title": TITLE, "reason": "no run has several models and more than one evaluation"}
    return {"id": "shares", "title": TITLE, "lead": _lead(runs), "views": views}


def _charts(run: Run) -> list[Chart]:
    found = _shares(run)
    if len(found) < 2:
        return []
    panel = share_lines(found, "share")
    removed = _removed(run)
    gone = f" Removed: {', '.join(removed)}." if removed else ""
    caption = f"The share of training examples, or of clients, that each model holds.{gone}"
    return [{"id": f"shares-{slug(f'{run.row} {run.seed}')}", "caption": caption, "panel": panel}]


def share_lines(shares: Mapping[int, Mapping[str, float]], y_label: str) -> Panel:
    """A line per model, from the models' shares by round; one ends where its model was removed."""
    models = dict.fromkeys(model for own in shares.values() for model in own)
    series: list[Series] = [
        {
            "name": f"model {model}",
            "x": list(shares),
            "y": [own.get(model) for own in shares.values()],
        }
        for model in sorted(models, key=lambda model: (len(model), model))  # 2 before 10
    ]
    return {"kind": "lines", "title": "", "x_label": "round", "y_label": y_label, "series": series}


def _shares(run: Run) -> dict[int, dict[str, float]]:
    """By evaluated round: as the server counted them, or else the mean over participants."""
    told = {
        record["round"]: {str(k): float(v) for k, v in record["server"]["shares"].items()}
        for record in run.records
        if "shares" in (record.get("server") or {})
    }
    return told or _mean_weights(run)


def _mean_weights(run: Run) -> dict[int, dict[str, float]]:
    rounds = [record["round"] for record in run.records]
    if run.read_rows is None or len(rounds) < 2:
        return {}
    chosen = np.unique(np.linspace(0, len(rounds) - 1, MOST_ROUNDS).round().astype(int))
    found = {}
    for place in chosen.tolist():
        rows = run.read_rows(rounds[place])
        own = list(mixture_weights({i: row for i, row in rows.items() if not row["new"]}).values())
        if own:
            models = dict.fromkeys(model for each in own for model in each)
            found[rounds[place]] = {
                model: sum(each.get(model, 0.0) for each in own) / len(own) for model in models
            }
    return found


def _removed(run: Run) -> list[str]:
    server: Mapping[str, Any] = run.figures.get("server") or {}
    # stages count their rounds from 0
    return [f"model {model} in round {round + 1}" for model, round in server.get("removed") or []]


def _lead(runs: Runs) -> str:
    removing = [run.name for run in runs.all if _removed(run)]
    if removing:
        return f"Models that nobody used were removed by {listed(removing)}."
    return "A model whose share falls to zero serves nobody; no model was removed here."
