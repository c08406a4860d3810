"""What is evaluated, of whom, and what of it is recorded where."""

import json

import numpy as np
import pytest
import torch

import toys
from concordfl import Algorithm, SettingError
from concordfl.algorithms import APFL, Ditto, FedAvg, FedGMM, FedSoft, Local, PFedMe
from concordfl.core import tree
from concordfl.data import Arrays, Federation
from concordfl.engine import evaluate
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder


def test_a_sample_of_clients_is_evaluated_always_the_same():
    plan = Plan(rounds=3, evaluate_every=1, evaluate_clients=2)
    made = toys.experiment(FedAvg(), plan=plan)
    summary = toys.result(made)
    seen = [
        {id for id, row in rows.items() if not row["new"]} for rows in made.client_rows.values()
    ]
    assert [len(ids) for ids in seen] == [2, 2, 2]
    assert seen[0] == seen[1] == seen[2]
    assert summary["final"]["local_num_clients"] == 2
    everybody = toys.experiment(FedAvg(), plan=Plan(rounds=3, evaluate_every=1))
    assert summary["parameters_sha256"] == toys.result(everybody)["parameters_sha256"]
    (id, *_) = seen[0]
    assert toys.rows(made)[id] == toys.rows(everybody)[id]


def test_the_sample_is_a_number_or_a_share():
    assert Plan(evaluate_clients=0.5).evaluation_size(10) == 5
    assert Plan().evaluation_size(10) == 10
    with pytest.raises(SettingError, match="evaluate_clients must be <= 10, .* got 11"):
        Plan(evaluate_clients=11).evaluation_size(10)


