"""Early stopping: a run ends when its last stage has not become better for `run.patience`
evaluations.
"""

import functools
import json
from dataclasses import dataclass, field, replace

import pytest

import toys
from concordfl import SettingError, resume, run
from concordfl.algorithms.fedavg import FedAvg
from concordfl.core import Stage
from concordfl.deploy.finished import FinishedRun
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder

PLAN = Plan(rounds=30, evaluate_every=2, patience=3)


def stopping_round(figures, patience):
    """By hand: the round after which `patience` figures were no better than the best before."""
    best, waited = float("-inf"), 0
    for round, figure in figures.items():
        best, waited = (figure, 0) if figure > best else (best, waited + 1)
        if waited == patience:
            return round
    return max(figures)


def figures_of(made, criterion="validation"):
    return {record["round"]: record[criterion]["accuracy"] for record in made.records}


@functools.cache
def figures_without_patience(criterion):
    made = toys.experiment(FedAvg(), plan=replace(PLAN, patience=None, select_on=criterion))
    summary = toys.result(made)
    assert (summary["rounds"], summary["stopped_early"]) == (30, False)
    return figures_of(made, criterion)


@pytest.mark.parametrize("patience", [1, 2, 5])
@pytest.mark.parametrize("criterion", ["validation", "training"])
def test_a_run_stops_at_the_round_that_patience_says(patience, criterion):
    whole = figures_without_patience(criterion)
    expected = stopping_round(whole, patience)
    made = toys.experiment(FedAvg(), plan=replace(PLAN, patience=patience, select_on=criterion))
    summary = toys.result(made)
    assert summary["rounds"] == summary["training_rounds"] == expected
    assert summary["stopped_early"] == (expected < PLAN.rounds)
    assert figures_of(made, criterion).items() <= whole.items()
    assert summary["seconds"]["stages"]["train"]["rounds"] == expected
    assert summary["final"]["round"] == expected


def test_the_case_is_worth_testing():
    """Somewhere between the first evaluation and the last round."""
    assert 2 < stopping_round(figures_without_patience("validation"), 2) < 30


def test_executors_stop_at_the_same_round():
    serial, processes = (
        toys.result(toys.experiment(toys.Toy(), plan=PLAN, executor=name, workers=1))
        for name in ("serial", "processes")
    )
    assert serial["stopped_early"]
    for key in ("rounds", "parameters_sha256", "states_sha256", "bytes", "final", "selected"):
        assert serial[key] == processes[key], key


@dataclass(frozen=True)
class Staged(FedAvg):
    """A stage that goes on whatever its figures are, then one that may be cut."""

    lengths: tuple[int, int] = field(default=(12, 18))

    def stages(self, rounds, model):
        first, last = self.lengths
        return (
            Stage("first", self.round, rounds=first),
            Stage("last", self.round, rounds=last, first_round=first),
        )


def test_only_the_last_stage_is_cut():
    plan = Plan(rounds=30, evaluate_every=1, patience=1)
    assert toys.result(toys.experiment(FedAvg(), plan=plan))["rounds"] < 12
    made = toys.experiment(Staged(), plan=plan)
    summary = toys.result(made)
    of_last = {round: figure for round, figure in figures_of(made).items() if round > 12}
    best_before = max(figure for round, figure in figures_of(made).items() if round <= 12)
    assert summary["rounds"] == stopping_round({0: best_before, **of_last}, 1)
    assert summary["seconds"]["stages"]["first"]["rounds"] == 12
    assert summary["seconds"]["stages"]["last"]["rounds"] == summary["rounds"] - 12


# --- going on after a stop ------------------------------------------------------------------------

TABLE = {
    "run": {"rounds": 40, "evaluate_every": 1, "patience": 3, "executor": "serial"},
    "data": {"name": "digits", "limit": 300},
    "scenario": {"clients": 3},
    "training": {"lr": 0.3},
}


def killed_at(round):
    def observe(event):
        if event.turn.round == round:
            raise KeyboardInterrupt

    return observe


@pytest.mark.parametrize("seconds", [0.0, 60.0])  # a checkpoint after every round, or none
def test_a_killed_run_stops_where_a_straight_one_does(tmp_path, seconds):
    table = {**TABLE, "run": {**TABLE["run"], "checkpoint_seconds": seconds}}
    expected = run(table, out=tmp_path / "straight")
    last = expected.summary["rounds"]
    assert 4 < last < 40
    for round in (2, last - 1, last):  # `last`: killed between the last checkpoint and the summary
        folder = tmp_path / f"killed-{round}"
        with pytest.raises(KeyboardInterrupt):
            run(table, out=folder, on_round=killed_at(round))
        summary = resume(folder).summary
        for key in ("rounds", "parameters_sha256", "bytes", "final", "selected", "stopped_early"):
            assert summary[key] == expected.summary[key], key
    assert len(expected.records) == last


def test_a_run_that_stopped_early_is_a_finished_run(tmp_path):
    result = run(TABLE, out=tmp_path / "run")
    assert result.summary["stopped_early"]
    finished = FinishedRun.open(tmp_path / "run")
    assert finished.last_round == result.summary["rounds"] - 1
    assert len(result.clients()) == 4  # with the held-out one
    assert result.summary["selected"]["round"] == result.summary["rounds"] - 3
    stored = json.loads((tmp_path / "run/summary.json").read_text())
    assert stored["stopped_early"] is True


def test_a_method_with_thresholds_has_them_where_it_stops():
    table = {
        **TABLE,
        "run": {**TABLE["run"], "rounds": 20, "patience": 1},
        "algorithm": {"name": "fedgmm", "num_gaussians": 2},
    }
    result = run(table)
    assert result.summary["stopped_early"]
    assert result.summary["thresholds"]
    assert [record["round"] for record in result.records if "thresholds" in record] == [
        result.summary["rounds"]
    ]


def test_a_run_played_in_parts_is_a_straight_run(tmp_path):
    plan = Plan(rounds=6, cohort=3, evaluate_every=2)
    expected = toys.result(toys.experiment(toys.Toy(), plan=plan))
    with RunFolder.create(tmp_path / "run", "") as folder:
        for until, played in ((1, 3), (4, 4)):  # round 3 is the first that is evaluated
            made = toys.experiment(toys.Toy(), plan=plan, folder=folder)
            progress = made.run(made.restore(), until)
            made.executor.close()
            assert progress.round == played
            assert not made.is_over(progress)
        summary = toys.result(toys.experiment(toys.Toy(), plan=plan, folder=folder))
    for key in ("parameters_sha256", "states_sha256", "bytes", "final", "selected"):
        assert summary[key] == expected[key], key


def test_patience_without_validation_examples_is_refused():
    table = {**TABLE, "scenario": {"clients": 3, "split": [0.8, 0.0, 0.2]}}
    with pytest.raises(SettingError, match=r"run.patience needs validation examples .* got none"):
        run(table)
    table["run"] = {**TABLE["run"], "select_on": "training", "rounds": 2}
    assert run(table).summary["rounds"] == 2
