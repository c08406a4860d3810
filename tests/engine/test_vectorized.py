"""Clients computed together against the same clients one by one."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import nn

import concordfl as cf
import toys
from concordfl import Client, ClientStepError, Examples, Mean, Model, Training, client_step, tree
from concordfl.algorithms import ALGORITHMS, FedAvg
from concordfl.core import Classification, MultiLabel, Regression
from concordfl.engine import choice
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
from concordfl.engine.vectorized import TOLERANCE, find_obstacle
from concordfl.engine.vectorized.fit import fit_together
from concordfl.engine.vectorized.lockstep import run_in_lockstep
from concordfl.engine.vectorized.logits import logits_together
from concordfl.engine.vectorized.network import ManyNetworks
from concordfl.engine.vectorized.requests import FitRequest, LogitsRequest
from concordfl.models import make_builder

METHODS = toys.all_methods() | toys.other_readings() | {"toy": toys.Toy()}
TOGETHER = [name for name, kind in ALGORITHMS.items() if vars(kind).get("vectorizes")]
PLAN = Plan(rounds=3, cohort=4, evaluate_every=3, noise_seed=0)


def played(algorithm, executor, plan=PLAN, **more):
    made = toys.experiment(algorithm, plan=plan, executor=executor, **more)
    progress = made.run(made.restore())
    states = {id: tree.unpack(state) for id, state in made.executor.personal_parts()}
    made.executor.close()
    return progress, states, made.records


def assert_close(left, right):
    ours, theirs = tree.flatten(left), tree.flatten(right)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        other = theirs[name]
        if isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype
            assert torch.allclose(value, other, rtol=TOLERANCE, atol=TOLERANCE), name
        elif isinstance(value, float):
            assert value == pytest.approx(other, rel=TOLERANCE, abs=TOLERANCE), name
        else:
            assert value == other, name


def without_seconds(records):
    return [{key: value for key, value in each.items() if key != "seconds"} for each in records]


def assert_same_run(left, right):
    assert_close(left[0].server, right[0].server)
    assert_close(left[1], right[1])
    assert_close(without_seconds(left[2]), without_seconds(right[2]))


# --- whole runs -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METHODS)
def test_every_method_gives_what_it_gives_one_by_one(name):
    """Also methods that gain nothing: what cannot be computed together is computed alone."""
    assert_same_run(played(METHODS[name], "serial"), played(METHODS[name], "vectorized"))


@pytest.mark.parametrize("name", TOGETHER)
def test_methods_that_say_so_train_no_participant_alone(name, monkeypatch):
    alone = []
    original = Client.fold

    def noted(self, *arguments, **options):
        alone.append(self.id)
        return original(self, *arguments, **options)

    monkeypatch.setattr(Client, "fold", noted)
    played(METHODS[name], "vectorized", replace(PLAN, rounds=2, evaluate_every=2))
    assert set(alone) <= {"held-out"}  # the one new client adapts by itself


@pytest.mark.parametrize("name", ["fedem", "local", "ifca"])
def test_missing_replies(name):
    plan = replace(PLAN, rounds=4, cohort=6, dropout=0.4)
    serial, together = (played(METHODS[name], each, plan) for each in ("serial", "vectorized"))
    assert serial[0].missing == together[0].missing
    assert serial[0].missing["dropped out"] > 0
    assert_same_run(serial, together)


def test_one_example_per_client():
    rng = np.random.default_rng(0)

    def one(count):
        return cf.data.Arrays(
            rng.normal(size=(count, 5)).astype(np.float32), rng.integers(3, size=count)
        )

    data = cf.data.Federation.build({f"c{i}": (one(1), one(0), one(1)) for i in range(3)}, {}, 3)
    plan = Plan(rounds=2)
    for name in ("fedavg", "fedconceptem"):
        assert_same_run(
            played(METHODS[name], "serial", plan, data=data),
            played(METHODS[name], "vectorized", plan, data=data),
        )


def test_a_run_that_is_stopped_after_every_round_is_a_straight_run(tmp_path):
    plan = replace(PLAN, checkpoint_seconds=0)
    straight = toys.digests(toys.experiment(METHODS["fedem"], plan=plan, executor="vectorized"))
    with RunFolder.create(tmp_path / "run", "") as folder:
        for _ in range(PLAN.rounds):
            made = toys.experiment(
                METHODS["fedem"], plan=plan, executor="vectorized", folder=folder
            )
            made.observe = lambda event: (_ for _ in ()).throw(KeyboardInterrupt)
            progress = made.restore()
            with pytest.raises(KeyboardInterrupt):
                made.run(progress)
            made.executor.close()
        summary = made.summary(progress)
    assert (summary["parameters_sha256"], summary["states_sha256"]) == straight


def test_a_resumed_run_goes_on_with_the_executor_that_it_began_with(tmp_path):
    settings = {"data": {"name": "digits", "limit": 200}, "model": {"name": "linear"}}
    run = {"rounds": 2, "executor": "vectorized", "checkpoint_seconds": 0}
    whole = cf.run(settings, run=run).summary
    cf.run(settings, run=run, out=tmp_path / "run", until=1)
    resumed = cf.resume(tmp_path / "run").summary
    assert resumed["executor"] == "vectorized"
    assert "within 1e-05 of one by one" in resumed["executor_reason"]
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]


# --- training -------------------------------------------------------------------------------------

SIZES = [5, 1, 17, 9, 16, 8, 17]
OBJECTIVES = {
    "classes": Classification(3),
    "weighted classes": Classification(3, (0.5, 1.0, 2.0)),
    "numbers": Regression(3, "squared"),
    "likelihood": Regression(1, "gaussian", "learnt"),
    "labels": MultiLabel(3),
}


def clients_of(objective, training, sizes=SIZES):
    rng = np.random.default_rng(0)
    model = Model(make_builder("mlp", (4,), objective.num_outputs, {"hidden": [6]}))
    kinds = {
        "classification": lambda n: torch.from_numpy(rng.integers(3, size=n)),
        "regression": lambda n: torch.from_numpy(
            rng.normal(size=(n, objective.num_predicted)).astype(np.float32)
        ),
        "multi-label": lambda n: torch.from_numpy(rng.integers(2, size=(n, 3)).astype(np.float32)),
    }
    x = torch.from_numpy(rng.normal(size=(sum(sizes), 4)).astype(np.float32))
    y = kinds[objective.kind](sum(sizes))
    found, start = [], 0
    for number, size in enumerate(sizes):
        examples = Examples(x[start : start + size], y[start : start + size])
        start += size
        found.append(
            Client(
                f"c{number}",
                examples,
                objective=objective,
                model=model,
                training=training,
                seed=0,
                round=1,
            )
        )
    return found


def assert_fits(clients, *, weights=None, own=True, only=None, epochs=None, steps=None):
    model = clients[0].model
    starts = [model.init(0, index=k if own else 0) for k in range(len(clients))]
    weights = [None] * len(clients) if weights is None else weights
    requests = [
        FitRequest(
            client,
            params,
            client.examples,
            weight,
            -1 if steps is None else steps,
            client.training.epochs if epochs is None else epochs,
            frozenset(model.names if only is None else only),
            "fit",
        )
        for client, params, weight in zip(clients, starts, weights, strict=True)
    ]
    together = fit_together(requests, model, ManyNetworks(model))
    for client, params, weight, found in zip(clients, starts, weights, together, strict=True):
        expected = client.fit(params, weight=weight, epochs=epochs, steps=steps, only=only)
        assert list(found) == list(expected)
        assert_close(found, expected)
        assert not tree.equal(found, params)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective(objective):
    training = Training(lr=0.05, momentum=0.9, batch_size=8, epochs=2)
    assert_fits(clients_of(OBJECTIVES[objective], training))


@pytest.mark.parametrize(
    "training",
    [
        Training(lr=0.1, momentum=0.0, batch_size=4, epochs=1),
        Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=8, epochs=3),
        Training(optimizer="adam", lr=0.01, weight_decay=0.01, batch_size=8, epochs=3),
        Training(lr=0.1, batch_size=64, epochs=2),
        Training(lr=0.1, batch_size=1, epochs=1),
    ],
)
def test_every_optimizer_and_batch_size(training):
    assert_fits(clients_of(Classification(3), training), own=False)


def test_weights_steps_and_frozen_layers():
    clients = clients_of(Classification(3, (0.5, 1.0, 2.0)), Training(lr=0.1, batch_size=4))
    rng = np.random.default_rng(1)
    weights = [torch.from_numpy(rng.random(client.size)) for client in clients]
    assert_fits(clients, weights=weights)
    assert_fits(clients, steps=3)
    assert_fits(clients, only=clients[0].model.head_names, epochs=1)


def test_more_clients_than_are_computed_at_a_time(monkeypatch):
    monkeypatch.setattr("concordfl.engine.vectorized.fit.MAX_TOGETHER", 3)
    monkeypatch.setattr("concordfl.engine.vectorized.fit.MIN_TOGETHER", 2)
    assert_fits(clients_of(Classification(3), Training(batch_size=4)))


@pytest.mark.parametrize("own", [True, False])
def test_outputs(own, monkeypatch):
    monkeypatch.setattr("concordfl.engine.vectorized.logits.MAX_ROWS_PER_CLIENT", 7)
    monkeypatch.setattr("concordfl.engine.vectorized.logits.ROWS_AT_A_TIME", 11)
    clients = clients_of(Classification(3), Training())
    model = clients[0].model
    shared = [model.init(0), model.init(1)]
    each = [
        [model.init(2 * k), model.init(2 * k + 1)] if own else shared for k in range(len(clients))
    ]
    requests = [
        LogitsRequest(client, models, client.examples)
        for client, models in zip(clients, each, strict=True)
    ]
    found = logits_together(requests, model, ManyNetworks(model))
    for client, models, outputs in zip(clients, each, found, strict=True):
        assert_close(outputs, [client.logits(params) for params in models])


def test_examples_that_are_no_part_of_one_tensor():
    clients = clients_of(Classification(3), Training(batch_size=4))
    for client in clients:
        client.examples = Examples(client.examples.x.clone(), client.examples.y.clone())
    assert_fits(clients)


# --- what a step may do while others wait ---------------------------------------------------------


@dataclass(frozen=True)
class Drawing(FedAvg):
    """Asks for outputs while it draws from torch's generator."""

    @client_step
    def train(self, client, state, message):
        with client.random("own").torch_global():
            before = torch.rand(2)
            client.logits(message)
            after = torch.rand(2)
        trained = client.fit(message)
        return {"drawn": torch.cat([before, after])}, Mean(trained, client.size, around=message)