def test_records_hold_means_and_a_file_holds_clients(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = toys.experiment(APFL(), folder=folder)
        toys.result(made)
        records, columns = folder.read_records(), folder.read_clients()
    assert "client-0" not in json.dumps(records)
    assert set(columns["round"].tolist()) == {record["round"] for record in records}
    last = columns["round"] == records[-1]["round"]
    local = columns["accuracy"][last & ~columns["new"].astype(bool)]
    assert local.mean() == pytest.approx(records[-1]["local"]["accuracy"])
    assert len(local) == len(made.federation.participants)
    assert not np.isnan(columns["share"][last]).any()  # what the method says of a client
    memory = toys.experiment(APFL())
    toys.result(memory)
    row = folder.read_client_rows(records[-1]["round"])["client-1"]
    assert row["accuracy"] == toys.rows(memory)["client-1"]["accuracy"]


def test_clients_without_test_examples_are_left_out_and_counted():
    rng = np.random.default_rng(0)

    def draw(count):
        return Arrays(rng.normal(size=(count, 4)).astype(np.float32), rng.integers(2, size=count))

    data = Federation.build(
        {"a": (draw(8), draw(2), draw(4)), "b": (draw(8), draw(2), draw(0))}, {}, 2
    )
    made = toys.experiment(FedAvg(), data)
    assert toys.result(made)["final"]["local_num_clients"] == 1
    assert data.without_test() == ("b",)


# --- the mean of personal models ------------------------------------------------------------------


def own_model(algorithm, state):
    """By hand: where each method keeps a client's whole model."""
    if isinstance(algorithm, Local):
        return state
    return state.model if isinstance(algorithm, FedSoft) else state["own"]


@pytest.mark.parametrize("method", [Local(), Ditto(), PFedMe(), FedSoft()])
def test_newcomers_are_scored_with_the_mean_of_the_participants_models_too(method):
    made = toys.experiment(method, plan=Plan(rounds=2, evaluate_every=1))
    final = toys.result(made)["final"]
    models = [own_model(method, toys.state(made, id)) for id in made.federation.participants]
    mean = {name: torch.stack([one[name] for one in models]).mean(0) for name in models[0]}
    (test,) = (made.federation.splits(id).test for id in made.federation.held_out)
    with torch.no_grad():
        correct = made.setup.model.module(mean)(test.x).argmax(1) == test.y
    assert final["global_averaged_accuracy"] == pytest.approx(float(correct.double().mean()))
    assert [record["global_averaged"]["num_clients"] for record in made.records] == [1, 1]


def test_the_mean_of_personal_models_changes_no_training_and_counts_as_evaluation():
    class Plain(Local):
        personal_model = Algorithm.personal_model

    with_mean, without = (toys.experiment(method) for method in (Local(), Plain()))
    ours, theirs = toys.result(with_mean), toys.result(without)
    assert ours["states_sha256"] == theirs["states_sha256"]
    assert "global_averaged_accuracy" not in theirs["final"]
    size = tree.num_bytes(with_mean.setup.model.init(0))
    clients, evaluations = len(with_mean.federation.participants), 2
    for summary in (ours, theirs):
        assert (summary["bytes"]["down"], summary["bytes"]["up"]) == (0, 0)
    sent = {key: ours["bytes"][key] - theirs["bytes"][key] for key in ours["bytes"]}
    assert sent["evaluation_down"] == evaluations * size  # to the one held-out client
    assert sent["evaluation_up"] > evaluations * clients * size


def test_clients_that_never_trained_have_no_part_in_the_mean():
    made = toys.experiment(Local(), plan=Plan(rounds=1, cohort=1))
    final = toys.result(made)["final"]
    (trained,) = (id for id, _ in made.executor.personal_parts())
    (test,) = (made.federation.splits(id).test for id in made.federation.held_out)
    somebody = toys.client(test, made.setup.model)
    alone = somebody.predictions(toys.state(made, trained), test).argmax(1)
    correct = (alone == test.y).double().mean()
    assert final["global_averaged_accuracy"] == pytest.approx(float(correct))
    shared = toys.result(toys.experiment(FedAvg()))["final"]
    assert not any(name.startswith("global_averaged") for name in shared)


# --- thresholds -----------------------------------------------------------------------------------


def thresholds_of(samples):
    """As the server finds them, from what clients add up."""
    sums = {"log_x": torch.stack([evaluate.moments(part) for part in samples]).sum(0)}
    ranges, found, passes = evaluate.first_ranges(sums), None, 0
    while ranges and passes < evaluate.MAX_NARROWINGS:
        bounds = ranges["log_x"]
        counts = [evaluate.histogram(part, bounds) for part in samples]
        total = {"log_x": torch.stack(counts).sum(0)}
        found = evaluate.thresholds(total, ranges)
        ranges, passes = evaluate.narrower_ranges(total, ranges), passes + 1
    return None if found is None else found["log_x"]


LEVELS = torch.linspace(0, 1, evaluate.NUM_QUANTILES + 1, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_from_histograms_are_the_quantiles(seed):
    generator = torch.Generator().manual_seed(seed)
    samples = [
        -100 + 5 * torch.randn(400, generator=generator, dtype=torch.float64) - 20 * number
        for number in range(3)
    ]
    found = thresholds_of(samples)
    everything = torch.cat(samples)
    error = (torch.tensor(found, dtype=torch.float64) - torch.quantile(everything, LEVELS)).abs()
    # A hundredth of a deviation; where samples are rare, a quantile lies anywhere between two.
    assert error[5:-5].max() < 0.05 * everything.std()
    assert found == sorted(found)
    below = [(everything < value).double().mean().item() for value in found[1:-1]]
    assert np.allclose(below, LEVELS[1:-1], atol=0.005)


@pytest.mark.parametrize("outlier", [-1e4, -1e5, -1e9, -1e15, float("-inf"), float("nan")])
def test_values_far_away_do_not_blur_the_thresholds(outlier):
    generator = torch.Generator().manual_seed(0)
    bulk = 10 * torch.randn(999, generator=generator, dtype=torch.float64)
    found = thresholds_of([torch.cat([bulk, torch.tensor([outlier], dtype=torch.float64)])])
    exact = torch.quantile(bulk, 0.05).item()
    assert abs(found[evaluate.NUM_QUANTILES // 20] - exact) < 1.0


def test_thresholds_of_values_that_are_all_alike():
    assert np.allclose(thresholds_of([torch.full((7,), -3.0)]), -3.0, atol=0.01)


def test_without_finite_values_there_are_no_thresholds():
    assert thresholds_of([torch.full((7,), float("-inf"))]) is None
    assert thresholds_of([torch.zeros(0)]) is None


def test_no_likelihood_of_an_example_reaches_the_server():
    made = toys.experiment(FedGMM(embedding="identity"))
    replies = []
    perform = made.executor.perform

    def watch(order):
        outcome = perform(order)
        replies.append((order.step, outcome))
        return outcome

    made.executor.perform = watch
    summary = toys.result(made)
    assert set(summary["thresholds"]) == {"log_x", "joint"}
    counted = [outcome for step, outcome in replies if step == "count_likelihoods"]
    assert 1 <= len(counted) <= evaluate.MAX_NARROWINGS
    total = sum(len(made.federation.splits(id).validation) for id in made.roster.participants)
    assert int(counted[-1].value["log_x"].sum()) == total


def test_the_summary_tells_how_figures_fluctuate_over_the_last_ten_evaluated_rounds():
    made = toys.experiment(FedAvg(), plan=Plan(rounds=12, evaluate_every=1))
    found = toys.result(made)["last_ten"]
    assert (found["first_round"], found["last_round"]) == (3, 12)
    for scope in ("local", "global"):
        values = [record[scope]["accuracy"] for record in made.records[-10:]]
        assert found[f"{scope}_accuracy"] == pytest.approx(np.mean(values))
        assert found[f"{scope}_accuracy_std"] == pytest.approx(np.std(values, ddof=1))
    few = toys.experiment(FedAvg(), plan=Plan(rounds=12, evaluate_every=2))
    assert toys.result(few)["last_ten"] is None
