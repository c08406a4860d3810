"""Tasks beyond classes, through whole runs: against scikit-learn and closed forms."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import root_mean_squared_error

import concordfl as cf
from concordfl import assemble
from concordfl.algorithms import ALGORITHMS
from concordfl.deploy import newcomer, scoring
from concordfl.deploy.finished import FinishedRun
from concordfl.inputs import load_config
from concordfl.metrics import agreement

# As many steps as rounds, each on all of a client's examples: FedAvg is then gradient descent on
# the pooled ones.
FULL_BATCHES = {"batch_size": 1000, "epochs": 1, "momentum": 0.0, "lr": 0.3}
QUIET = {"executor": "serial", "evaluate_every": 1000}
CLASSES_ONLY = {"concord", "fedconcat", "fedconcat-id", "fedconceptem", "fedlc", "fedrs"}


def linear_clients(clients=4, examples=50, seed=0):
    """Clients with other features, in a unit far from 1."""
    rng = np.random.default_rng(seed)
    weights = np.array([30.0, -20.0, 5.0])
    found = {}
    for index in range(clients):
        x = rng.normal(index / 2, 1 + index / 4, (examples, 3))
        found[f"client-{index}"] = (x, x @ weights + 500 + rng.normal(0, 8, examples))
    return found


def two_slopes(clients=4, examples=60, seed=1):
    """y = ±2 x + noise, at every second client the other sign."""
    rng = np.random.default_rng(seed)
    found = {}
    for index in range(clients):
        x = rng.normal(size=(examples, 1))
        noise = rng.normal(0, 0.3, examples)
        found[f"client-{index}"] = (x, 2 * (-1) ** index * x[:, 0] + noise)
    return found


def tiny_clients(kind, clients=3, examples=12, seed=0):
    rng = np.random.default_rng(seed)
    found = {}
    for index in range(clients):
        x = rng.normal(size=(examples, 4)).astype(np.float32)
        y = {
            "classification": (x[:, 0] > 0).astype(int),
            "regression": x[:, 0] + 0.1 * rng.normal(size=examples),
            "multi-label": (x[:, :3] > 0).astype(int),
        }[kind]
        found[f"client-{index}"] = (x, y)
    return found


def splits(config):
    """Every client's training and test examples in their own units, as the run has them."""
    federation = assemble.make_federation(config)
    objective = assemble.make_objective(config, federation)

    def raw(examples):
        standard = federation.preprocessing.standard
        x = examples.x.numpy() * standard.deviation + standard.mean
        return x, objective.in_own_unit(examples.y).numpy()

    return {
        id: (raw(federation.splits(id).train), raw(federation.splits(id).test))
        for id in federation.participants
    }


def pooled(parts):
    return tuple(np.concatenate(each) for each in zip(*parts, strict=True))


# --- regression against scikit-learn --------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedavg", "centralized"])
def test_a_linear_model_is_as_good_as_pooled_least_squares(algorithm):
    settings = {
        "clients": linear_clients(),
        "model": "linear",
        "algorithm": algorithm,
        "training": FULL_BATCHES,
        "run": {"rounds": 120, **QUIET},
    }
    result = cf.run(**settings)
    data = splits(load_config(**settings))
    fitted = LinearRegression().fit(*pooled([train for train, _ in data.values()]))
    rows = result.clients()
    for id, (_, (x, y)) in data.items():
        expected = root_mean_squared_error(y, fitted.predict(x))
        assert rows[id]["rmse"] == pytest.approx(expected, rel=1e-3)
    assert 7 < result.metric("rmse") < 10  # the noise, in the target's own unit
    assert result.metric("r2") > 0.9


def test_several_targets_are_as_good_as_pooled_least_squares():
    rng = np.random.default_rng(0)
    clients = {
        name: (x, np.stack([1000 * x[:, 0] - 3, 0.01 * x[:, 1] + 7], axis=1) + rng.normal(size=2))
        for name, x in ((f"client-{index}", rng.normal(size=(40, 2))) for index in range(3))
    }
    settings = {
        "clients": clients,
        "model": "linear",
        "training": FULL_BATCHES,
        "run": {"rounds": 80, **QUIET},
    }
    result = cf.run(**settings)
    data = splits(load_config(**settings))
    fitted = LinearRegression().fit(*pooled([train for train, _ in data.values()]))
    for id, (_, (x, y)) in data.items():
        expected = root_mean_squared_error(y, fitted.predict(x))
        assert result.clients()[id]["rmse"] == pytest.approx(expected, rel=5e-3)


