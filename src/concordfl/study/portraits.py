"""What a finished run shows only with its data at hand: labels by model, novelty, typical samples.

A picture of very many clients shows some of them, and says so.
"""

import base64
import io
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image as Pixels
from torch import Tensor

from ..core import Client, ClientId, ConcordError, Examples
from ..deploy.finished import FinishedRun
from ..deploy.scoring import Scored, score_examples
from ..report.document import Gallery
from ..report.pictures import Panel, Series
from ..report.runs import Portrait, Rows, mixture_weights
from ..report.sections.parts import heatmap, points
from ..toolbox import mixture

MOST_CLIENTS = 200  # whose examples are looked at
MOST_SAMPLES = 400  # of a kind, in a picture
MOST_TYPICAL = 10  # of a concept
NUM_BINS = 40
WITH_RESPONSIBILITIES = ("fedem", "fedconceptem")  # of single examples, by the same equation
LOG_X, LOG_Y = "log_p_x", "log_p_y_given_x"


def portrait(finished: FinishedRun, rows: Rows) -> Portrait:
    """By the figures of participants in the last round. Empty for methods of which the records tell
    all; with the reason where the data are gone.
    """
    algorithm = finished.algorithm
    try:
        if finished.name in WITH_RESPONSIBILITIES:
            return Portrait(labels_by_model=_labels_panel(finished, rows))
        if algorithm.scores_samples and finished.objective.kind == "classification":
            return Portrait(novelty=_novelty(finished))
        if _have_typical(rows) and len(finished.preprocessing.input_shape) == 3:
            return Portrait(typical=_typical(finished, rows))
    except ConcordError as error:
        return Portrait(problem=f"{finished.name}: {error}")
    return Portrait()


def _some(ids: Sequence[ClientId]) -> list[ClientId]:
    """Evenly spread over all."""
    places = np.unique(np.linspace(0, len(ids) - 1, MOST_CLIENTS).round().astype(int))
    return [ids[place] for place in places.tolist()] if ids else []


# --- labels by model ------------------------------------------------------------------------------


def labels_by_model(
    finished: FinishedRun, rows: Rows, ids: Sequence[ClientId]
) -> tuple[dict[str, dict[str, float]], float]:
    """The share of every label's training examples that is assigned to each model, and how far
    labels are from being shared out alike: their mean distance, in total variation, from all.
    """
    federation, names = finished.federation(), finished.preprocessing.classes
    weights = mixture_weights(rows)
    chosen = [id for id in ids if id in weights]
    models = list(weights[chosen[0]])
    train = {id: federation.splits(id).train for id in chosen}
    gamma = torch.cat(
        [_responsibilities(finished, finished.client(id, train[id]), weights[id]) for id in chosen]
    )
    labels = torch.cat([train[id].y for id in chosen])
    of_label = {label: gamma[labels == label].mean(0) for label in sorted(set(labels.tolist()))}
    shares = {
        names[label]: dict(zip(models, share.tolist(), strict=True))
        for label, share in of_label.items()
    }
    distances = [float((share - gamma.mean(0)).abs().sum()) / 2 for share in of_label.values()]
    return shares, statistics.mean(distances)


def _responsibilities(finished: FinishedRun, client: Client, own: dict[str, float]) -> Tensor:
    """(N, K) of a participant's examples under the last models: (3), or with a prior (10)."""
    message: Any = finished.algorithm.message(finished.progress.server, client.id)
    models: mixture.Models = getattr(message, "models", message)  # FedEM's message is its models
    omega = torch.tensor([own[str(model)] for model in models], dtype=torch.float64)
    prior: Tensor | float = 0.0
    if hasattr(message, "log_prior"):
        prior = torch.stack([message.log_prior[k][client.examples.y] for k in models], dim=1)
    return mixture.responsibilities(client.losses_each(models), omega, prior)


def _labels_panel(finished: FinishedRun, rows: Rows) -> Panel:
    everybody = finished.kept.participants
    ids = _some(everybody)
    shares, _ = labels_by_model(finished, rows, ids)
    models = list(next(iter(shares.values())))
    panel = heatmap(
        {name: list(own.values()) for name, own in shares.items()}, models, "model", "label"
    )
    if len(ids) < len(everybody):
        panel["title"] = f"{len(ids)} of {len(everybody)} clients"
    return panel


# --- novelty --------------------------------------------------------------------------------------


