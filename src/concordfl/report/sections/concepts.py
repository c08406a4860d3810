"""FedVC: the virtual concepts, their most typical samples, and where samples lie."""

import numpy as np

from ..document import Absent, Section, View
from ..pictures import Panel, Series
from ..runs import Run, Runs
from .parts import points, slug

TITLE = "Virtual concepts and their typical samples"


def concepts(runs: Runs) -> Section | Absent:
    found = [run for run in runs.all if _mapped(run)]
    if not found:
        return {"title": TITLE, "reason": "no run of fedvc in a folder"}
    shown = [run for run in found if not _has_collapsed(run)]
    if not shown:
        return {"title": TITLE, "reason": _lead(found)}
    views: list[View] = [
        {
            "name": run.name,
            "charts": [
                {
                    "id": f"samples-{slug(f'{run.row} {run.seed}')}",
                    "caption": "Training samples by their estimated preference.",
                    "panel": _map(run),
                }
            ],
            "galleries": run.portrait.typical,
        }
        for run in shown
    ]
    return {"id": "concepts", "title": TITLE, "lead": _lead(found), "views": views}


def _has_collapsed(run: Run) -> bool:
    """Where concepts have become one, a map of samples by them shows rounding errors."""
    return any(each["kind"].startswith("identical-to-") for each in run.figures.get("warnings", ()))


def _mapped(run: Run) -> dict[str, np.ndarray]:
    """(N, 2) where some of a participant's samples lie."""
    return {
        id: np.array(row["map"], dtype=float).reshape(-1, 2)
        for id, row in run.participants.items()
        if row.get("map") is not None
    }


def _map(run: Run) -> Panel:
    """FedVC's figure 7."""
    places, groups = _mapped(run), run.true_groups
    series: list[Series] = []
    for group in sorted({groups.get(id, "samples") for id in places}):
        own = {id: at for id, at in places.items() if groups.get(id, "samples") == group}
        flat = np.concatenate(list(own.values()))
        names = [id for id, at in own.items() for _ in at]
        series.append(
            {"name": group, "x": flat[:, 0].tolist(), "y": flat[:, 1].tolist(), "names": names}
        )
    return points(series, "", "")


def _lead(runs: list[Run]) -> str:
    apart = {
        run.name: run.figures["server"]["apart"]
        for run in runs
        if "apart" in (run.figures.get("server") or {})
    }
    told = ", ".join(f"{name} {value:.2g}" for name, value in apart.items())
    return (
        f"How far concepts lie apart: {told}. Where that is near 0 they have become one, and the "
        "method is FedAvg."
    )
