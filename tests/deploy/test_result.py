"""A finished run is used: saved, loaded, asked for predictions, joined by new clients, given away.

Every method that predicts labels is held to what its run reported.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import concordfl as cf
from concordfl.algorithms import ALGORITHMS
from concordfl.engine.files import to_json

CLASSIFY = [name for name, kind in ALGORITHMS.items() if kind.classifies]
SHORT = {"clusters": 2, "encoder_rounds": 2, "head_rounds": 2, "random_inputs": 50}
# who has nothing to predict with for somebody of whom nothing is known
NEED_CLIENT = {
    "concord",
    "fedem",
    "fedconceptem",
    "fedsoft",
    "ifca",
    "fesem",
    "fedrep",
    "feddual",
} | {*("local", "ditto")}


def run(name, **more):
    settings = {
        "data": {"name": "digits", "limit": 200, "test_limit": 40},
        "scenario": {"clients": 4, "partition": {"kind": "dirichlet-by-client", "alpha": 1.0}},
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"lr": 0.05, "momentum": 0.9},
        # some clients may never have been asked
        "run": {"rounds": 3, "cohort": 3, "evaluate_every": 3, "executor": "serial"},
        "algorithm": {"name": name, **(SHORT if name.startswith("fedconcat") else {})},
    }
    return cf.run(
        {section: {**values, **more.get(section, {})} for section, values in settings.items()}
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By method: a run without a folder, and the same saved and loaded."""
    made = {}

    def get(name):
        if name not in made:
            result, folder = run(name), tmp_path_factory.mktemp(name) / "run"
            result.save(folder)
            made[name] = result, cf.load(folder)
        return made[name]

    return get


def raw(examples):
    """Images as they are outside, and their labels."""
    return examples.x.numpy(), examples.y.numpy()


@pytest.mark.parametrize("name", CLASSIFY)
def test_what_is_loaded_predicts_what_the_run_reported(name, results):
    result, loaded = results(name)
    reported = result.clients()
    federation = loaded.finished.federation()
    accuracies = []
    for id in federation.participants:
        x, y = raw(federation.splits(id).test)
        right = loaded.predict(x, client=id) == y
        accuracies.append(right.mean())
        assert right.mean() == reported[id]["accuracy"]
        assert loaded.score(x, y, client=id)["loss"] == pytest.approx(
            reported[id]["loss"], rel=1e-9
        )
        assert np.array_equal(
            result.predict_proba(x, client=id), loaded.predict_proba(x, client=id)
        )
    assert np.mean(accuracies) == pytest.approx(loaded.summary["final"]["local_accuracy"])
    assert loaded.summary["final"] == result.summary["final"]
    assert loaded.records == json.loads(to_json(result.records))


@pytest.mark.parametrize(
    "name", [name for name in CLASSIFY if ALGORITHMS[name].accepts_new_clients]
)
def test_a_newcomer_predicts_as_well_as_the_held_out_client_did(name, results):
    """Which adapted in the very same way: to its half of the official test set."""
    result, loaded = results(name)
    (id,) = loaded.finished.kept.held_out
    splits = loaded.finished.federation().splits(id)
    x, y = raw(splits.test)
    reported = result.clients()[id]
    assert (loaded.predict(x, client=id) == y).mean() == reported["accuracy"]
    for joined in (result, loaded):
        joined.adapt(*raw(splits.train), name=id, test=False)
        assert (joined.predict(x, client=id) == y).mean() == reported["accuracy"]
    again = cf.load(loaded.folder)
    assert again.finished.kept.newcomers() == [id]
    assert (again.predict(x, client=id) == y).mean() == reported["accuracy"]
    assert again.score(x, y, client=id)["loss"] == pytest.approx(reported["loss"], rel=1e-9)


@pytest.mark.parametrize("name", CLASSIFY)
def test_the_module_predicts_the_same(name, results):
    _, loaded = results(name)
    federation = loaded.finished.federation()
    (new,) = federation.held_out
    nobody = [] if name in NEED_CLIENT else [None]
    newcomer = [new] if ALGORITHMS[name].accepts_new_clients else []
    for id in (*federation.participants[:2], *newcomer, *nobody):
        x, _ = raw(federation.splits(new).test)
        module = loaded.model(client=id)
        with torch.no_grad():
            found = module(torch.from_numpy(x))
        expected = torch.from_numpy(loaded.predict_proba(x, client=id)).float()
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-7)
        assert torch.allclose(found.sum(1), torch.ones(len(x)))
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert module.classes == tuple("0123456789")
        names = [name for name in module.state_dict() if name.endswith("head.weight")]
        assert names, module.state_dict().keys()


