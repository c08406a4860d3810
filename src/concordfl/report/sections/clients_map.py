"""A map of clients: those that are alike lie close together."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...core import ClientId
from ..document import Absent, Chart, Section, View
from ..pictures import Series
from ..runs import Run, Runs
from .parts import MOST_POINTS, points, slug

TITLE = "A map of the clients"


def clients_map(runs: Runs) -> Section | Absent:
    views: list[View] = []
    of_data = next((run for run in runs.all if _label_shares(run)), None)
    if of_data is not None:
        views.append({"name": "by their labels", "charts": [_by_labels(of_data)]})
    for run in runs.firsts:
        if len(run.models) > 1:
            views.append({"name": f"by models of {run.name}", "charts": [_by_models(run)]})
    if not views:
        return {"title": TITLE, "reason": "neither labels nor models tell clients apart here"}
    lead = "Clients that are alike lie close together; colours are the true groups, where known."
    return {"id": "map", "title": TITLE, "lead": lead, "views": views}


def _label_shares(run: Run) -> dict[ClientId, np.ndarray]:
    counts = {
        client["id"]: np.array(client["labels"], dtype=float)
        for client in run.clients
        if client.get("labels") is not None and sum(client["labels"]) and run.classes
    }
    return {id: own / own.sum() for id, own in counts.items()}


def _by_labels(run: Run) -> Chart:
    caption = "By the shares of labels in their training data."
    return _chart(run, _label_shares(run), run.true_groups, "map-labels", caption)


def _by_models(run: Run) -> Chart:
    features = {id: np.array(list(own.values())) for id, own in run.weights.items()}
    groups = run.true_groups or {
        id: f"model {max(own, key=lambda model: own[model])}" for id, own in run.weights.items()
    }
    caption = "By how much they use each model."
    return _chart(run, features, groups, f"map-{slug(f'{run.row} {run.seed}')}", caption)


def _chart(
    run: Run,
    features: Mapping[ClientId, np.ndarray],
    groups: Mapping[ClientId, str],
    id: str,
    caption: str,
) -> Chart:
    everywhere = in_plane(np.stack(list(features.values())))
    step = -(-len(features) // MOST_POINTS)
    places = dict(list(zip(features, everywhere, strict=True))[::step])
    held_out = {client["id"] for client in run.clients if client["held_out"]}
    series: dict[str, Series] = {}
    for client, (x, y) in places.items():
        name = groups.get(client, "clients") + ", held out" * (client in held_out)
        own = series.setdefault(name, {"name": name, "x": [], "y": [], "names": []})
        for key, value in (("x", x), ("y", y), ("names", client)):
            own[key].append(value)  # type: ignore[literal-required]
    shown = [series[name] for name in sorted(series)]
    some = f" {len(places)} of {len(features)} clients are shown." if step > 1 else ""
    sentence = f"{caption} {_explained(list(features.values()))}{some}"
    return {"id": id, "caption": sentence, "panel": points(shown, "", "")}


def in_plane(features: np.ndarray) -> list[tuple[float, float]]:
    """Places in the plane in which the features lie farthest apart: their principal components.
    What points which way is fixed, so that the same runs give the same map.
    """
    centred = features - features.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[:2, np.abs(axes[:2]).argmax(1)].diagonal())[:, None]
    flat = centred @ axes.T
    padded = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    return [(float(x), float(y)) for x, y in padded]


def _explained(features: Sequence[np.ndarray]) -> str:
    centred = np.stack(features) - np.mean(features, axis=0)
    variances = np.linalg.svd(centred, compute_uv=False) ** 2
    if not variances.sum():
        return "All of them are the same."
    return f"The plane holds {variances[:2].sum() / variances.sum():.0%} of their differences."
