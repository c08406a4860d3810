"""What the FedConceptEM paper's pictures show, against the same by hand."""

import numpy as np
import pytest
import torch

from concordfl import Key, papers
from concordfl.core import Examples
from concordfl.data.datasets.three_datasets import POINTS
from concordfl.deploy.finished import FinishedRun
from concordfl.engine.records import RunFolder
from concordfl.papers import measures_fedconceptem as measures
from concordfl.papers.entries import Part
from concordfl.study.cells import cells
from concordfl.study.compare import finish


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Finished runs at the smallest scale, by method."""
    paper = papers.read_paper("fedconceptem")

    def play(name, method, **algorithm):
        cell = Part(setting="shifts + fmnist", method=method, set={"algorithm": algorithm})
        table = paper.table(cell, "tiny")
        table["run"]["rounds"] = 4
        folder = tmp_path_factory.mktemp("runs") / name
        finish(cells(table, [method], [0])[method, 0], folder)
        return folder, FinishedRun.open(folder)

    removal = {"num_models": 6, "adaptive": True, "threshold": 0.166, "tolerance": 1.0}
    return {
        "fedem": play("fedem", "fedem"),
        "fedconceptem": play("fedconceptem", "fedconceptem"),
        "adaptive": play("adaptive", "fedconceptem", patience=2, **removal),
    }


def values(panel):
    return {series["name"]: series["y"] for series in panel["series"]}


def omega(finished, id):
    """By hand: the weights that a participant has kept."""
    state = finished.kept.state(id)
    if isinstance(state, dict):
        return state["omega"].numpy()
    return torch.stack(list(state.gamma.values()), 1).mean(0).numpy()


@pytest.mark.parametrize("name", ["fedem", "fedconceptem"])
def test_concepts_by_model(runs, name):
    _, finished = runs[name]
    federation = finished.federation()
    sums, counts = {}, {}
    for id in federation.participants:
        concept, size = federation.groups[id]["concept"], len(federation.splits(id).train)
        sums[concept] = sums.get(concept, 0) + size * omega(finished, id)
        counts[concept] = counts.get(concept, 0) + size
    found = measures.concepts_by_model(finished)
    shown = values(found["panels"][0])
    assert set(shown) == {"original", "reverse", "shift"}
    for concept, shares in shown.items():
        assert np.allclose(shares, sums[concept] / counts[concept], atol=1e-6)
    assert found["ari"] == finished.summary["clusters"]["ari"]


def responsibilities(finished, id):
    """By hand: (3), or (9) and (10), of a participant under the last models."""
    train = finished.federation().splits(id).train
    server, client = finished.progress.server, finished.client(id, train)
    has_prior = hasattr(server, "models")
    weight = np.empty((len(train), 3))
    for k, params in (server.models if has_prior else server).items():
        chance = client.predictions(params, train).numpy()[np.arange(len(train)), train.y.numpy()]
        weight[:, k] = omega(finished, id)[k] * chance
        if has_prior:
            table = server.totals[k].numpy()
            weight[:, k] /= np.maximum(table / table.sum(), 1e-12)[train.y.numpy()]
    return weight / weight.sum(1, keepdims=True), train.y.numpy()


@pytest.mark.parametrize("name", ["fedem", "fedconceptem"])
def test_labels_by_model(runs, name):
    _, finished = runs[name]
    both = [responsibilities(finished, id) for id in finished.federation().participants]
    gamma, labels = (np.concatenate(parts) for parts in zip(*both, strict=True))
    expected = {str(label): gamma[labels == label].mean(0) for label in np.unique(labels)}
    found = measures.labels_by_model(finished)
    shown = values(found["panels"][0])
    assert shown.keys() == expected.keys()
    for label, shares in shown.items():
        assert np.allclose(shares, expected[label], atol=1e-5)
    distances = [np.abs(shares - gamma.mean(0)).sum() / 2 for shares in expected.values()]
    assert found["distance"] == pytest.approx(np.mean(distances), abs=1e-5)


def test_model_shares_are_those_that_the_server_has_summed(runs):
    folder, finished = runs["adaptive"]
    records = RunFolder.open(folder).read_records()
    removed = {str(model): round for model, round in records[-1]["server"]["removed"]}
    assert removed
    found = measures.model_shares(finished)
    (panel,) = found["panels"]
    for series in panel["series"]:
        model = series["name"].removeprefix("model ")
        assert list(series["x"]) == [record["round"] for record in records]
        for record, share in zip(records, series["y"], strict=True):
            if record["round"] > removed.get(model, np.inf):  # which are counted from 0
                assert share is None
            elif len(record["server"]["shares"]) == record["server"]["models"]:  # none just gone
                assert share == pytest.approx(record["server"]["shares"][model], abs=1e-6)
    assert found["models"] == 6 - len(removed)
    assert [one["global_accuracy"] for one in found["history"]] == [
        record["global"]["accuracy"] for record in records
    ]


def test_the_toy_of_figure_3():
    """ConceptEM explains all examples from every start. EM may put datasets 1 and 3 on one model,
    where each label of x = 0 has a chance of one half.
    """
    datasets = [
        Examples(torch.full((4, 1), float(x)), torch.full((4,), y, dtype=torch.int64))
        for x, y in POINTS
    ]
    for start in range(10):
        toy = measures.em_on_tables(datasets, Key(start), divides_by_label=True)
        assert toy.least > 0.999
        assert torch.allclose(toy.omega[-1].sum(1), torch.ones(3, dtype=torch.float64))
    plain = [
        measures.em_on_tables(datasets, Key(start), divides_by_label=False) for start in range(20)
    ]
    failed = [toy for toy in plain if toy.least < 0.6]
    assert failed
    for toy in failed:
        assert np.allclose(toy.found.max(1).values.numpy(), [0.5, 1.0, 0.5], atol=0.01)


def test_the_toy_as_an_item(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = papers.reproduce(
        papers.read_paper("fedconceptem"), "figure-3", "tiny", display=papers.no_display
    )
    plain, concept = (found.table.cells[row, ""].mean for row in ("EM", "ConceptEM"))
    assert plain < 99
    assert concept == pytest.approx(100, abs=0.1)
    assert [panel["kind"] for panel in found.panels] == ["lines", "heatmap"] * 2
