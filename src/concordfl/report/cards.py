"""Every client of a report: its data, and what each run has found of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..core import ClientId
from ..metrics import METRICS
from .document import Clients, ClientsOfRun, Weights
from .runs import TRUE_KINDS, Run, Runs, group_name

FAR = 0.1  # a share of labels that differs by less sets nobody apart
MOST_NAMED = 2  # labels that set a client apart
FEW, MANY = 0.5, 2.0  # times the usual number of examples
LEVEL = 0.05  # of participants; a client whose examples are less likely than theirs is novel


def clients(runs: Runs) -> Clients | None:
    """Those of the first run whose folder is there, and what runs with the same data found of
    them; None where no run tells.
    """
    first = next((run for run in runs.all if run.clients), None)
    if first is None:
        return None
    facts = list(first.clients)
    ids = [client["id"] for client in facts]
    shares = [_label_shares(client, len(first.classes)) for client in facts]
    metric = METRICS[runs.criterion or "accuracy"]
    return {
        "id": ids,
        "held_out": [bool(client["held_out"]) for client in facts],
        "train": [client["train"] for client in facts],
        "validation": [client["validation"] for client in facts],
        "test": [client["test"] for client in facts],
        "true_groups": _true_groups(facts),
        "classes": list(first.classes),
        "label_shares": shares if first.classes else [],
        "apart": _apart(facts, shares, first.classes),
        "verdict": _verdicts(runs, ids, first.task),
        "diagnosed": _diagnosed(runs, ids, first.task),
        "runs": [
            _of_run(runs, run, ids) for run in runs.all if run.rows and run.task == first.task
        ],
        "criterion": metric.title,
        "is_share": metric.is_share,
        "higher_is_better": metric.higher_is_better,
        "alone": runs.row_of("local"),
        "averaged": runs.row_of("fedavg"),
    }


def _true_groups(facts: Sequence[Mapping[str, Any]]) -> dict[str, list[str | None]]:
    found = {kind: [client.get("groups", {}).get(kind) for client in facts] for kind in TRUE_KINDS}
    return {kind: groups for kind, groups in found.items() if len(set(groups)) > 1}


def _label_shares(client: Mapping[str, Any], num_classes: int) -> list[float]:
    counts = np.array(client.get("labels") or [0] * num_classes, dtype=float)
    return [float(share) for share in counts / max(counts.sum(), 1)]


# --- what a run has found -------------------------------------------------------------------------


def _of_run(runs: Runs, run: Run, ids: Sequence[ClientId]) -> ClientsOfRun:
    rows = [run.rows.get(id, {}) for id in ids]
    found = [group_name(row["group"]) if "group" in row else None for row in rows]
    weights = _weights(run, ids)
    return {
        "row": run.row,
        "seed": run.seed,
        "scores": [_number(row.get(runs.criterion or "")) for row in rows],
        "found": found,
        "sure": [
            None if group is None or own is None else max(own)
            for group, own in zip(found, _values(weights, len(ids)), strict=True)
        ],
        "weights": weights,
        "novelty": [_number(row.get("log_likelihood")) for row in rows],
    }


def _weights(run: Run, ids: Sequence[ClientId]) -> Weights | None:
    """Only of methods that mix models: where a client has one, its group says it all."""
    if not any("weights" in row for row in run.participants.values()):
        return None
    values = [list(run.weights[id].values()) if id in run.weights else None for id in ids]
    return {"models": run.models, "values": values}


def _values(weights: Weights | None, count: int) -> Sequence[Sequence[float] | None]:
    return [None] * count if weights is None else weights["values"]


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


# --- in words -------------------------------------------------------------------------------------


def _apart(
    facts: Sequence[Mapping[str, Any]], shares: Sequence[Sequence[float]], classes: Sequence[str]
) -> list[str]:
    """What sets every client apart from the others: its group, how much it has, which labels."""
    usual_size = float(np.median([client["train"] for client in facts]))
    usual = np.mean(shares, axis=0) if classes else np.zeros(0)
    sentences = []
    for client, own in zip(facts, shares, strict=True):
        parts = [
            *_group_part(client, facts),
            *_size_part(client["train"], usual_size),
            *_label_parts(own, usual, classes),
        ]
        sentences.append(f"{'; '.join(parts)}." if parts else "Its data are like those of others.")
    return sentences


def _group_part(client: Mapping[str, Any], facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The true group, where most clients are of others."""
    for kind, own in client.get("groups", {}).items():
        alike = sum(other.get("groups", {}).get(kind) == own for other in facts)
        if kind in TRUE_KINDS and 2 * alike <= len(facts):
            return [f"{kind} {own}, as {alike} of {len(facts)} clients have it"]
    return []


def _size_part(size: int, usual: float) -> list[str]:
    if usual and (size <= FEW * usual or size >= MANY * usual):
        return [f"{size} training examples, where the median is {usual:.0f}"]
    return []


def _label_parts(own: Sequence[float], usual: np.ndarray, classes: Sequence[str]) -> list[str]:
    """The labels whose shares differ most from the mean over clients."""
    differences = np.array(own) - usual
    order = np.argsort(-np.abs(differences))[:MOST_NAMED]
    return [
        f"{own[place]:.0%} {classes[place]}, where all have {usual[place]:.0%}"
        for place in order.tolist()
        if abs(differences[place]) >= FAR
    ]


def _verdicts(runs: Runs, ids: Sequence[ClientId], task: str) -> list[str]:
    """Whether a client's examples are as likely as the participants', by the first run that models
    them.
    """
    for run in runs.all:
        found = {id: row.get("log_likelihood") for id, row in run.rows.items()}
        usual = [found[id] for id in run.participants if found[id] is not None]
        if run.task == task and usual:
            return [_verdict(found.get(id), np.array(usual, dtype=float), run) for id in ids]
    return [""] * len(ids)


def _verdict(own: float | None, usual: np.ndarray, run: Run) -> str:
    if own is None:
        return ""
    below = float((usual < own).mean())
    which = "Novel" if below < LEVEL else "Familiar"
    return (
        f"{which} to {run.name}: its test examples are more likely than those of {below:.0%} of "
        "the participants."
    )


def _diagnosed(runs: Runs, ids: Sequence[ClientId], task: str) -> list[str]:
    """What the first diagnosis of these data says of every client."""
    contents = [run.diagnosis for run in runs.all if run.task == task and run.diagnosis]
    lines = contents[0]["clients"] if contents else {}
    return [_diagnosis_of(lines[id], contents[0]) if id in lines else "" for id in ids]


def _diagnosis_of(line: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    parts = []
    if content["questions"]["concept"]["differs"]:
        parts.append(f"concept group {line['group']}, {line['sure']:.0%} sure")
    parts.append(f"{line['label_distance']:.0%} of its labels away from those of all")
    if line["features_p"] <= LEVEL:
        parts.append(
            f"its inputs stand out (p = {line['features_p']:.2g}), mostly in "
            f"{', '.join(line['top_features'])}"
        )
    return f"Diagnosed: {'; '.join(parts)}."