@pytest.mark.parametrize("name", CLASSIFY)
def test_somebody_unknown_is_served_or_told_what_to_do(name, results):
    result, _ = results(name)
    (new,) = result.finished.kept.held_out
    x, _ = raw(result.finished.federation().splits(new).test)
    if name in NEED_CLIENT:
        with pytest.raises(cf.SettingError, match="client must be given, as .* has no model that"):
            result.predict(x)
    else:
        assert result.predict(x).shape == (len(x),)


REGRESSION = [name for name in CLASSIFY if "regression" in ALGORITHMS[name].supports]


@pytest.mark.parametrize("name", REGRESSION)
def test_values_are_predicted_in_their_own_unit(name, tmp_path):
    """With the error that the run reported; and the module predicts the same."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3)).astype(np.float32)
    y = 1000 + 50 * x[:, 0] - 20 * x[:, 1] + rng.normal(size=60)
    clients = {id: (x[part::3], y[part::3]) for part, id in enumerate("abc")}
    result = cf.run(
        clients=clients,
        data={"standardise": False},  # so that the run's examples are the raw ones
        algorithm=name,
        rounds=2,
        run={"executor": "serial"},
    )
    result.save(tmp_path / "run")
    loaded = cf.load(tmp_path / "run")
    for id, reported in loaded.clients().items():
        test = loaded.finished.federation().splits(id).test
        truth = loaded.finished.objective.in_own_unit(test.y).numpy()
        predicted = loaded.predict(test.x.numpy(), client=id)
        assert 800 < predicted.mean() < 1200
        assert np.sqrt(((predicted - truth) ** 2).mean()) == pytest.approx(reported["rmse"])
        module = loaded.model(client=id)(test.x)
        assert np.allclose(module, predicted, rtol=1e-5)
    if ALGORITHMS[name].accepts_new_clients:
        answer = loaded.adapt(x[:20], y[:20], name="new")
        assert answer["tested_on"]["rmse"] > 0
        assert loaded.score(x[20:], y[20:], client="new")["rmse"] < 200


# --- runs that are not over, and rounds that were not evaluated -----------------------------------


def play_until(round, **more):
    return cf.run(
        data={"name": "digits", "limit": 100, "test_limit": 20},
        scenario={"clients": 2},
        model="linear",
        run={"rounds": 7, "evaluate_every": 3, "executor": "serial"},
        until=round,
        **more,
    )


@pytest.mark.parametrize("in_folder", [False, True])
def test_clients_have_their_figures_of_the_last_evaluated_round(tmp_path, in_folder):
    result = play_until(5, out=tmp_path / "run" if in_folder else None)
    assert result.summary["rounds"] == 5
    assert result.clients() == result.figures_of(3) == play_until(3).clients()
    for round in (5, 6, "3"):
        with pytest.raises(cf.SettingError, match="a round must be one of the 1 that were eval"):
            result.figures_of(round)


def test_a_run_that_is_not_over_is_not_saved_as_a_finished_one(tmp_path):
    with pytest.raises(cf.SettingError, match="must be over to be saved, got one after 5 of 7 rou"):
        play_until(5).save(tmp_path / "memory")
    begun = play_until(5, out=tmp_path / "run")
    with pytest.raises(cf.ConcordError, match="the run must be finished, got"):
        begun.save(tmp_path / "copy")
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_run_that_was_stopped_is_over_and_saved(tmp_path):
    def stop(event):
        raise cf.Stop

    stopped = play_until(None, on_round=stop).save(tmp_path / "run")
    assert cf.resume(stopped.folder).summary["rounds"] == 1


def test_the_summary_is_copied_last(tmp_path, monkeypatch):
    result, copy = play_until(None, out=tmp_path / "run"), shutil.copyfile
    copied = []

    def watched(source, target, **options):
        copied.append(Path(source).name)
        return copy(source, target, **options)

    monkeypatch.setattr(shutil, "copyfile", watched)
    result.save(tmp_path / "copy")
    assert "records.jsonl" in copied
    assert copied.index("summary.json") == len(copied) - 1
    assert cf.load(tmp_path / "copy").summary == result.summary
