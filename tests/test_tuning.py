"""`cf.tune`: settings chosen on validation data, for clients given in Python."""

import numpy as np
import pytest
from torch import nn

import concordfl as cf

RNG = np.random.default_rng(3)
RUN = {"executor": "serial", "evaluate_every": 1}
GRID = {"training.lr": [1e-6, 0.5]}


def draw(count):
    x = RNG.normal(size=(count, 3))
    return x, np.where(x[:, 0] > 0, "ill", "well")


CLIENTS = {name: draw(60) for name in "abc"}


def net():
    return nn.Linear(3, 2)


def test_clients_in_memory_are_tuned_and_compared():
    methods = ["local", "fedavg"]
    given = {"clients": CLIENTS, "model": net}
    tuning = cf.tune(**given, algorithms=methods, grid=GRID, rounds=4, run=RUN)
    assert {one.chosen.name for one in tuning.methods.values()} == {"lr = 0.5"}
    assert str(tuning).startswith("local: lr = 0.5; validation accuracy 0.")
    compared = cf.compare(tuning.table, **given, algorithms=methods)
    by_hand = cf.run(**given, algorithm="local", rounds=4, lr=0.5, run=RUN)
    assert compared["local", 0].summary["parameters_sha256"] == by_hand.summary["parameters_sha256"]
    record = by_hand.records[-1]
    found = tuning.methods["local"]
    assert found.validation(found.chosen) == record["validation"]["accuracy"]


def test_a_folder_is_gone_on_with_where_everything_can_be_imported(tmp_path):
    given = {"clients": CLIENTS, "model": "linear", "algorithms": ["fedavg"], "grid": GRID}
    first = cf.tune(**given, rounds=2, run=RUN, out=tmp_path / "out")
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    assert len(files) == 3
    assert cf.tune(**given, rounds=2, run=RUN, out=tmp_path / "out") == first
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")} == files


def test_a_folder_must_be_new_for_a_model_of_this_process(tmp_path):
    given = {"clients": CLIENTS, "algorithms": ["fedavg"], "grid": GRID, "rounds": 1, "run": RUN}
    model = nn.Linear(3, 2)
    cf.tune(**given, model=model, out=tmp_path / "out")
    with pytest.raises(cf.SettingError, match="out must be new for a model that cannot be import"):
        cf.tune(**given, model=model, out=tmp_path / "out")


@pytest.mark.parametrize("wrong", ["fedavg", None, [cf.algorithms.FedAvg()]])
def test_methods_are_a_list_of_names(wrong):
    with pytest.raises(cf.SettingError, match="algorithms must be a list of names, got"):
        cf.tune(clients=CLIENTS, algorithms=wrong, grid=GRID)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": "3"}, "seeds must be a whole number >= 1, got '3'"),
        ({"rungs": 1.5}, "rungs must be a whole number >= 1, got 1.5"),
        ({"grid": ["a"]}, "a grid must be a dict of values by setting, got ['a']"),
        ({"grid": {3: [1, 2]}}, "a grid must be of algorithm.KEY, training.KEY, aggregation.KEY"),
        ({"algorithm": "fedprox"}, "methods must be given in algorithms alone, got algorithm ="),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(given, message):
    with pytest.raises(cf.SettingError) as error:
        cf.tune(**{"clients": CLIENTS, "algorithms": ["fedavg"], "grid": GRID, **given})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