def test_draws_are_not_disturbed_by_others():
    assert_same_run(played(Drawing(), "serial"), played(Drawing(), "vectorized"))


@dataclass(frozen=True)
class Misfit(FedAvg):
    @client_step
    def train(self, client, state, message):
        trained = client.fit(message)
        if client.id == "client-2":
            trained["head.bias"] = torch.zeros(7)
        return state, Mean(trained, client.size, around=message)


def test_a_reply_that_does_not_fit_names_its_client():
    plan = Plan(rounds=1)
    with pytest.raises(ClientStepError, match="client 'client-2', .*replies must fit"):
        played(Misfit(), "vectorized", plan)
    skipped = played(Misfit(), "vectorized", replace(plan, on_error="skip"))
    assert skipped[0].missing["failed"] == 1
    assert_same_run(played(Misfit(), "serial", replace(plan, on_error="skip")), skipped)


def test_lockstep_answers_all_questions_of_a_turn_together():
    served = []

    def serve(questions):
        served.append(list(questions))
        return [10 * question for question in questions]

    def job(count):
        return lambda ask: sum(ask(number) for number in range(count))

    assert run_in_lockstep([job(3), job(1), job(0)], serve) == [30, 0, 0]
    assert served == [[0, 0], [1], [2]]


def test_lockstep_ends_all_where_one_fails():
    ended = []

    def waits(ask):
        try:
            ask(1)
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="no"):
        run_in_lockstep([waits, fails], lambda questions: questions)
    with pytest.raises(ZeroDivisionError):
        run_in_lockstep([waits, waits], lambda questions: 1 / 0)
    assert ended == [True] * 3


