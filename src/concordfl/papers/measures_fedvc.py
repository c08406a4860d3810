"""What the FedVC paper's pictures show: the clients' data, how samples and clients lie by their
preferences, and how groups of clients fare over rounds.
"""

import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..algorithms.fedvc import COLLAPSED, MAPPED_SAMPLES, FedVC, mapped
from ..core import ClientId
from ..deploy.finished import FinishedRun
from ..metrics import separation
from ..report.pictures import Panel, Series
from .run_folder import clients_of, folder_of

Points = Mapping[ClientId, np.ndarray]  # (N, D) of a client
Separations = dict[str, dict[str, float]]  # of clients and of samples: silhouette and ARI


# --- the clients' data ----------------------------------------------------------------------------


def client_sizes(finished: FinishedRun) -> dict[str, Any]:
    """Figures 4 and 6: every client's training and test examples, by group."""
    clients = clients_of(finished)
    series: list[Series] = []
    for group in _groups(clients):
        own = [client for client in clients if client["groups"]["partition"] == group]
        held_out = ", held out" * all(client["held_out"] for client in own)
        for part, meaning in (("train", "training"), ("test", "test")):
            series.append(
                {
                    "name": f"{group}{held_out}, {meaning}",
                    "x": [client["id"] for client in own],
                    "y": [client[part] for client in own],
                }
            )
    return {"panels": [_stacked(series, "examples")]}


def class_shares(finished: FinishedRun) -> dict[str, Any]:
    """Figure 5: the shares of the classes at every client."""
    federation, classes = finished.federation(), finished.preprocessing.classes
    shares = {}
    for client in clients_of(finished):
        splits = federation.splits(client["id"])
        labels = torch.cat([splits.train.y, splits.validation.y, splits.test.y])
        shares[client["id"]] = torch.bincount(labels, minlength=len(classes)) / len(labels)
    series: list[Series] = [
        {
            "name": str(name),
            "x": list(shares),
            "y": [float(share[label]) for share in shares.values()],
        }
        for label, name in enumerate(classes)
    ]
    return {"panels": [_stacked(series, "share of the class")]}


def _stacked(series: list[Series], what: str) -> Panel:
    return {"kind": "stacked", "title": "", "x_label": "client", "y_label": what, "series": series}


def _groups(clients: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(client["groups"]["partition"] for client in clients))


# --- preferences ----------------------------------------------------------------------------------


def preferences(finished: FinishedRun) -> dict[str, Any]:
    """Figures 7 and 8: where samples of the participants lie by their p̂, and how well samples and
    clients fall into the true groups. Where the concepts have become one there are no numbers: what
    is left of p and p̂ are rounding errors.
    """
    _, places = _points(finished)
    panel = _map(places, _group_of(finished))
    if isinstance(finished.algorithm, FedVC):
        apart = finished.summary["server"]["apart"]
        panel["title"] = f"concepts lie {apart:.2g} apart"
        if apart < COLLAPSED:
            return {"panels": [panel]}
    return {"panels": [panel], **separations(finished)}


def separations(finished: FinishedRun) -> Separations:
    """How well samples by p̂, clients by p and clients by v fall into the true groups. Of a method
    without concepts: samples by their features, and clients by the mean of these.
    """
    points, _ = _points(finished)
    groups = _group_of(finished)
    found = {}
    for name, of_clients in points.items():
        truth = [groups[id] for id, own in of_clients.items() for _ in own]
        found[name] = separation(np.concatenate(list(of_clients.values())), truth)._asdict()
    return found


def _group_of(finished: FinishedRun) -> dict[ClientId, str]:
    return {client["id"]: client["groups"]["partition"] for client in clients_of(finished)}


def _points(finished: FinishedRun) -> tuple[dict[str, Points], Points]:
    """By what clients and samples are told, and where the samples lie on a map."""
    with_concepts = isinstance(finished.algorithm, FedVC)
    return _by_preference(finished) if with_concepts else _by_features(finished)


def _by_preference(finished: FinishedRun) -> tuple[dict[str, Points], Points]:
    """p, v and p̂ as they are recorded, and the samples' places on the map."""
    rows = folder_of(finished).read_client_rows(finished.summary["rounds"])
    own = {id: row for id, row in rows.items() if not row["new"]}
    points: dict[str, Points] = {
        "clients": {id: np.array([row["preference"]]) for id, row in own.items()},
        "weights": {id: np.array([row["weights"]]) for id, row in own.items()},
        "samples": {id: np.array(row["estimates"]) for id, row in own.items()},
    }
    return points, {id: np.array(row["map"]) for id, row in own.items()}


def _by_features(finished: FinishedRun) -> tuple[dict[str, Points], Points]:
    """Features under the global model, and the places of some in the plane where they lie farthest
    apart.
    """
    federation, params = finished.federation(), finished.progress.server
    features = {}
    for id in federation.participants:
        client = finished.client(id, federation.splits(id).train)
        features[id] = client.over(None, lambda inputs: finished.model.features(params, inputs))
    samples = {id: each[:MAPPED_SAMPLES] for id, each in features.items()}
    all_samples = torch.cat(list(samples.values()))
    points: dict[str, Points] = {
        "clients": {id: each.mean(0, keepdim=True).numpy() for id, each in features.items()},
        "samples": {id: each.numpy() for id, each in samples.items()},
    }
    return points, {id: mapped(each, all_samples).numpy() for id, each in samples.items()}


def _map(places: Points, groups: Mapping[ClientId, str]) -> Panel:
    series: list[Series] = []
    for group in sorted({groups[id] for id in places}):
        own = np.concatenate([each for id, each in places.items() if groups[id] == group])
        series.append({"name": group, "x": own[:, 0].tolist(), "y": own[:, 1].tolist()})
    return {"kind": "points", "title": "", "x_label": "", "y_label": "", "series": series}


# --- groups over rounds ---------------------------------------------------------------------------


def accuracy_by_group(finished: FinishedRun) -> dict[str, Any]:
    """Figures 9 and 10: the mean accuracy of every group's clients over rounds, its deviation among
    them, and how far the best group is ahead of the worst one in the end.
    """
    folder, clients = folder_of(finished), clients_of(finished)
    rounds = [record["round"] for record in folder.read_records()]
    rows = {round: folder.read_client_rows(round) for round in rounds}
    series: list[Series] = []
    for group in _groups(clients):
        own = [client["id"] for client in clients if client["groups"]["partition"] == group]
        scores = {
            round: [rows[round][id]["accuracy"] for id in own if id in rows[round]]
            for round in rounds
        }
        if all(scores.values()):
            series.append(
                {
                    "name": group,
                    "x": rounds,
                    "y": [statistics.mean(each) for each in scores.values()],
                    "spread": [statistics.pstdev(each) for each in scores.values()],
                }
            )
    panel: Panel = {
        "kind": "lines",
        "title": "",
        "x_label": "round",
        "y_label": "accuracy",
        "series": series,
    }
    last = [each["y"][-1] or 0.0 for each in series]
    return {"panels": [panel], "gap": max(last) - min(last)}
