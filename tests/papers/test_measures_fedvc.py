"""What the FedVC paper's pictures show, against the same by hand."""

import json

import numpy as np
import pytest
from sklearn.metrics import silhouette_score

from concordfl import papers
from concordfl.deploy.finished import FinishedRun
from concordfl.engine.records import RunFolder
from concordfl.papers import measures_fedvc as measures
from concordfl.papers.entries import Part
from concordfl.study.cells import cells
from concordfl.study.compare import finish


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Finished runs at the smallest scale, on digits that everybody has."""
    paper = papers.read_paper("fedvc")

    def run(method, **algorithm):
        cell = Part(setting="target", method=method, set={"algorithm": algorithm})
        table = paper.table(cell, "tiny")
        table["data"] = {"name": "digits", "limit": 300, "standardise": False}
        table["model"] = {"name": "mlp"}
        folder = tmp_path_factory.mktemp(method) / "run"
        finish(cells(table, [method], [0])[method, 0], folder)
        return FinishedRun.open(folder)

    return run


@pytest.fixture(scope="module")
def fedavg(play):
    return play("fedavg")


@pytest.fixture(scope="module")
def fedvc(play):
    return play("fedvc", similarity=50.0)


def test_client_sizes(fedavg):
    federation = fedavg.federation()
    (panel,) = measures.client_sizes(fedavg)["panels"]
    assert len(panel["series"]) == 10  # training and test examples of five groups
    for series in panel["series"]:
        group, *_, part = series["name"].split(", ")
        assert ("held out" in series["name"]) == (group in ("group-4", "group-5"))
        for id, size in zip(series["x"], series["y"], strict=True):
            splits = federation.splits(id)
            assert federation.groups[id]["partition"] == group
            assert size == len(splits.train if part == "training" else splits.test)
    shown = [id for series in panel["series"][::2] for id in series["x"]]
    assert sorted(shown) == sorted([*federation.participants, *federation.held_out])


def test_class_shares(fedavg):
    federation = fedavg.federation()
    (panel,) = measures.class_shares(fedavg)["panels"]
    shares = np.array([series["y"] for series in panel["series"]])
    assert shares.sum(0) == pytest.approx(1)
    for id, share in zip(panel["series"][0]["x"], shares.T, strict=True):
        labels = np.concatenate([part.y.numpy() for part in federation.splits(id)])
        assert share == pytest.approx(np.bincount(labels, minlength=10) / len(labels))


def test_preferences(fedvc):
    rows = RunFolder.open(fedvc.kept.path).read_client_rows(2)
    groups = fedvc.federation().groups
    own = {id: row for id, row in rows.items() if not row["new"]}
    found = measures.preferences(fedvc)
    truth = [groups[id]["partition"] for id in own]
    assert set(truth) == {"group-1", "group-2", "group-3"}
    by_preference = silhouette_score(np.array([row["preference"] for row in own.values()]), truth)
    assert found["clients"]["silhouette"] == pytest.approx(by_preference)
    samples = [
        (one, groups[id]["partition"]) for id, row in own.items() for one in row["estimates"]
    ]
    estimates, of_samples = zip(*samples, strict=True)
    by_estimate = silhouette_score(np.array(estimates), of_samples)
    assert found["samples"]["silhouette"] == pytest.approx(by_estimate)
    (panel,) = found["panels"]
    assert [series["name"] for series in panel["series"]] == sorted(set(truth))
    assert sum(len(series["x"]) for series in panel["series"]) == len(samples)


def test_preferences_of_one_concept_are_not_counted(play):
    """They would be rounding errors, which may well fall into groups."""
    found = measures.preferences(play("fedvc", similarity=1e-6))
    assert list(found) == ["panels"]
    assert "apart" in found["panels"][0]["title"]


def test_preferences_of_a_method_without_concepts_are_its_features(fedavg):
    federation, params = fedavg.federation(), fedavg.progress.server
    means, truth = [], []
    for id in federation.participants:
        train = federation.splits(id).train
        features = fedavg.model.features(params, train.inputs()).detach().numpy()
        means.append(features.mean(0))
        truth.append(federation.groups[id]["partition"])
    found = measures.preferences(fedavg)
    expected = silhouette_score(np.array(means), truth)
    assert found["clients"]["silhouette"] == pytest.approx(expected, abs=1e-4)


def test_accuracy_by_group(fedavg, play):
    folder = RunFolder.open(fedavg.kept.path)
    groups = fedavg.federation().groups
    found = measures.accuracy_by_group(fedavg)
    (panel,) = found["panels"]
    ends = []
    for series in panel["series"]:
        assert list(series["x"]) == [1, 2]
        for round, mean, spread in zip(series["x"], series["y"], series["spread"], strict=True):
            rows = folder.read_client_rows(round)
            own = [
                row["accuracy"]
                for id, row in rows.items()
                if groups[id]["partition"] == series["name"]
            ]
            assert mean == pytest.approx(np.mean(own))
            assert spread == pytest.approx(np.std(own))
        ends.append(series["y"][-1])
    assert len(ends) == 5
    assert found["gap"] == pytest.approx(max(ends) - min(ends))
    of_local = measures.accuracy_by_group(play("local"))["panels"][0]["series"]
    assert [series["name"] for series in of_local] == ["group-1", "group-2", "group-3"]
    json.dumps(found)  # as it is kept
