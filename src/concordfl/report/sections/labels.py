"""The labels of every client, and what a method has inferred of them."""

import numpy as np

from ..document import Absent, Chart, Section, View
from ..pictures import Panel, Series
from ..runs import Run, Runs
from .parts import heatmap, slug

TITLE = "The labels of every client"
MOST_BARS = 60  # clients; more are a heat map


def labels(runs: Runs) -> Section | Absent:
    known = next((run for run in runs.all if run.classes and run.clients), None)
    if known is None:
        return {"title": TITLE, "reason": "targets are no classes, or no run's folder is here"}
    true = true_shares(known)
    views: list[View] = [{"name": "as they are", "charts": [_shares(known, true)]}]
    inferring = [run for run in runs.all if inferred_shares(run)]
    views += [
        {"name": f"as {run.name} believes", "charts": _beside(run, true_shares(run))}
        for run in inferring
    ]
    return {"id": "labels", "title": TITLE, "lead": _lead(true, inferring), "views": views}


def true_shares(run: Run) -> dict[str, np.ndarray]:
    """Of the participants' training examples, by class."""
    counts = {
        client["id"]: np.array(client["labels"], dtype=float)
        for client in run.clients
        if not client["held_out"] and client.get("labels") is not None
    }
    return {id: own / max(own.sum(), 1) for id, own in counts.items()}


def inferred_shares(run: Run) -> dict[str, np.ndarray]:
    """What the server was told or has inferred."""
    return {
        id: np.array(row["label_shares"], dtype=float)
        for id, row in run.participants.items()
        if row.get("label_shares") is not None
    }


def _shares(run: Run, true: dict[str, np.ndarray]) -> Chart:
    caption = "The shares of the classes in every participant's training examples."
    if len(true) > MOST_BARS:
        lines = {id: own.tolist() for id, own in true.items()}
        panel = heatmap(lines, list(run.classes), "class", "client")
        return {"id": "labels", "caption": caption, "panel": panel}
    series: list[Series] = [
        {"name": name, "x": list(true), "y": [float(own[place]) for own in true.values()]}
        for place, name in enumerate(run.classes)
    ]
    stacked: Panel = {
        "kind": "stacked",
        "title": "",
        "x_label": "client",
        "y_label": "share of the class",
        "series": series,
    }
    return {"id": "labels", "caption": caption, "panel": stacked}


def distances(run: Run, true: dict[str, np.ndarray]) -> dict[str, float]:
    """L1, from 0 to 2, of what is believed of a client to what is true."""
    believed = inferred_shares(run)
    return {id: float(np.abs(own - true[id]).sum()) for id, own in believed.items() if id in true}


def _beside(run: Run, true: dict[str, np.ndarray]) -> list[Chart]:
    """FedConcat's figure 12, of clients of whom the server knows best, middling and least."""
    ordered = sorted(distances(run, true).items(), key=lambda pair: pair[1])
    chosen = {"best": ordered[0], "middling": ordered[len(ordered) // 2], "worst": ordered[-1]}
    believed = inferred_shares(run)
    return [
        {
            "id": f"labels-{which}-{slug(f'{run.row} {run.seed}')}",
            "caption": f"The client that is known {which}: the shares differ by {far:.2f} of 2.",
            "panel": _pair(run, id, true[id], believed[id]),
        }
        for which, (id, far) in chosen.items()
    ]


def _pair(run: Run, id: str, true: np.ndarray, believed: np.ndarray) -> Panel:
    classes = list(run.classes)
    return {
        "kind": "bars",
        "title": id,
        "x_label": "class",
        "y_label": "share",
        "series": [
            {"name": "true", "x": classes, "y": true.tolist()},
            {"name": f"{run.row} believes", "x": classes, "y": believed.tolist()},
        ],
    }


def _lead(true: dict[str, np.ndarray], inferring: list[Run]) -> str:
    middle = np.mean(list(true.values()), axis=0)
    far = float(np.mean([np.abs(own - middle).sum() / 2 for own in true.values()]))
    text = f"A client's labels differ from the mean of all by {far:.0%} of its examples"
    if not inferring:
        return f"{text}."
    known = {
        run.name: np.mean(list(distances(run, true_shares(run)).values())) for run in inferring
    }
    beliefs = ", ".join(f"{name} {value:.2f}" for name, value in known.items())
    return f"{text}. How far beliefs are from the truth (0 to 2): {beliefs}."
