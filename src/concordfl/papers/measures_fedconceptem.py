"""What the FedConceptEM paper's pictures show: which model holds which concepts and labels, how the
models' shares move, and the toy case of figure 3.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ClientId, Examples, Key
from ..deploy.finished import FinishedRun
from ..report.pictures import Panel, Series
from ..report.runs import Rows, mixture_weights
from ..report.sections.shares import share_lines
from ..study.kept_results import evaluated_round
from ..study.portraits import labels_by_model as labels_of_models
from ..toolbox import mixture
from .run_folder import clients_of, folder_of

Weights = Mapping[str, float]  # of a client, by model


# --- weights of clients ---------------------------------------------------------------------------


def concepts_by_model(finished: FinishedRun) -> dict[str, Any]:
    """Figures 2 and 8: the share of every concept's examples that is assigned to each model."""
    clients = _participants(finished)
    weights = _weights(finished, finished.summary["rounds"])
    sizes = {client["id"]: client["train"] for client in clients}
    concepts = {client["id"]: client["groups"]["concept"] for client in clients}
    shares = {
        concept: _mean_weights(
            {id: own for id, own in weights.items() if concepts[id] == concept}, sizes
        )
        for concept in sorted(set(concepts.values()))
    }
    agreement = finished.summary["clusters"] or {}  # there is none with a single concept
    return {"panels": [_heatmap(shares, "concept")], "ari": agreement.get("ari")}


def labels_by_model(finished: FinishedRun) -> dict[str, Any]:
    """Figure 9: the share of every label's examples that is assigned to each model, and how far
    labels are from being shared out alike: their mean distance, in total variation, from all.
    """
    rows = _participants_rows(finished, finished.summary["rounds"])
    shares, distance = labels_of_models(finished, rows, list(rows))
    return {"panels": [_heatmap(shares, "label")], "distance": distance}


def model_shares(finished: FinishedRun) -> dict[str, Any]:
    """Figures 7 and 11: the share of all examples that each model holds, over rounds; how good the
    models were; and how many are left.
    """
    records = folder_of(finished).read_records()
    sizes = {client["id"]: client["train"] for client in _participants(finished)}
    shares = {
        record["round"]: _mean_weights(_weights(finished, record["round"]), sizes)
        for record in records
    }
    return {
        "panels": [share_lines(shares, "share of the examples")],
        "history": [evaluated_round(record) for record in records],
        "global_accuracy": finished.summary["final"]["global_accuracy"],
        "models": len(shares[finished.summary["rounds"]]),
    }


def _participants(finished: FinishedRun) -> list[dict[str, Any]]:
    """What is recorded of the participants."""
    return [client for client in clients_of(finished) if not client["held_out"]]


def _participants_rows(finished: FinishedRun, round: int) -> Rows:
    """The figures of the participants in an evaluated round."""
    rows = folder_of(finished).read_client_rows(round)
    return {id: row for id, row in rows.items() if not row["new"]}


def _weights(finished: FinishedRun, round: int) -> Mapping[ClientId, Weights]:
    """The mixture weights ω of the participants in an evaluated round."""
    return mixture_weights(_participants_rows(finished, round))


def _mean_weights(
    weights: Mapping[ClientId, Weights], sizes: Mapping[ClientId, int]
) -> dict[str, float]:
    """The mean of clients' weights, by their numbers of examples."""
    models = next(iter(weights.values()))
    total = sum(sizes[id] for id in weights)
    return {
        model: sum(sizes[id] * own[model] for id, own in weights.items()) / total
        for model in models
    }


def _heatmap(shares: Mapping[str, Mapping[str, float]], what: str) -> Panel:
    series: list[Series] = [
        {"name": name, "x": list(own), "y": list(own.values())} for name, own in shares.items()
    ]
    return {"kind": "heatmap", "title": "", "x_label": "model", "y_label": what, "series": series}


