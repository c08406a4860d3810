"""Who is like whom: which model every client uses, and how that agrees with the true groups."""

from collections.abc import Mapping, Sequence

from ..document import Absent, Chart, Section, Strip
from ..runs import Run, Runs
from .parts import SAME, agreements, heatmap, listed, slug, view_per_run

TITLE = "Who is like whom"


def likeness(runs: Runs) -> Section | Absent:
    grouped = [run for run in runs.all if run.weights]
    if not grouped:
        return {
            "title": TITLE,
            "reason": "no run has a method that groups clients or mixes models, or its folder",
        }
    views = view_per_run(grouped, _charts)
    return {"id": "likeness", "title": TITLE, "lead": _lead(runs, grouped), "views": views}


def _charts(run: Run) -> list[Chart]:
    charts = [_clients_by_model(run)]
    if run.true_groups:
        charts.append(_groups_by_model(run))
    if run.portrait.labels_by_model is not None:
        caption = (
            "The share of every label's training examples that is assigned to each model: where "
            "models are concepts and not labels, the lines are alike."
        )
        panel = run.portrait.labels_by_model
        charts.append({"id": f"labels-by-model-{_id(run)}", "caption": caption, "panel": panel})
    return charts


def _clients_by_model(run: Run) -> Chart:
    weights = run.weights
    ids = list(weights)
    found = {id: max(own, key=lambda model: own[model]) for id, own in weights.items()}
    truth = run.true_groups
    strips: list[Strip] = [{"name": "found", "values": [found[id] for id in ids]}]
    orders = {"by model": _order(ids, found, weights)}
    if truth:
        strips.insert(0, {"name": "true", "values": [truth.get(id) for id in ids]})
        orders["by true group"] = _order(ids, truth, weights)
    orders["by name"] = list(range(len(ids)))
    lines = {id: list(own.values()) for id, own in weights.items()}
    return {
        "id": f"clients-by-model-{_id(run)}",
        "caption": "A line for each client: how much it uses each model.",
        "panel": heatmap(lines, run.models, "model", "client"),
        "orders": orders,
        "strips": strips,
    }


def _order(
    ids: Sequence[str], groups: Mapping[str, str], weights: Mapping[str, Mapping[str, float]]
) -> list[int]:
    """By group, and within one the surest first."""
    return sorted(
        range(len(ids)),
        key=lambda place: (groups.get(ids[place], ""), -max(weights[ids[place]].values())),
    )


def _groups_by_model(run: Run) -> Chart:
    """FedConceptEM's figure 2: of every true group, how much its examples belong to each model."""
    sizes = {client["id"]: client["train"] for client in run.clients}
    lines = {}
    for group in sorted(set(run.true_groups.values())):
        members = [id for id in run.weights if run.true_groups.get(id) == group]
        total = sum(sizes[id] for id in members)
        if total:
            lines[group] = [
                sum(sizes[id] * run.weights[id][model] for id in members) / total
                for model in run.models
            ]
    return {
        "id": f"groups-by-model-{_id(run)}",
        "caption": "The share of every true group's training examples that each model holds.",
        "panel": heatmap(lines, run.models, "model", "true group"),
    }


def _id(run: Run) -> str:
    return slug(f"{run.row} {run.seed}")


def _lead(runs: Runs, grouped: Sequence[Run]) -> str:
    agreed = agreements(runs)
    if not agreed:
        rows = list(dict.fromkeys(run.row for run in grouped))
        return f"Groups and mixtures of {listed(rows)}; nobody knows the true ones here."
    exact = [row for row, ari in agreed.items() if ari > SAME]
    others = [f"{row} {ari:.2f}" for row, ari in agreed.items() if ari <= SAME]
    every = " with every seed" if len(runs.seeds) > 1 else ""
    parts = [f"{listed(exact)} found the true groups exactly{every}"] if exact else []
    if others:
        lowest = "the lowest of all seeds; " if len(runs.seeds) > 1 else ""
        which = "agreement of others" if exact else "How found groups agree with the true ones"
        parts.append(f"{which}: {', '.join(others)} ({lowest}1 is perfect, 0 chance)")
    return f"{'; '.join(parts)}."