def test_lockstep_leaves_everybody_its_gradient_mode():
    def without(ask):
        with torch.no_grad():
            return ask(1), torch.is_grad_enabled()

    def plain(ask):
        return ask(1), torch.is_grad_enabled()

    def serve(questions):
        return [torch.is_grad_enabled() for _ in questions]

    assert run_in_lockstep([without, plain], serve) == [(True, False), (True, True)]
    assert torch.is_grad_enabled()
    with pytest.raises(ValueError, match="no"):
        run_in_lockstep([without, fails], serve)
    assert torch.is_grad_enabled()


def fails(ask):
    raise ValueError("no")


# --- the choice -----------------------------------------------------------------------------------


class Mixing(nn.Module):
    """A network whose outputs depend on the other rows."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(4, 3)

    def forward(self, rows):
        return self.dense(rows - rows.mean(0))


def obstacle_of(build):
    return find_obstacle(Model(build), torch.zeros(1, 4))


def test_networks_that_cannot_be_computed_together():
    assert obstacle_of(lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))) is None
    normed = obstacle_of(lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)))
    assert normed == "a network with other than dense layers (LayerNorm)"
    statistics = obstacle_of(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)))
    assert "running statistics" in statistics
    assert "row by row" in obstacle_of(Mixing)
    dropping = obstacle_of(lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)))
    assert "row by row" in dropping


def choose(clients=40, model=("linear", {}), algorithm="fedavg", **run):
    name, options = model
    settings = cf.runner.load_config(
        {
            "data": {"name": "digits"},
            "scenario": {"clients": clients},
            "model": {"name": name, **options},
            "algorithm": {"name": algorithm},
        },
        run=run,
    )
    federation = cf.runner.make_federation(settings)
    network = cf.runner.make_model(settings, federation)
    objective = cf.runner.make_objective(settings, federation)
    setup = cf.runner.make_setup(settings, network, objective)
    return choice.choose(setup, federation, settings.run)


def test_auto_computes_many_small_clients_together(monkeypatch):
    monkeypatch.setattr(choice, "available_cores", lambda: 2)
    found = choose(rounds=10**4)
    assert found.name == "vectorized"
    assert found.reason == (
        "40 clients a round with dense networks of 650 parameters, computed together: within "
        "1e-05 of one by one"
    )
    assert choose(rounds=1).name == "serial"
    others = [
        choose(rounds=10**5, clients=20),
        choose(rounds=10**5, algorithm="apfl"),
        choose(rounds=10**5, model=("mlp", {"hidden": [400]})),
        choose(rounds=10**5, workers=8),
    ]
    assert [other.name for other in others] == ["processes"] * 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "apfl"}, "methods whose clients train by `fit` .* got APFL"),
        ({"model": ("toy_models:small_conv", {})}, r"got a network with other .* \(Conv2d\)"),
    ],
)
def test_what_cannot_be_computed_together_is_refused(settings, words):
    with pytest.raises(cf.SettingError, match=words):
        choose(executor="vectorized", **settings)
