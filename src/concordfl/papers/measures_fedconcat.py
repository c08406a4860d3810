"""What the FedConcat paper looks at beside accuracy, clusters and losses: what averaging does to
models of different classes, how encoders place images, and how large data sets are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from ..core import Client, Examples, Key, Params, tree
from ..deploy.finished import FinishedRun
from ..metrics import separation
from ..report.pictures import Panel, Series

MAX_POINTS = 600  # of a picture
PERPLEXITY = 30.0


def data_set(finished: FinishedRun) -> dict[str, Any]:
    """Table 8: the data set of the run, without any limit."""
    data = replace(finished.settings.data, limit=None, test_limit=None).load(Key(0))
    return {
        "training": len(data.train.y),
        "test": len(data.test.y),
        "classes": data.num_classes,
    }


# --- two clients without a common class -----------------------------------------------------------


def averaging(finished: FinishedRun) -> dict[str, Any]:
    """Figure 1: how well every client's model knows the client's own classes after each local
    epoch, and the average of all models after each round. Momentum begins anew with every epoch.
    """
    clients, settings = _clients(finished), finished.settings
    model = finished.model.init(settings.run.seed)
    local: list[list[float]] = [[] for _ in clients]
    average: list[list[float]] = [[] for _ in clients]
    for _ in range(settings.run.rounds):
        trained = []
        for client, scores in zip(clients, local, strict=True):
            own = model
            for _ in range(settings.training.epochs):
                own = client.fit(own, epochs=1, purpose=f"epoch-{len(scores)}")
                scores.append(_accuracy(client, own, _test_of(finished, client)))
            trained.append(own)
        model = _mean(trained, clients)
        for client, scores in zip(clients, average, strict=True):
            scores.append(_accuracy(client, model, _test_of(finished, client)))
    epochs = settings.training.epochs
    series: list[Series] = []
    for client, of_local, of_average in zip(clients, local, average, strict=True):
        labels = ", ".join(str(label) for label in sorted(set(client.examples.y.tolist())))
        ends = [epochs * (number + 1) for number in range(len(of_average))]
        epoch_numbers = list(range(1, len(of_local) + 1))
        series.append({"name": f"own model on {labels}", "x": epoch_numbers, "y": of_local})
        series.append({"name": f"average on {labels}", "x": ends, "y": of_average})
    panel: Panel = {
        "kind": "lines",
        "title": "",
        "x_label": "local epoch",
        "y_label": "accuracy on a client's classes",
        "series": series,
    }
    return {"panels": [panel]}


def local_representations(finished: FinishedRun) -> dict[str, Any]:
    """Figure 5: test images by the encoders of two clients of `local` side by side, and by each."""
    first, second = (cast(Params, finished.kept.state(id)) for id in finished.kept.participants)
    found = {
        "both encoders": _representation(finished, [first, second]),
        "first encoder": _representation(finished, [first]),
        "second encoder": _representation(finished, [second]),
    }
    return {
        "panels": [{**each["panels"][0], "title": title} for title, each in found.items()],
        "silhouette": found["both encoders"]["silhouette"],
    }


def representation(finished: FinishedRun) -> dict[str, Any]:
    """Figure 6: test images by the encoder of the run's one model."""
    return _representation(finished, [finished.progress.server])


def _clients(finished: FinishedRun) -> list[Client]:
    federation = finished.federation()
    return [finished.client(id, federation.splits(id).train) for id in federation.participants]


def _mean(models: Sequence[Params], clients: Sequence[Client]) -> Params:
    """By size."""
    total = sum(client.size for client in clients)
    shares = [
        tree.scale(model, client.size / total)
        for model, client in zip(models, clients, strict=True)
    ]
    mean: Params = shares[0]
    for share in shares[1:]:
        mean = tree.add(mean, share)
    return mean


def _test(finished: FinishedRun) -> Examples:
    federation = finished.federation()
    return federation.splits(federation.held_out[0]).test


def _test_of(finished: FinishedRun, client: Client) -> Examples:
    """The test images of the client's classes."""
    test = _test(finished)
    own = torch.isin(test.y, client.examples.y)
    return Examples(test.x[own], test.y[own], scale=test.scale)


def _accuracy(client: Client, params: Params, examples: Examples) -> float:
    found = client.logits(params, examples).argmax(1) == examples.y
    return float(found.double().mean())


def _features(client: Client, encoders: Sequence[Params], examples: Examples) -> np.ndarray:
    """(N, K · width) of encoders side by side."""

    def of(encoder: Params) -> Tensor:
        return client.over(examples, lambda inputs: client.model.features(encoder, inputs))

    return torch.cat([of(encoder) for encoder in encoders], dim=1).double().numpy()


def _representation(finished: FinishedRun, encoders: Sequence[Params]) -> dict[str, Any]:
    from sklearn.manifold import TSNE

    test = _test(finished)
    chosen = np.linspace(0, len(test) - 1, min(len(test), MAX_POINTS)).astype(int)
    shown = Examples(test.x[chosen], test.y[chosen], scale=test.scale)
    features = _features(finished.client("somebody", shown), encoders, shown)
    perplexity = min(PERPLEXITY, (len(shown) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
    labels = shown.y.numpy()
    series: list[Series] = [
        {
            "name": finished.preprocessing.classes[label],
            "x": points[labels == label, 0].tolist(),
            "y": points[labels == label, 1].tolist(),
        }
        for label in sorted(set(labels.tolist()))
    ]
    panel: Panel = {
        "kind": "points",
        "title": "",
        "x_label": "t-SNE",
        "y_label": "",
        "series": series,
    }
    return {"panels": [panel], "silhouette": separation(features, labels.tolist()).silhouette}
