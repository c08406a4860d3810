"""What is measured for FedConcat's paper, on two clients of the small digits."""

import numpy as np
import pytest
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


def test_representations_are_points_of_every_class(finished, tmp_path):
    (panel,) = measures.representation(finished)["panels"]
    assert [series["name"] for series in panel["series"]] == ["0", "1", "2", "9"]
    shown = sum(len(series["x"]) for series in panel["series"])
    federation = finished.federation()
    test = federation.splits(federation.held_out[0]).test
    assert shown == min(len(test), measures.MAX_POINTS)
    panels = measures.local_representations(finish(tmp_path / "run", algorithm={"name": "local"}))
    assert [panel["title"] for panel in panels["panels"]] == [
        "both encoders",
        "first encoder",
        "second encoder",
    ]


def test_a_data_set_counts_without_limit(finished):
    sizes = measures.data_set(finished)
    others = ~np.isin(load_digits().target, TWO_CLIENTS["data"]["without"])
    assert (sizes["classes"], sizes["training"] + sizes["test"]) == (10, others.sum())
