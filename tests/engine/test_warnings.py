"""What would mislead a reader is said: every warning is provoked, and none is given in a healthy
run.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest
import torch

import toys
from concordfl import Training, run
from concordfl.algorithms import ALGORITHMS, Concord, FedAvg
from concordfl.core import Classification, Degenerate, Stage
from concordfl.engine import warnings
from concordfl.engine.experiment import Experiment
from concordfl.engine.plan import Plan

LONG = Plan(rounds=24, evaluate_every=2)
SHORT = Plan(rounds=3, evaluate_every=1)


def facts(method, plan=SHORT, *, data=None, simulated=False, **options):
    made = toys.experiment(method, data, plan=plan, **options)
    progress = made.run(made.start())
    federation = made.federation
    ids = federation.participants
    return warnings.Facts(
        "mine",
        made,
        progress,
        made.last_rows(),
        warnings.guess_of(federation, made.evaluated, made.task.objective),
        warnings.true_groups(federation.groups, ids, simulated=simulated),
    )


def found(method, plan=SHORT, **options):
    """The warnings of a run by their kinds."""
    listed = warnings.find(facts(method, plan, **options))
    by_kind = {each["kind"]: each["text"] for each in listed}
    assert len(by_kind) == len(listed)
    return by_kind


once = functools.cache(facts)  # for tests that change nothing of the run


def with_records(given, records):
    """The kinds of warnings of the same run with other records."""
    experiment = dataclasses.replace(given.experiment, records=records)
    listed = warnings.find(given._replace(experiment=experiment))
    return {each["kind"]: each["text"] for each in listed}


def changed(given, **local):
    """The same run with other figures in its last round."""
    *before, last = given.records
    return with_records(given, [*before, {**last, "local": {**last["local"], **local}}])


def with_history(values, every=1):
    """A run whose evaluated rounds had these accuracies."""
    given = once(FedAvg())
    record = given.records[-1]
    records = [
        {**record, "round": every * (place + 1), "local": {**record["local"], "accuracy": value}}
        for place, value in enumerate(values)
    ]
    return with_records(given, records)


def test_a_healthy_run_has_no_warnings():
    assert found(FedAvg(), LONG) == {}


def test_warnings_are_in_the_summary():
    summary = run(
        data={"name": "digits", "limit": 200},
        scenario={"clients": 3},
        run={"rounds": 1, "executor": "serial"},
        algorithm={"name": "fedprox", "mu": 0.0},
    ).summary
    assert {"kind": "identical-to-fedavg", "text": "in effect this is fedavg: mu is 0"} in summary[
        "warnings"
    ]


# --- figures that say nothing ---------------------------------------------------------------------


def test_rounds_that_nobody_answered_are_said():
    plan = Plan(rounds=3, evaluate_every=1, dropout=0.999)
    text = found(FedAvg(), plan)["void"]
    assert text.startswith("nothing was trained: in all 3 rounds fewer clients answered")


def test_a_run_of_which_the_half_was_void_says_so():
    given = facts(FedAvg())
    given.progress.void_training_rounds = 2
    assert changed(given)["void"] == (
        "2 of 3 rounds were void: the model was trained in the others only"
    )
    given.progress.void_training_rounds = 1
    assert "void" not in changed(given)


class Preparing(FedAvg):
    """Asks everybody once before it trains."""

    def stages(self, rounds, model):
        ask = Stage("ask", self.round, rounds=1, everyone=True, prepares=True, trains=False)
        return [ask, Stage("train", self.round)]


def test_attempts_of_a_stage_that_is_asked_again_are_no_void_training(monkeypatch):
    play_once = Experiment._play_once

    def fail_twice(self, turn, progress, attempt):
        if turn.stage.name == "ask" and attempt < 2:
            progress.void_rounds += 1
            return False
        return play_once(self, turn, progress, attempt)

    monkeypatch.setattr(Experiment, "_play_once", fail_twice)
    given = facts(Preparing())
    assert (given.progress.void_rounds, given.progress.void_training_rounds) == (2, 0)
    assert "void" not in changed(given)


def test_a_run_without_rounds_of_training_has_no_void_ones():
    given = facts(FedAvg())
    turns = given.experiment.turns
    turns[:] = [turn._replace(stage=turn.stage._replace(trains=False)) for turn in turns]
    assert "void" not in {each["kind"] for each in warnings.find(given)}


def test_a_loss_that_is_no_number_has_diverged():
    assert changed(once(FedAvg()), loss=None)["diverged"].startswith("the loss is no number")
    assert "diverged" in changed(once(FedAvg()), loss=float("inf"))


def test_a_run_that_has_lost_what_it_had_gained_has_diverged():
    text = with_history([0.5, 0.9, 0.9, 0.4])["diverged"]
    assert text.startswith("accuracy went from 90.0 to 40.0 at the last round")
    assert "diverged" not in with_history([0.5, 0.9, 0.9, 0.85])


def test_noise_about_a_guess_is_no_divergence():
    guess = once(FedAvg()).guess["accuracy"]
    noise = with_history([guess, guess + 0.01, guess - 0.005])
    assert "at-chance" in noise
    assert "diverged" not in noise


def test_a_rate_far_too_high_has_diverged_or_learnt_nothing():
    kinds = found(FedAvg(), training=Training(lr=50.0, momentum=0.9, batch_size=8, epochs=1))
    assert kinds.keys() & {"diverged", "at-chance"}


def test_a_network_that_is_no_better_than_a_guess_is_at_chance():
    given = once(FedAvg(), Plan(rounds=1))
    guess = given.guess["accuracy"]
    text = changed(given, accuracy=guess)["at-chance"]
    assert text == (
        f"accuracy is {100 * guess:.1f} at the last round, and one and the same answer for all "
        f"examples has {100 * guess:.1f}: no more than chance would make, so nothing useful was "
        "learnt"
    )
    assert "at-chance" not in changed(given, accuracy=guess + 0.2)


def test_a_useless_network_that_is_sure_of_itself_has_diverged():
    assert "diverged" in changed(once(FedAvg(), Plan(rounds=1)), accuracy=0.1, loss=20.0)


def test_the_guess_is_the_most_frequent_class():
    data = toys.federation()
    train = torch.cat([data.splits(id).train.y for id in data.participants])
    common = train.bincount().argmax()
    tests = [data.splits(id).test.y for id in data.participants]
    expected = sum(float((test == common).float().mean()) for test in tests) / len(tests)
    assert warnings.guess_of(data, data.participants, Classification(3))[
        "accuracy"
    ] == pytest.approx(expected)


def numbers(slope):
    """Runs on numbers y = slope · x + noise."""
    rng = np.random.default_rng(0)
    clients = {}
    for name in "abc":
        x = rng.normal(size=(60, 2))
        clients[name] = (x, slope * x[:, 0] + rng.normal(size=60))
    result = run(clients=clients, rounds=6, run={"evaluate_every": 1, "executor": "serial"})
    return {each["kind"]: each["text"] for each in result.summary["warnings"]}


def test_numbers_that_cannot_be_predicted_are_at_chance():
    assert numbers(slope=0.0)["at-chance"].startswith("RMSE is ")
    assert "at-chance" not in numbers(slope=3.0)


# --- methods that are another one -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "into"),
    [
        ("fedprox", {"mu": 0.0}, "fedavg"),
        ("moon", {"mu": 0.0}, "fedavg"),
        ("fedrs", {"alpha": 1.0}, "fedavg"),
        ("fedlc", {"tau": 0.0}, "fedavg"),
        ("fedbn", {}, "fedavg"),
        ("fedvc", {"weight": 0.0, "similarity": 50.0}, "fedavg"),
        ("fedvc", {"weight": 0.0, "projection": "through"}, "fedavg"),
        ("fedvc", {"similarity": 1e-6}, "fedavg"),
        ("fedem", {"num_models": 1}, "fedavg"),
        ("fedconceptem", {"num_models": 1}, "fedavg"),
        ("concord", {"num_heads": 1, "balanced": False, "settling_steps": 0}, "fedavg"),
        ("fedgmm", {"num_models": 1}, "fedavg"),
        ("ifca", {"num_models": 1}, "fedavg"),
        ("fesem", {"num_models": 1, "mu": 0.0}, "fedavg"),
        ("fesem", {"num_models": 1}, "fedprox"),
        ("cfl", {}, "fedavg"),
        ("apfl", {"share": 0.0, "adaptive": False}, "fedavg"),
        ("apfl", {"share": 1.0, "adaptive": False}, "local"),
        ("ditto", {"penalty": 0.0}, "local"),
    ],
)
def test_a_method_that_is_another_one_says_so(name, settings, into):
    text = found(ALGORITHMS[name](**settings))[f"identical-to-{into}"]
    assert text.startswith(f"in effect this is {into}: ")


@pytest.mark.parametrize(
    "name",
    [
        "concord",
        "fedprox",
        "moon",
        "fedlc",
        "fedem",
        "fedconceptem",
        "ifca",
        "fesem",
        "apfl",
        "ditto",
    ],
)
def test_a_method_that_is_itself_says_nothing_of_the_kind(name):
    assert not [kind for kind in found(ALGORITHMS[name]()) if kind.startswith("identical")]


def test_fedbn_is_itself_where_there_is_something_to_normalise():
    method = ALGORITHMS["fedbn"]()
    model = toys.model_for(method, toys.image_federation(), "resnet18")
    assert method.degenerate(model, {}, {}) is None


def test_fedrs_is_fedavg_where_no_client_lacks_a_class():
    method, model = ALGORITHMS["fedrs"](), None
    assert (
        method.degenerate(model, {}, {"a": {"absent_classes": 1}, "b": {"absent_classes": 0}})
        is None
    )
    assert method.degenerate(model, {}, {"a": {"absent_classes": 0}}) == Degenerate(
        "fedavg", "every client has examples of all classes"
    )
    rows = facts(method).rows.values()
    assert all(row["absent_classes"] == 0 for row in rows)


def test_fedvc_of_one_concept_is_not_told_to_keep_concepts_apart():
    method = ALGORITHMS["fedvc"](num_concepts=1)
    assert method.degenerate(None, {"concepts": torch.eye(1)}, {}) == Degenerate(
        "fedavg", "it has one concept"
    )


def test_fedvc_is_itself_where_concepts_lie_apart():
    method = ALGORITHMS["fedvc"]()
    assert method.degenerate(None, {"concepts": torch.eye(10)}, {}) is None


def test_cfl_is_itself_once_it_has_split():
    assert not found(toys.all_methods()["cfl"]).keys() & {"identical-to-fedavg", "one-group"}


def test_apfl_says_how_many_clients_use_only_the_shared_model():
    rows = {str(place): {"share": 0.0 if place < 18 else 0.4} for place in range(20)}
    method = ALGORITHMS["apfl"]()
    assert method.degenerate(None, {}, rows) == Degenerate(
        "fedavg", "18 of 20 clients use only the shared model (share 0)"
    )
    assert method.degenerate(None, {}, {**rows, "17": {"share": 0.5}}) is None


def test_what_a_method_leaves_out_is_said():
    wide, narrow = (toys.federation(clients=3, features=width) for width in (1001, 1000))
    assert "1,001 columns" in found(Concord(), data=wide)["left-out"]
    assert "left-out" not in found(Concord(), data=narrow)
    assert "left-out" not in found(Concord(num_heads=2), data=wide)  # looks for none
    assert "left-out" not in found(FedAvg(), data=wide)


def test_a_federation_of_one_client_is_none():
    assert "one-client" in found(FedAvg(), data=toys.federation(clients=1))
    assert "one-client" not in found(FedAvg())


# --- groups ---------------------------------------------------------------------------------------


def on_models(sizes, truth=None, method=ALGORITHMS["fedconceptem"]()):  # noqa: B008 - it is frozen
    """Warnings of a run whose clients are on models in these numbers."""
    given = once(method)
    groups = [k for k, size in enumerate(sizes) for _ in range(size)]
    rows = {str(place): {"group": group} for place, group in enumerate(groups)}
    truth = {} if truth is None else dict(zip(rows, truth, strict=True))
    return {
        each["kind"]: each["text"]
        for each in warnings.find(given._replace(rows=rows, groups=truth))
    }


def test_nearly_all_clients_on_one_model_is_said():
    text = on_models([34, 2])["one-group"]
    assert text == "34 of 36 clients are on one model of 3: no groups were found"
    assert on_models([36])["one-group"].startswith("all 36 clients are on one model of 3")
    assert "one-group" in on_models([36], truth=[0] * 18 + [1] * 18)


def test_clusters_that_were_split_off_may_hold_next_to_nobody():
    split = on_models([34, 2], method=toys.all_methods()["cfl"])
    assert split["one-group"].startswith("34 of 36 clients are on one model of ")


def test_groups_that_were_found_are_no_warning():
    assert "one-group" not in on_models([30, 6])
    assert "one-group" not in on_models([36], method=FedAvg())


def test_one_group_is_no_warning_where_there_is_one():
    assert "one-group" not in on_models([36], truth=["one"] * 36)
    assert "one-group" not in on_models([35, 1], truth=["one"] * 35 + ["other"])


def test_true_groups_are_known_where_we_made_them():
    concepts = {"a": {"concept": "x", "partition": "1"}, "b": {"concept": "y", "partition": "1"}}
    same = {id: {"concept": "x", "partition": id} for id in "ab"}
    alike = {id: {"concept": "x"} for id in "ab"}
    true_groups = warnings.true_groups
    assert true_groups(concepts, ["a", "b"], simulated=False) == {"a": "x", "b": "y"}
    assert true_groups(same, ["a", "b"], simulated=False) == {"a": "a", "b": "b"}
    assert true_groups(alike, ["a", "b"], simulated=True) == {"a": "one", "b": "one"}
    assert true_groups(alike, ["a", "b"], simulated=False) == {}


# --- rounds ---------------------------------------------------------------------------------------


def test_a_run_that_still_improves_says_so():
    text = with_history([0.3, 0.5, 0.6, 0.7], every=5)["still-improving"]
    assert text == (
        "accuracy went from 50.0 to 70.0 over the last 10 rounds: more rounds may change the order "
        "of methods"
    )


@pytest.mark.parametrize(
    "values",
    [
        [0.3, 0.7, 0.7, 0.7, 0.7],
        [0.3, 0.700, 0.704, 0.706],  # a gain that nobody would notice
        [0.70, 0.66, 0.74, 0.66, 0.72],  # noise
        [0.3, 0.7, 0.69, 0.68],
    ],
)
def test_a_run_that_has_come_to_rest_does_not(values):
    assert "still-improving" not in with_history(values)


def test_too_few_evaluations_to_tell_are_said():
    text = found(FedAvg(), Plan(rounds=4, evaluate_every=50))["few-evaluations"]
    assert text.startswith("the run was evaluated once (run.evaluate_every = 50, run.rounds = 4)")
    assert "few-evaluations" not in found(FedAvg())
    assert "few-evaluations" not in found(FedAvg(), Plan(rounds=1))


def test_rounds_that_a_method_counts_in_its_own_way_are_said():
    plan = Plan(rounds=16, evaluate_every=100)
    text = found(ALGORITHMS["fedconcat"](clusters=2), plan)["rounds"]
    assert text.startswith("mine plays ")
    assert "for the 16 asked for: equal communication" in text
    given = ALGORITHMS["fedconcat"](clusters=2, encoder_rounds=2, head_rounds=3)
    assert found(given)["rounds"] == (
        "mine plays 7 rounds in stages (cluster 1, encoders 2, concatenate 1, head 3) for the 3 "
        "asked for: as encoder_rounds and head_rounds say"
    )
    assert (
        "mine plays 4 rounds in stages (first 1, train 3)" in found(ALGORITHMS["fesem"]())["rounds"]
    )


@pytest.mark.parametrize("name", ["fedavg", "fedgmm"])
def test_rounds_as_they_were_asked_for_are_not(name):
    """FedGMM's stage before training trains nothing."""
    assert "rounds" not in found(ALGORITHMS[name]())