def _novelty(finished: FinishedRun) -> list[Panel]:
    """Test examples of participants, and of clients that were not in training."""
    federation = finished.federation()
    kinds = {"participants": federation.participants, "held-out clients": federation.held_out}
    scored = {
        kind: score_examples(finished, _test_examples(finished, ids), labelled=True)
        for kind, ids in kinds.items()
        if ids
    }
    panels = [_histogram(scored)]
    if all(LOG_Y in part.columns for part in scored.values()):
        panels.insert(0, scatter_by_term(scored))
    return panels


def _test_examples(finished: FinishedRun, ids: Sequence[ClientId]) -> Examples:
    tests = [finished.federation().splits(id).test for id in _some(ids)]
    x, y = (torch.cat([getattr(test, part) for test in tests]) for part in ("x", "y"))
    return Examples(x, y, scale=tests[0].scale)


def scatter_by_term(scored: Mapping[str, Scored]) -> Panel:
    """Samples by log p(x) and log p(y|x), spread evenly over each part."""

    def drawn(part: Scored, column: str) -> list[float]:
        values = part.columns[column]
        chosen = np.linspace(0, len(values) - 1, min(MOST_SAMPLES, len(values))).astype(int)
        return [float(value) for value in values[chosen]]

    series: list[Series] = [
        {"name": kind, "x": drawn(part, LOG_X), "y": drawn(part, LOG_Y)}
        for kind, part in scored.items()
    ]
    return points(series, "log p(x)", "log p(y|x)")


def _histogram(scored: dict[str, Scored]) -> Panel:
    """The share of samples by their score. A few that lie far below count in the lowest bin."""
    everything = np.concatenate([part.score for part in scored.values()])
    low, high = np.quantile(everything, [0.005, 1.0])
    edges = np.linspace(low, max(high, low + 1e-9), NUM_BINS + 1)
    series: list[Series] = [
        {
            "name": kind,
            "x": edges.tolist(),
            "y": (np.histogram(part.score.clip(low, high), edges)[0] / len(part.score)).tolist(),
        }
        for kind, part in scored.items()
    ]
    threshold = next(iter(scored.values())).threshold
    title = "" if threshold is None else f"novel below {threshold:.4g}"
    return {
        "kind": "histogram",
        "title": title,
        "x_label": "score",
        "y_label": "share of the examples",
        "series": series,
    }


# --- typical samples ------------------------------------------------------------------------------


def _have_typical(rows: Rows) -> bool:
    """Whether the method has named clients' most typical samples of its concepts."""
    return bool(rows) and all("typical" in row for row in rows.values())


def _typical(finished: FinishedRun, rows: Rows) -> list[Gallery]:
    """Of every concept, the images of all participants that express it most."""
    found: dict[int, list[tuple[float, ClientId, int]]] = {}
    for id, row in rows.items():
        typical = row["typical"]
        for concept, (samples, values) in enumerate(
            zip(typical["samples"], typical["expressed"], strict=True)
        ):
            own = found.setdefault(concept, [])
            own += [(value, id, sample) for value, sample in zip(values, samples, strict=True)]
    return [
        {
            "title": f"concept {concept}",
            "images": [
                {
                    "png": _png(finished, id, sample),
                    "caption": f"{_label(finished, id, sample)}, {id}: {value:.0%}",
                }
                for value, id, sample in sorted(own, reverse=True)[:MOST_TYPICAL]
            ],
        }
        for concept, own in sorted(found.items())
    ]


def _label(finished: FinishedRun, id: ClientId, sample: int) -> str:
    train = finished.federation().splits(id).train
    return str(finished.preprocessing.classes[int(train.y[sample])])


def _png(finished: FinishedRun, id: ClientId, sample: int) -> str:
    """An image as it was before it was standardised, as base64."""
    train = finished.federation().splits(id).train
    pixels = train.inputs(torch.tensor([sample]), scaled=False)[0].permute(1, 2, 0)
    span = float(pixels.max() - pixels.min()) or 1.0
    in_range = bool(pixels.min() >= 0 and pixels.max() <= 1)
    shown = pixels if in_range else (pixels - pixels.min()) / span
    values = (shown * 255).round().byte().numpy()
    file = io.BytesIO()
    Pixels.fromarray(values[:, :, 0] if values.shape[2] == 1 else values).save(file, "png")
    return base64.b64encode(file.getvalue()).decode()