# --- figure 3 -------------------------------------------------------------------------------------

TOY_MODELS = 2
TOY_STARTS = 20
TOY_STEPS = 100
TINY_WEIGHT = 1e-9  # of a pair that no example has


class Toy(NamedTuple):
    """EM on tables: the weights of every dataset at each step, and what the models have become."""

    omega: Sequence[Tensor]  # (datasets, K) by step
    found: Tensor  # (datasets, K) the least P_k(y|x) over a dataset's examples

    @property
    def least(self) -> float:
        """Of the best model for each dataset, the least P_k(y|x)."""
        return float(self.found.max(1).values.min())


def toy_em(finished: FinishedRun) -> dict[str, Any]:
    """Traditional EM, by the likelihood P_k(x, y), on the run's data."""
    return _toy(finished, divides_by_label=False)


def toy_concept_em(finished: FinishedRun) -> dict[str, Any]:
    """ConceptEM, by P_k(y|x) / P_k(y) (7), on the run's data."""
    return _toy(finished, divides_by_label=True)


def _toy(finished: FinishedRun, *, divides_by_label: bool) -> dict[str, Any]:
    """The mean over starts of the least P(y|x) that is found; pictures of the start that ends
    worst.
    """
    federation = finished.federation()
    datasets = [federation.splits(id).train for id in federation.participants]
    ended = [
        em_on_tables(datasets, Key(start), divides_by_label=divides_by_label)
        for start in range(TOY_STARTS)
    ]
    worst = min(ended, key=lambda toy: toy.least)
    steps = list(range(len(worst.omega)))
    names = federation.participants
    weights: Panel = {
        "kind": "lines",
        "title": "worst start",
        "x_label": "step",
        "y_label": "weight of model 0",
        "series": [
            {"name": name, "x": steps, "y": [float(omega[number, 0]) for omega in worst.omega]}
            for number, name in enumerate(names)
        ],
    }
    found = {
        name: {str(model): float(value) for model, value in enumerate(row)}
        for name, row in zip(names, worst.found, strict=True)
    }
    conditional = {**_heatmap(found, "dataset"), "title": "worst start, P(y|x)"}
    return {
        "panels": [weights, conditional],
        "least": statistics.mean(toy.least for toy in ended),
    }


def em_on_tables(datasets: Sequence[Examples], key: Key, *, divides_by_label: bool) -> Toy:
    """EM with a table P_k(x, y) for each of K models, from random weights of every dataset."""
    x, y = (torch.cat([getattr(each, name) for each in datasets]).long() for name in ("x", "y"))
    x = x.flatten()
    owner = torch.repeat_interleave(
        torch.arange(len(datasets)), torch.tensor([len(each) for each in datasets])
    )
    start = key.numpy().dirichlet(np.ones(TOY_MODELS), size=len(datasets))
    omega = [torch.from_numpy(start)]
    gamma = omega[0][owner]  # (N, K)
    size = (TOY_MODELS, int(x.max()) + 1, int(y.max()) + 1)
    for _ in range(TOY_STEPS):
        table = torch.full(size, TINY_WEIGHT, dtype=torch.float64)
        for model in range(TOY_MODELS):
            table[model].index_put_((x, y), gamma[:, model], accumulate=True)
        joint = table / table.sum((1, 2), keepdim=True)
        conditional = table / table.sum(2, keepdim=True)
        if divides_by_label:  # (7)
            likelihood = conditional[:, x, y] / joint.sum(1)[:, y]
        else:
            likelihood = joint[:, x, y]
        gamma = mixture.responsibilities(-likelihood.T.log(), omega[-1][owner])
        omega.append(torch.stack([gamma[owner == each].mean(0) for each in range(len(datasets))]))
    of_examples = conditional[:, x, y].T
    found = torch.stack([of_examples[owner == each].min(0).values for each in range(len(datasets))])
    return Toy(omega, found)
