"""What is measured for FedConcat's paper, on two clients of the small digits."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from concordfl.config import Config
from concordfl.deploy.finished import FinishedRun
from concordfl.papers import measures_fedconcat as measures
from concordfl.runner import run

TWO_CLIENTS = {
    "run": {"rounds": 1, "executor": "serial"},
    "data": {"name": "digits", "without": [3, 4, 5, 6, 7, 8], "limit": 300, "standardise": False},
    "scenario": {
        "clients": 2,
        "partition": {"kind": "labels-per-client", "labels": [[0, 2], [1, 9]]},
        "split": [0.8, 0.0, 0.2],
        "hold_out": 0.0,
    },
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch_size": 16, "epochs": 3},
    "algorithm": {"name": "fedavg"},
}


def finish(folder, **changes):
    run(Config.from_table({**TWO_CLIENTS, **changes}), out=folder)
    return FinishedRun.open(folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("measures") / "run")


def test_the_local_models_are_those_of_the_run(finished):
    clients = measures._clients(finished)
    models = measures._local_models(finished, clients)
    average = measures._mean(models, clients)
    for name, value in finished.progress.server.items():
        assert torch.allclose(average[name], value, atol=1e-6)


def test_losses_are_those_of_the_best_linear_maps(finished):
    found = measures.encoder_losses(finished)
    assert set(found) == {"first_task", "second_task", "both_tasks"}
    clients = measures._clients(finished)
    first, second = measures._local_models(finished, clients)
    train = measures._joined([client.examples for client in clients])
    test = measures._joined([measures._test_of(finished, client) for client in clients])

    def design(examples):
        x = examples.inputs()
        features = [finished.model.features(params, x).numpy() for params in (first, second)]
        return np.hstack([*features, np.ones((len(x), 1))])

    pixels = [part.inputs().flatten(1).numpy() for part in (train, test)]
    weights, *_ = np.linalg.lstsq(design(train), pixels[0], rcond=None)
    expected = np.mean((design(test) @ weights - pixels[1]) ** 2)
    assert found["both_tasks"]["concatenated"]["reconstruction"] == pytest.approx(
        expected, rel=1e-3
    )
    one = found["both_tasks"]["first"]["classification"]
    assert found["both_tasks"]["concatenated"]["classification"] < one


def test_averaging_changes_nothing_that_was_not_trained(tmp_path):
    still = {"lr": 1e-12, "batch_size": 16, "epochs": 2}
    finished = finish(tmp_path / "run", training=still, run={**TWO_CLIENTS["run"], "rounds": 2})
    (panel,) = measures.averaging(finished)["panels"]
    start = finished.model.init(0)
    for client, own, average in zip(
        measures._clients(finished), panel["series"][::2], panel["series"][1::2], strict=True
    ):
        test = measures._test_of(finished, client)
        right = finished.model.logits(start, test.inputs()).argmax(1) == test.y
        share = pytest.approx(float(right.double().mean()))
        assert (own["x"], own["y"]) == ([1, 2, 3, 4], [share] * 4)
        assert (average["x"], average["y"]) == ([2, 4], [share] * 2)
    assert [series["name"] for series in panel["series"][:2]] == [
        "own model on 0, 2",
        "average on 0, 2",
    ]


def test_representations_are_points_of_every_class(finished):
    panels = measures.local_representations(finished)["panels"]
    assert [panel["title"] for panel in panels] == [
        "both encoders",
        "first encoder",
        "second encoder",
    ]
    (panel,) = measures.representation(finished)["panels"]
    assert [series["name"] for series in panel["series"]] == ["0", "1", "2", "9"]
    shown = sum(len(series["x"]) for series in panel["series"])
    assert shown == min(len(measures._test(finished)), measures.MAX_POINTS)


def test_label_shares_that_are_told_are_true(tmp_path):
    concat = {"name": "fedconcat", "clusters": 2, "encoder_rounds": 1, "head_rounds": 1}
    found = measures.label_shares(finish(tmp_path / "run", algorithm=concat))
    assert found["distance"] == pytest.approx(0)
    assert found["correlation"] == pytest.approx(1)
    (panel,) = found["panels"]
    true, inferred = (series["y"] for series in panel["series"])
    assert inferred == pytest.approx(true)
    assert np.flatnonzero(true).tolist() == [0, 2]


def test_a_data_set_counts_without_limit(finished):
    sizes = measures.data_set(finished)
    others = ~np.isin(load_digits().target, TWO_CLIENTS["data"]["without"])
    assert (sizes["classes"], sizes["training"] + sizes["test"]) == (10, others.sum())
