"""`cf.compare`: several methods and seeds, in memory or in folders."""

import builtins
import html
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from torch import nn

import concordfl as cf
from concordfl.algorithms import FedAvg, FedProx

RNG = np.random.default_rng(5)
QUICK = {"rounds": 2, "run": {"executor": "serial", "evaluate_every": 1}, "model": "linear"}


def draw(count):
    x = RNG.normal(size=(count, 3))
    return x, np.where(x[:, 0] > 0, "ill", "well")


CLIENTS = {name: draw(20) for name in "abc"}


@dataclass(frozen=True)
class Mine(FedAvg):
    """Registered nowhere."""


@pytest.fixture(scope="module")
def comparison():
    methods = ["local", "fedavg", FedProx(mu=0.3)]
    return cf.compare(clients=CLIENTS, algorithms=methods, seeds=2, **QUICK)


def test_every_cell_is_the_run_with_that_method_and_seed(comparison):
    assert set(comparison.results) == {
        (row, seed) for row in ("local", "fedavg", "fedprox") for seed in (0, 1)
    }
    for seed in (0, 1):
        alone = cf.run(clients=CLIENTS, algorithm=FedProx(mu=0.3), seed=seed, **QUICK)
        cell = comparison["fedprox", seed]
        assert cell.summary["parameters_sha256"] == alone.summary["parameters_sha256"]
        assert comparison["fedprox"][seed] is cell
    x, _ = CLIENTS["a"]
    assert len(comparison["local", 0].predict(x, client="a")) == 20


def test_the_best_is_best_in_the_mean_over_seeds(comparison):
    means = {
        row: np.mean([comparison[row, seed].accuracy for seed in (0, 1)])
        for row in comparison.figures
    }
    assert means[comparison.best()] == max(means.values())


def test_a_frame_has_a_row_per_method_and_seed(comparison):
    frame = comparison.to_frame()
    assert isinstance(frame, pd.DataFrame)
    assert frame[["method", "seed"]].to_numpy().tolist() == [
        [row, seed] for row in ("local", "fedavg", "fedprox") for seed in (0, 1)
    ]
    for row, seed, accuracy in frame[["method", "seed", "final.local_accuracy"]].to_numpy():
        assert accuracy == comparison[row, seed].accuracy


def test_without_pandas_a_frame_is_refused_in_one_line(comparison, monkeypatch):
    real = builtins.__import__

    def without_pandas(name, *rest):
        if name == "pandas":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_pandas)
    with pytest.raises(cf.SettingError, match="to_frame needs pandas, got none: pip install"):
        comparison.to_frame()


def test_it_is_shown_as_text_and_as_html(comparison):
    for shown in (str(comparison), comparison._repr_html_()):
        for word in ("fedprox", "local", "test", "newcomers"):
            assert word in shown
        assert comparison.verdict in html.unescape(shown)
    assert comparison._repr_html_().count("<tr>") >= 4


def test_names_in_html_are_escaped():
    evil = "<script>alert(1)</script>"
    shown = cf.compare(clients=CLIENTS, algorithms={evil: "fedavg"}, **QUICK)._repr_html_()
    assert "<script" not in shown
    assert html.escape(evil) in shown


def test_a_plot_has_a_line_per_method(comparison):
    pytest.importorskip("matplotlib")
    (axes,) = comparison.plot().axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "local", "fedavg", "fedprox",
    ]  # fmt: skip


def test_every_round_of_every_cell_is_told():
    rounds = []
    cf.compare(
        clients=CLIENTS,
        algorithms=["fedavg", "local"],
        on_round=lambda event: rounds.append(event.turn.round),
        **QUICK,
    )
    assert rounds == [1, 2, 1, 2]


# --- rows -----------------------------------------------------------------------------------------


def test_methods_that_occur_twice_tell_their_settings():
    methods = ["fedavg", FedProx(mu=0.3), FedProx(mu=1.0), {"name": "fedprox"}, Mine()]
    found = cf.compare(clients=CLIENTS, algorithms=methods, seeds=[7], **QUICK)
    assert list(found.figures) == ["fedavg", "fedprox, mu = 0.3", "fedprox, mu = 1.0", "fedprox", "Mine"]  # fmt: skip  # noqa: E501
    assert found.seeds == (7,)
    own = {"weak": FedProx(mu=0.3), "strong": FedProx(mu=1.0)}
    assert list(cf.compare(clients=CLIENTS, algorithms=own, **QUICK).figures) == ["weak", "strong"]