# --- settings without effect ----------------------------------------------------------------------


def test_tuning_that_a_method_does_not_do_is_said():
    plan = Plan(rounds=1, tune_new=2)
    said = {name: found(ALGORITHMS[name](), plan).get("no-effect") for name in ("fedem", "ditto")}
    rule = "run.tune_new = 2 changes nothing: mine has "
    assert said == {
        "fedem": f"{rule}a rule of its own for new clients",
        "ditto": f"{rule}nothing for clients that were not in training",
    }
    nobody = found(FedAvg(), plan, data=toys.image_federation(), network="linear")["no-effect"]
    assert nobody.endswith("no clients are held out")
    assert "no-effect" not in found(FedAvg(), plan)


# Their new clients choose or train something of their own.
NEEDS_EXAMPLES = {
    *("cfl", "concord", "fedconceptem", "feddual", "fedem"),
    *("fedrep", "fedsoft", "fesem", "ifca"),
}


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"centralized"}))
def test_new_clients_without_examples_have_figures_or_it_is_said_that_they_have_none(name):
    given = facts(toys.all_methods()[name], Plan(rounds=1), data=without_adaptation())
    scores, said = given.records[-1].get("global"), warnings.find(given)
    has_none = "new-clients" in [each["kind"] for each in said]
    assert has_none == (name in NEEDS_EXAMPLES)
    if has_none or not given.algorithm.accepts_new_clients:
        assert not scores
    else:
        assert all(math.isfinite(value) for value in scores.values() if value is not None)
        assert scores["loss" if given.algorithm.classifies else "log_likelihood"] is not None


def without_adaptation():
    """The toy federation with a new client that has nothing to adapt to."""
    data = toys.federation()
    _, second, third, end = data.bounds["held-out"]
    return dataclasses.replace(
        data, bounds={**data.bounds, "held-out": (second, second, third, end)}
    )


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_methods_say_truthfully_whether_new_clients_tune(name):
    """`tune` changes what new clients have received, or the method does not claim it."""
    method = toys.all_methods()[name]
    if not method.accepts_new_clients:
        return
    figures = []
    for epochs in (0, 5):
        made = toys.experiment(method, plan=Plan(rounds=1, tune_new=epochs, noise_seed=0))
        made.run(made.start())
        figures.append(made.records[-1]["global"])
    assert (figures[0] != figures[1]) == method.tunes_new


def test_clients_that_were_never_asked_are_said():
    text = found(FedAvg(), Plan(rounds=2, evaluate_every=1, cohort=1))["never-asked"]
    assert text.split(":")[0] in (
        "4 of 6 clients were never asked to train",
        "5 of 6 clients were never asked to train",
    )
    assert "never-asked" not in found(FedAvg())
    assert "never-asked" not in found(ALGORITHMS["centralized"]())
