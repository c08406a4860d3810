"""Data that change during a run: when methods meet them, and that all of them go on."""

from collections import defaultdict

import numpy as np
import pytest
import torch

import toys
from concordfl import DataError, tree
from concordfl.algorithms import Centralized, FedAvg, FedConcat, FedConcatID, FedConceptEM, FedGMM
from concordfl.algorithms.fedconceptem import FedConceptEMMessage
from concordfl.core import Key
from concordfl.core.algorithm import find_step
from concordfl.data import Arrays, Dataset, Federation
from concordfl.engine import node
from concordfl.engine.experiment import schedule
from concordfl.engine.plan import Plan
from concordfl.scenarios import SHIFTS, Scenario, build_federation

BEFORE, AFTER = 20, 32  # training examples of a client that changes
CHANGE = 4  # the training round in which it does
CLASSES = 3


def draw(count, seed, centres=3 * np.random.default_rng(0).normal(size=(CLASSES, 5))):  # noqa: B008
    rng = np.random.default_rng(seed)
    y = rng.integers(CLASSES, size=count)
    return Arrays((centres[y] + rng.normal(size=(count, 5))).astype(np.float32), y)


def splits(train, seed, test=6):
    return draw(train, seed), draw(4, seed + 100), draw(test, seed + 200)


def drifting(change=CHANGE, after=(AFTER, 9, BEFORE)):
    """Clients that get more, fewer, or other examples; those beyond `after` stay as they are."""
    names = [f"client-{i}" for i in range(4)]
    return Federation.build(
        {id: splits(BEFORE, seed) for seed, id in enumerate(names)},
        {"new": splits(8, 50)},
        CLASSES,
        later={
            id: [(change, splits(size, seed + 10, test=11))]
            for seed, (id, size) in enumerate(zip(names, after, strict=False))
        },
    )


@pytest.fixture
def seen(monkeypatch):
    """The labels that client-0 had when it was asked, by step."""
    kept = defaultdict(list)

    def find(algorithm, name):
        step = find_step(algorithm, name)

        def noted(client, state, message):
            if client.id == "client-0":
                kept[name].append(client.examples.y)
            return step(client, state, message)

        return noted

    monkeypatch.setattr(node, "find_step", find)
    return kept


def sizes(seen):
    """How many examples it had."""
    return {name: [len(labels) for labels in each] for name, each in seen.items()}


def run(method, data=None, **plan):
    made = toys.experiment(
        method, drifting() if data is None else data, plan=Plan(**{"rounds": 6} | plan)
    )
    return made, made.run(made.start())


# --- when -----------------------------------------------------------------------------------------

TRAINED = [BEFORE] * (CHANGE - 1) + [AFTER] * 3  # by training round, of six


def test_fedavg_meets_the_change_in_the_training_round_it_is_given(seen):
    run(FedAvg())
    assert sizes(seen) == {"train": TRAINED}


def test_rounds_that_only_prepare_do_not_count(seen):
    """FedGMM has nine of them before its first training round."""
    method = FedGMM(num_gaussians=3, lloyd_steps=5)
    turns = schedule(method, Plan(rounds=6), toys.model_for(method, toys.federation()), 4)
    assert sum(not turn.stage.trains for turn in turns) == 9
    run(method)
    found = sizes(seen)
    assert found.pop("train") == TRAINED
    assert found
    assert all(set(each) == {BEFORE} for each in found.values())


@pytest.mark.parametrize(("encoders", "head"), [(2, 4), (5, 1)])
def test_stages_count_together(seen, encoders, head):
    """FedConcat: telling labels and computing features are no training, encoders and head are."""
    run(FedConcat(clusters=2, encoder_rounds=encoders, head_rounds=head))
    found = sizes(seen)
    assert found["train"] + found["train_on_features"] == TRAINED
    assert len(found["train"]) == encoders
    assert found["tell_labels"] == [BEFORE]
    assert found["compute_features"] == [BEFORE if encoders < CHANGE else AFTER]


def test_a_first_round_that_is_kept_counts(seen):
    """FedConcat-ID infers labels from the first training round of the encoders."""
    run(FedConcatID(clusters=2, encoder_rounds=2, head_rounds=4, random_inputs=20))
    found = sizes(seen)
    assert found["train"] + found["train_on_features"] == TRAINED


def test_a_first_round_that_is_thrown_away_does_not(seen):
    method = FedConcat(
        clusters=2, encoder_rounds=2, head_rounds=4, infer="model", restart=True, random_inputs=20
    )
    run(method)
    found = sizes(seen)
    assert found["train"][0] == BEFORE
    assert found["train"][1:] + found["train_on_features"] == TRAINED


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (FedAvg(), [1, 2, 3]),
        (FedGMM(num_gaussians=1, lloyd_steps=1), [0, 0, 0, 1, 2, 3]),
        (FedConcat(clusters=2, encoder_rounds=2, head_rounds=2), [0, 1, 2, 2, 3, 4]),
        (FedConcatID(clusters=2, encoder_rounds=2, head_rounds=2), [1, 2, 2, 3, 4]),
    ],
)
def test_the_schedule_counts_training_rounds(method, expected):
    model = toys.model_for(method, toys.federation())
    assert [turn.training_round for turn in schedule(method, Plan(rounds=3), model, 4)] == expected


def test_orders_carry_the_training_round():
    orders = []
    made = toys.experiment(FedGMM(num_gaussians=1, lloyd_steps=1), plan=Plan(rounds=2))
    perform = made.executor.perform
    made.executor.perform = lambda order: orders.append(order) or perform(order)
    made.run(made.start())
    found = {(order.round, order.training_round) for order in orders}
    assert found == {(1, 0), (2, 0), (3, 0), (4, 1), (5, 2)}
    (evaluation,) = {order.training_round for order in orders if order.step == "evaluate"}
    assert evaluation == 2