# --- mixtures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "objective", [{}, {"likelihood": "squared"}, {"deviation": 0.2}, {"deviation": "learnt"}]
)
def test_fedem_recovers_two_planted_slopes(objective):
    settings = {
        "clients": two_slopes(),
        "model": "linear",
        "algorithm": {"name": "fedem", "num_models": 2},
        "training": {**FULL_BATCHES, "epochs": 3},
        "run": {"rounds": 25, **QUIET},
        "objective": objective,
    }
    result = cf.run(**settings)
    data = splits(load_config(**settings))
    groups = {id: int(id[-1]) % 2 for id in data}
    closed_form = [
        LinearRegression().fit(*pooled([data[id][0] for id in data if groups[id] == group]))
        for group in (0, 1)
    ]
    preprocessing = result.summary["preprocessing"]
    unit = (
        preprocessing["targets_standardised"]["deviation"][0]
        / preprocessing["standardised"]["deviation"][0]
    )
    found = [float(model["head.weight"][0, 0]) * unit for model in result.server.values()]
    expected = [float(fitted.coef_[0]) for fitted in closed_form]
    assert sorted(found) == pytest.approx(sorted(expected), abs=0.02)
    rows = result.clients()
    found_groups = [rows[id]["group"] for id in data]
    assert agreement(found_groups, list(groups.values())).ari == 1


# --- every method ---------------------------------------------------------------------------------


def quick(kind, algorithm, **more):
    short = {"encoder_rounds": 1, "head_rounds": 2} if algorithm.startswith("fedconcat") else {}
    return {
        "clients": tiny_clients(kind),
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": {"name": algorithm, **short},
        "training": {"lr": 0.05, "batch_size": 6, "epochs": 1},
        "scenario": {"split": [0.5, 0.0, 0.5]},
        "run": {"rounds": 2, "executor": "serial", "noise_seed": 0, **more},
    }