def test_run_files_give_methods_their_settings(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(
        '[run]\nrounds = 1\nexecutor = "serial"\n[data]\nname = "digits"\nlimit = 60\n'
        "[scenario]\nclients = 2\n[compare.fedprox]\nmu = 0.7\n"
    )
    found = cf.compare(file, algorithms=["fedavg", "fedprox"])
    assert found["fedprox", 0].finished.algorithm == FedProx(mu=0.7)


def test_what_is_given_by_name_is_for_all_methods():
    table = {
        "algorithm": {"name": "fedprox", "training": {"lr": 0.5}},
        "compare": {"moon": {"mu": 2.0, "training": {"lr": 0.5, "epochs": 3}}},
    }
    methods = ["fedprox", "moon"]
    found = cf.compare(table, clients=CLIENTS, algorithms=methods, lr=0.01, **QUICK)
    settings = {name: found[name, 0].finished.settings for name in methods}
    assert [one.training.lr for one in settings.values()] == [0.01, 0.01]
    assert (settings["moon"].algorithm.mu, settings["moon"].training.epochs) == (2.0, 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"algorithms": []}, "algorithms must be at least one, got none"),
        ({"algorithms": "fedavg"}, "algorithms must be a list or a dict of methods, got 'fedavg'"),
        ({"algorithms": ["fedavgg"]}, "must be a known name, got 'fedavgg': did you mean 'fedavg'"),
        ({"algorithms": ["fedavg", "fedavg"]}, "methods must differ, got 'fedavg' twice"),
        ({"algorithms": [FedProx]}, "algorithm must be an object, got the class FedProx: call it"),
        ({"seeds": 0}, "seeds must be from 1 to 1,000, got 0"),
        ({"seeds": []}, "seeds must be a number or a list of different seeds, got"),
        ({"seeds": [1, 1]}, "seeds must be a number or a list of different seeds, got"),
        ({"seeds": [[1]]}, "seeds must be a number or a list of different seeds, got [[1]]"),
        (
            {"algorithm": FedProx(mu=0.3)},
            "methods must be given in algorithms alone, got algorithm = FedProx(mu=0.3) beside it",
        ),
        ({"on_round": 5}, "on_round must be a function or a list of functions, got 5"),
        ({"ruonds": 3}, "unknown keyword 'ruonds': did you mean 'rounds'?"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(given, message):
    with pytest.raises(cf.SettingError) as error:
        cf.compare(**{"clients": CLIENTS, "algorithms": ["fedavg"], **given})
    assert message in str(error.value)


def test_what_was_not_compared_is_refused(comparison):
    with pytest.raises(cf.SettingError, match="got 'fedprx': did you mean 'fedprox'"):
        comparison["fedprx"]
    with pytest.raises(cf.SettingError, match="a seed must be one of 0, 1, got 2"):
        comparison["fedavg", 2]


# --- folders --------------------------------------------------------------------------------------


def test_with_a_folder_finished_runs_are_not_done_again(tmp_path, comparison, monkeypatch):
    settings = {"clients": CLIENTS, "seeds": 2, "out": tmp_path, **QUICK}
    first = cf.compare(algorithms=["fedavg"], **settings)
    assert first["fedavg", 1].accuracy == comparison["fedavg", 1].accuracy
    (cell,) = tmp_path.glob("fedavg-seed1-*")
    (cell / "summary.json").unlink()
    assert cf.resume(cell).accuracy == first["fedavg", 1].accuracy
    monkeypatch.setattr("concordfl.runner.make_federation", lambda *_: pytest.fail("done again"))
    again = cf.compare(algorithms=["fedavg"], **settings)
    frames = [one.to_frame().drop(columns="seconds") for one in (again, first)]
    pd.testing.assert_frame_equal(*frames, check_like=True)


def test_other_data_in_the_same_folder_are_other_runs(tmp_path):
    settings = {"algorithms": ["fedavg"], "out": tmp_path, **QUICK}
    cf.compare(clients=CLIENTS, **settings)
    cf.compare(clients=CLIENTS | {"d": draw(10)}, **settings)
    assert len(list(tmp_path.glob("fedavg-seed0-*"))) == 2


def test_objects_that_nothing_tells_apart_need_a_new_folder(tmp_path):
    settings = {"clients": CLIENTS, **QUICK, "model": nn.Linear(3, 2)}
    cf.compare(algorithms=["fedavg"], out=tmp_path / "a", **settings)
    with pytest.raises(cf.SettingError, match="out must be new for a model or method that cannot"):
        cf.compare(algorithms=["fedavg"], out=tmp_path / "a", **settings)
    with pytest.raises(cf.SettingError, match="rows must differ in their settings, got 'a' and"):
        cf.compare(algorithms={"a": "fedavg", "b": FedAvg()}, out=tmp_path / "b", **settings)
