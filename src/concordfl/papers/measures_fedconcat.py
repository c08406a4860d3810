"""What the FedConcat paper looks at beside accuracy: what averaging does to models of different
classes, what encoders tell of labels and of inputs, the label shares that a server infers, and how
large data sets are.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..algorithms.fedconcat import FedConcatServer
from ..core import Client, Examples, Key, Params, tree
from ..deploy.finished import FinishedRun
from ..metrics import separation
from ..report.pictures import Panel, Series

MAX_POINTS = 600  # of a picture
PERPLEXITY = 30.0
MAX_ITERATIONS = 5000  # of a linear classifier


def data_set(finished: FinishedRun) -> dict[str, Any]:
    """Table 8: the data set of the run, without any limit."""
    data = replace(finished.settings.data, limit=None, test_limit=None).load(Key(0))
    return {
        "training": len(data.train.y),
        "test": len(data.test.y),
        "classes": data.num_classes,
    }


def label_shares(finished: FinishedRun) -> dict[str, Any]:
    """Figure 12: what the server has inferred of the first client's labels, and the truth; and how
    far the two are apart over all clients.
    """
    server: FedConcatServer = finished.progress.server
    federation = finished.federation()
    inferred = {id: shares.numpy() for id, shares in sorted(server.label_shares.items())}
    true = {
        id: np.bincount(federation.splits(id).train.y, minlength=federation.num_classes)
        for id in inferred
    }
    true = {id: counts / counts.sum() for id, counts in true.items()}
    first, classes = next(iter(inferred)), finished.preprocessing.classes
    panel: Panel = {
        "kind": "bars",
        "title": first,
        "x_label": "label",
        "y_label": "share",
        "series": [
            {"name": name, "x": classes, "y": shares[first].tolist()}
            for name, shares in (("true", true), ("inferred", inferred))
        ],
    }
    distances = [np.abs(inferred[id] - true[id]).sum() for id in inferred]
    correlations = [np.corrcoef(inferred[id], true[id])[0, 1] for id in inferred]
    return {
        "panels": [panel],
        "distance": float(np.mean(distances)),
        "correlation": float(np.mean(correlations)),
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


def encoder_losses(finished: FinishedRun) -> dict[str, Any]:
    """Tables 6 and 7: how much encoders tell, by the losses of the best linear maps of their
    features to labels and to pixels on test images.

    Of each client's task, with its `own` encoder and with the `other` one; and of the task of both,
    with one encoder, their average, and both side by side.
    """
    clients = _clients(finished)
    first, second = _local_models(finished, clients)
    tests = [_test_of(finished, client) for client in clients]
    trains = [client.examples for client in clients]

    def losses(encoders: Sequence[Params], *tasks: int) -> dict[str, float]:
        train = _joined([trains[task] for task in tasks])
        return _losses(clients[0], encoders, train, _joined([tests[task] for task in tasks]))

    return {
        "first_task": {"own": losses([first], 0), "other": losses([second], 0)},
        "second_task": {"own": losses([second], 1), "other": losses([first], 1)},
        "both_tasks": {
            "first": losses([first], 0, 1),
            "second": losses([second], 0, 1),
            "average": losses([_mean([first, second], clients)], 0, 1),
            "concatenated": losses([first, second], 0, 1),
        },
    }


def local_representations(finished: FinishedRun) -> dict[str, Any]:
    """Figure 5: test images by the clients' encoders side by side, and by each."""
    clients = _clients(finished)
    first, second = _local_models(finished, clients)
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


def _local_models(finished: FinishedRun, clients: Sequence[Client]) -> list[Params]:
    """What the clients of a run of one round have trained."""
    start = finished.model.init(finished.settings.run.seed)
    return [client.fit(start) for client in clients]


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


def _joined(parts: Sequence[Examples]) -> Examples:
    return Examples(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        scale=parts[0].scale,
    )


def _accuracy(client: Client, params: Params, examples: Examples) -> float:
    found = client.logits(params, examples).argmax(1) == examples.y
    return float(found.double().mean())


def _features(client: Client, encoders: Sequence[Params], examples: Examples) -> np.ndarray:
    """(N, K · width) of encoders side by side."""

    def of(encoder: Params) -> Tensor:
        return client.over(examples, lambda inputs: client.model.features(encoder, inputs))

    return torch.cat([of(encoder) for encoder in encoders], dim=1).double().numpy()


def _losses(
    client: Client, encoders: Sequence[Params], train: Examples, test: Examples
) -> dict[str, float]:
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.metrics import log_loss

    features, of_test = (_features(client, encoders, part) for part in (train, test))
    classifier = LogisticRegression(max_iter=MAX_ITERATIONS).fit(features, train.y.numpy())
    guessed = classifier.predict_proba(of_test)
    pixels, test_pixels = (
        part.inputs(scaled=False).flatten(1).double().numpy() for part in (train, test)
    )
    decoder = LinearRegression().fit(features, pixels)
    return {
        "classification": float(log_loss(test.y.numpy(), guessed, labels=classifier.classes_)),
        "reconstruction": float(np.mean((decoder.predict(of_test) - test_pixels) ** 2)),
    }


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