@pytest.mark.parametrize("kind", ["classification", "regression", "multi-label"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_method_learns_what_it_says_it_supports(algorithm, kind):
    supports = ALGORITHMS[algorithm].supports
    assert supports == ({"classification"} if algorithm in CLASSES_ONLY else cf.ANY_KIND)
    if kind not in supports:
        with pytest.raises(cf.SettingError, match=rf"{algorithm} is for .*: methods .* fedavg, "):
            cf.run(**quick(kind, algorithm))
        return
    result = cf.run(**quick(kind, algorithm))
    assert result.summary["task"]["objective"] == kind
    assert np.isfinite(result.summary["final"]["local_num_clients"])
    if not ALGORITHMS[algorithm].classifies:
        assert np.isfinite(result.metric("log_likelihood"))
        return
    criterion = {"classification": "accuracy", "regression": "rmse"}.get(kind, "hamming_accuracy")
    assert np.isfinite(result.metric(criterion))
    final = result.summary["final"]
    x, y = tiny_clients(kind)["client-0"]
    assert result.predict(x, client="client-0").shape == y.shape
    if kind == "regression":
        assert final["local_worst_tenth"] >= final["local_rmse"]
    else:
        assert final["local_worst_tenth"] <= final[f"local_{criterion}"]


# --- runs in folders ------------------------------------------------------------------------------


class InterruptedRunError(Exception):
    pass


@pytest.mark.parametrize("kind", ["regression", "multi-label"])
def test_a_run_that_was_broken_off_goes_on_to_the_same_bits(tmp_path, kind):
    def interrupt(event):
        if event.turn.round == 2:
            raise InterruptedRunError

    settings = quick(kind, "fedem", rounds=4, checkpoint_seconds=0, evaluate_every=2)
    straight = cf.run(**settings)
    with pytest.raises(InterruptedRunError):
        cf.run(**settings, out=tmp_path / "run", on_round=interrupt)
    resumed = cf.resume(tmp_path / "run")
    for name in ("parameters_sha256", "states_sha256", "final", "preprocessing", "task"):
        assert resumed.summary[name] == straight.summary[name]
    x, _ = tiny_clients(kind)["client-1"]
    loaded = cf.load(tmp_path / "run").predict(x, client="client-1")
    assert np.array_equal(loaded, straight.predict(x, client="client-1"))


def test_the_round_with_the_least_error_is_selected():
    settings = quick("regression", "fedavg", rounds=6, evaluate_every=1, select_on="training")
    result = cf.run(**settings)
    errors = {record["round"]: record["training"]["rmse"] for record in result.records}
    assert result.summary["selected"]["round"] == min(errors, key=lambda round: errors[round])


def test_a_new_client_joins_a_regression_in_the_targets_own_unit(tmp_path):
    clients = linear_clients()
    x, y = clients.pop("client-3")
    cf.run(
        clients=clients,
        model="linear",
        algorithm="fedavg-ft",
        training=FULL_BATCHES,
        run={"rounds": 60, **QUIET},
        out=tmp_path / "run",
    )
    np.savez(tmp_path / "new.npz", x=x, y=y)
    answer = newcomer.adapt(tmp_path / "run", tmp_path / "new.npz")
    assert 4 < answer["tested_on"]["rmse"] < 16
    loaded = cf.load(tmp_path / "run")
    predicted = loaded.predict(x, client="new")
    assert root_mean_squared_error(y, predicted) < 12
    module = loaded.model("new")
    given = module(torch.from_numpy(x.astype(np.float32))).numpy()
    assert given == pytest.approx(predicted, rel=1e-4)
    assert loaded.score(x, y, client="new")["rmse"] == pytest.approx(
        root_mean_squared_error(y, predicted), rel=1e-4
    )
    with pytest.raises(cf.SettingError, match="predict_proba is for classes"):
        loaded.predict_proba(x, client="new")
    with pytest.raises(cf.SettingError, match="'accuracy', got rmse, mae, r2"):
        loaded.accuracy  # noqa: B018


def test_samples_are_scored_in_regression_by_methods_that_model_them(tmp_path):
    x, y = tiny_clients("regression")["client-0"]
    np.savez(tmp_path / "new.npz", x=x, y=y)
    cf.run(**quick("regression", "fedgmm"), out=tmp_path / "fedgmm")
    scored = scoring.score(tmp_path / "fedgmm", tmp_path / "new.npz")
    assert list(scored.columns) == ["log_p_x", "log_p_y_given_x", "score"]
    cf.run(**quick("regression", "fedavg"), out=tmp_path / "fedavg")
    with pytest.raises(cf.SettingError, match="scoring of regression needs a method that models"):
        scoring.score(tmp_path / "fedavg", tmp_path / "new.npz")


# --- class weights --------------------------------------------------------------------------------


def skewed_clients():
    """Of 40 examples, 30 have class 0 and 10 class 1, whatever their features."""
    rng = np.random.default_rng(0)
    labels = np.tile([0, 0, 0, 1], 10)
    return {f"client-{index}": (rng.normal(size=(40, 1)) * 0, labels) for index in range(2)}


def test_balanced_classes_weigh_the_same_whatever_their_sizes():
    settings = {
        "clients": skewed_clients(),
        "model": "linear",
        "training": {**FULL_BATCHES, "lr": 1.0},
        "run": {"rounds": 60, **QUIET},
        "scenario": {"split": [1.0, 0.0, 0.0], "hold_out": 0.5},
    }
    by_size = cf.run(**settings).predict_proba(np.zeros((1, 1)))[0]
    balanced = cf.run(**settings, objective={"class_weights": "balanced"})
    # The features say nothing: what is learnt is the classes' weighted share.
    assert by_size == pytest.approx([0.75, 0.25], abs=1e-3)
    assert balanced.predict_proba(np.zeros((1, 1)))[0] == pytest.approx([0.5, 0.5], abs=1e-3)
    weights = balanced.summary["task"]["objective_settings"]["class_weights"]
    assert weights == pytest.approx([40 / (2 * 30), 40 / (2 * 10)])


@pytest.mark.parametrize(
    ("kind", "objective", "message"),
    [
        ("regression", {"class_weights": "balanced"}, "class_weights is for classification"),
        ("classification", {"likelihood": "squared"}, "likelihood is for regression"),
        ("multi-label", {"deviation": 0.1}, "deviation is for regression"),
        ("regression", {"likelihood": "squared", "deviation": 2.0}, "is for likelihood ="),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(kind, objective, message):
    with pytest.raises(cf.SettingError, match=message):
        cf.run(**quick(kind, "fedavg"), objective=objective)


def test_a_network_must_give_what_the_objective_needs():
    settings = quick("regression", "fedavg") | {"model": lambda *_: torch.nn.Linear(4, 3)}
    with pytest.raises(cf.SettingError, match="must give 1 outputs, one per target"):
        cf.run(**settings)
    with pytest.raises(cf.SettingError, match="must give 2 outputs, a mean per target and then"):
        cf.run(**settings, objective={"deviation": "learnt"})


def test_a_summary_must_be_of_one_kind(tmp_path):
    cf.run(**quick("regression", "fedavg"), out=tmp_path / "run")
    run = FinishedRun.open(tmp_path / "run")
    record = run.summary["preprocessing"]
    two = {"mean": [0.0, 0.0], "deviation": [1.0, 1.0]}
    changes = ({"targets": ["a", "b"], "targets_standardised": two}, {"objective": "multi-label"})
    for change in changes:
        other = replace(run, summary=run.summary | {"preprocessing": record | change})
        with pytest.raises(cf.CheckpointError, match="preprocessing of 1 targets for regression"):
            other.preprocessing  # noqa: B018