@pytest.mark.parametrize("method", [FedAvg(), FedGMM()], ids=["fedavg", "fedgmm"])
def test_figures_are_of_the_examples_of_their_round(method):
    made, _ = run(method, evaluate_every=1, rounds=CHANGE + 1)
    sizes = [rows["client-0"]["examples"] for _, rows in sorted(made.client_rows.items())]
    assert sizes == [6] * (CHANGE - 1) + [11] * 2
    unchanged = {rows["client-3"]["examples"] for rows in made.client_rows.values()}
    assert unchanged == {6}


def test_from_round_of_a_shift_is_a_training_round(seen):
    """All labels turn in training round 2, whatever came before it."""
    shift = SHIFTS["label-map"](share=1.0, from_round=2)
    source = Dataset(draw(120, 0), draw(0, 0), CLASSES)
    data = build_federation(source, Scenario(clients=3, shifts=(shift,)), Key(0))
    for method in (FedAvg(), FedGMM(num_gaussians=2, lloyd_steps=2)):
        seen.clear()
        run(method, data, rounds=3)
        first, second, third = seen.pop("train")
        assert torch.equal(second, third)
        assert torch.equal(second, CLASSES - 1 - first)
        assert all(torch.equal(labels, first) for each in seen.values() for labels in each)


# --- that a run goes on ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", toys.all_methods())
def test_every_method_goes_on_with_another_number_of_examples(name):
    method = toys.all_methods()[name]
    made, progress = run(method, drifting(change=2), rounds=3, evaluate_every=1)
    assert progress.missing == {}
    assert progress.failures == []
    assert tree.is_finite(progress.server)
    for id in made.executor.states.ids():
        assert tree.is_finite(toys.state(made, id))
    figure = "accuracy" if method.classifies else "log_likelihood"
    assert np.isfinite(made.records[-1]["local"][figure])
    assert toys.rows(made)["client-0"]["examples"] == 11


@pytest.mark.parametrize("everyone", [True, False])
@pytest.mark.parametrize("adam", [False, True])
@pytest.mark.parametrize("fine_tune", [False, True])
def test_fedconceptem_goes_on_with_weights_of_other_examples(adam, fine_tune, everyone):
    """Who was not asked since is evaluated on examples that its weights are not of."""
    method = FedConceptEM(num_models=2, adam=adam, fine_tune=fine_tune)
    data = drifting(after=(AFTER, 9, 25, 14))
    cohort, rounds = (4, CHANGE + 1) if everyone else (2, CHANGE)
    made, progress = run(method, data, cohort=cohort, rounds=rounds)
    assert progress.missing == {}
    stale = 0
    for id in made.executor.states.ids():
        state = toys.state(made, id)
        gamma = torch.stack(list(state.gamma.values()), dim=1)
        assert torch.allclose(gamma.sum(1), torch.ones(len(gamma)).double())
        stale += len(gamma) != len(data.splits(id, CHANGE).train)
        if adam:
            assert len(state.moments.first[0]) == len(gamma)
        assert sum(toys.rows(made)[id]["weights"].values()) == pytest.approx(1)
    if everyone:
        assert stale == 0
        counted = sum(float(table.sum()) for table in progress.server.totals.values())
        assert counted == pytest.approx(AFTER + 9 + 25 + 14)
    else:
        assert stale > 0


def test_adam_begins_anew_where_the_number_of_examples_has_changed():
    """The mean weights of the old examples, and no moments: as a client that begins with them."""
    data = drifting()
    method = FedConceptEM(num_models=2, adam=True, adam_rate=0.1)
    model = toys.model_for(method, data)
    message = FedConceptEMMessage(
        models={k: model.init(0, index=k) for k in range(2)},
        log_prior={k: torch.zeros(CLASSES).double() for k in range(2)},
    )
    old, new = (toys.client(data.splits("client-0", round).train, model) for round in (1, CHANGE))
    state, _ = method.train(old, method.init_client(old, message), message)
    omega = {k: state.gamma[k].mean() for k in range(2)}
    fresh = state._replace(
        gamma={k: omega[k].expand(AFTER) for k in range(2)},
        moments=method.init_client(new, message).moments,
    )
    drifted, expected = (method.train(new, start, message)[0] for start in (state, fresh))
    assert all(torch.allclose(drifted.gamma[k], expected.gamma[k], atol=1e-12) for k in range(2))
    assert len(drifted.gamma[0]) == AFTER


def test_executors_agree_on_drifting_data():
    method, plan = FedConceptEM(num_models=2, adam=True), Plan(rounds=3, cohort=2)
    serial, processes = (
        toys.digests(toys.experiment(method, drifting(change=2), plan=plan, executor=executor))
        for executor in ("serial", "processes")
    )
    assert serial == processes


def test_pooled_data_hold_all_examples_however_many_there_are():
    made, _ = run(Centralized(), rounds=1)
    data = made.federation
    for round in (1, CHANGE):
        parts = [data.splits(id, round).train for id in data.participants]
        (pooled,) = data.population
        train = data.splits(pooled, round).train
        assert torch.equal(train.x, torch.cat([part.x for part in parts]))
        assert torch.equal(train.y, torch.cat([part.y for part in parts]))


def test_a_client_must_not_lose_all_its_examples():
    data = toys.federation(clients=2)
    splits = [Arrays(part.x.numpy(), part.y.numpy()) for part in data.splits("client-0")]
    nothing = [Arrays(splits[0].x[:0], splits[0].y[:0]), *splits[1:]]
    with pytest.raises(DataError, match="'client-0'.* example from training round 3 on, got none"):
        Federation.build({"client-0": splits}, {}, 3, later={"client-0": [(3, nothing)]})
