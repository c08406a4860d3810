"""Models that a client holds no share of: not sent, not trained, not replied, and found again.

That executors agree and runs resume to the bit is among the common checks (`toys.other_readings`).
"""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import toys
from concordfl import SettingError, Training
from concordfl.algorithms import ALGORITHMS, FedConceptEM, FedEM, FedGMM, FedSoft
from concordfl.algorithms.fedconceptem import FedConceptEMMessage
from concordfl.algorithms.gaussian_mixture import FedGMMMessage
from concordfl.core import tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan
from concordfl.toolbox import mixture

CLASSES = 4
TRAINING = Training(lr=0.1, batch_size=16, momentum=0.0, epochs=1)
# FedGMM's weights stay softer, as inputs have a say in them
THRESHOLDS = {"fedem": 0.05, "fedconceptem": 0.05, "fedgmm": 0.2, "fedsoft": 0.05}


def draw(rng, concept, size):
    """Separable inputs, labelled by one of four maps: label + concept, mod the classes."""
    y = rng.integers(CLASSES, size=size)
    x = 6 * np.eye(CLASSES, 6)[y] + rng.normal(size=(size, 6))
    return Arrays(x.astype(np.float32), (y + concept) % CLASSES)


def concepts(clients=9, count=3, seed=0, changes=None):
    """Clients of `count` concepts; the first one takes another concept in the round `changes`."""
    rng = np.random.default_rng(seed)
    parts = {
        f"c{i}": (draw(rng, i % count, 60), draw(rng, 0, 0), draw(rng, i % count, 40))
        for i in range(clients)
    }
    later = {}
    if changes is not None:
        later = {"c0": [(changes, (draw(rng, 1, 60), draw(rng, 0, 0), draw(rng, 1, 40)))]}
    groups = {id: {"concept": str(place % count)} for place, id in enumerate(parts)}
    new = {f"new-{k}": (draw(rng, k, 60), draw(rng, 0, 0), draw(rng, k, 40)) for k in range(count)}
    return Federation.build(parts, new, CLASSES, groups, later=later)


class Spied:
    """The orders that an experiment gives, and the bytes of what was replied."""

    def __init__(self, made):
        self.orders, self._perform = [], made.executor.perform
        made.executor.perform = self.perform

    def perform(self, order):
        outcome = self._perform(order)
        self.orders.append((order, outcome))
        return outcome

    def sent(self, step="train"):
        """By round: the models that each client was sent."""
        found = {}
        for order, _ in self.orders:
            if order.step == step:
                found[order.stage_round] = {
                    id: tuple(getattr(order.message_to(id), "models", order.message_to(id)))
                    for id in order.clients
                }
        return found


def played(method, data, rounds=30, **more):
    plan = Plan(rounds=rounds, evaluate_every=rounds, noise_seed=0, **more)
    made = toys.experiment(method, data, plan=plan, training=TRAINING, network="linear")
    spied = Spied(made)
    return made, spied, made.run(made.start())


def agreement(made):
    found, ids = toys.rows(made), made.federation.participants
    true = [made.federation.groups[id]["concept"] for id in ids]
    return adjusted_rand_score(true, [str(found[id]["group"]) for id in ids])


@pytest.mark.parametrize("name", toys.SKIPPING)
def test_where_nothing_is_skipped_it_is_the_method_to_the_bit(name):
    """All asked for by name are sent as they are without asking."""
    plan = Plan(rounds=5, cohort=4, evaluate_every=5, noise_seed=0)
    kind = ALGORITHMS[name]
    plain = toys.experiment(kind(), plan=plan)
    asking = toys.experiment(kind(skip_below=1e-15, recheck_every=2), plan=plan)
    assert toys.digests(asking) == toys.digests(plain)


@pytest.mark.parametrize("name", toys.SKIPPING)
def test_planted_concepts_cost_one_model_per_client(name):
    method = ALGORITHMS[name](num_models=3, skip_below=THRESHOLDS[name], recheck_every=8)
    made, spied, progress = played(method, concepts(seed=1))
    assert agreement(made) == 1
    assert made.records[-1]["local"]["accuracy"] > 0.9
    assert made.records[-1]["global"]["accuracy"] > 0.9
    last = spied.sent()[29]
    # Every client looks at all three once in eight rounds: 10/8 where all others hold one.
    cycle = [len(held) for round in range(22, 30) for held in spied.sent()[round].values()]
    assert np.mean(cycle) < (2 if name == "fedgmm" else 1.4)
    order, outcome = next(pair for pair in reversed(spied.orders) if pair[0].step == "train")
    models = getattr(progress.server, "models", progress.server)
    one = tree.num_bytes(models[0])
    rest = 5000 if name == "fedgmm" else 500  # what is sent beside models: Gaussians, tables
    for id, held in last.items():
        assert tree.num_bytes(order.message_to(id)) <= one * len(held) + rest
        assert outcome.sent[id] <= (one + 8) * len(held) + rest


@pytest.mark.parametrize("method", [FedEM(skip_below=0.3, recheck_every=4)])
def test_every_client_is_sent_all_models_once_in_so_many_rounds(method):
    _, spied, _ = played(method, concepts(), rounds=24)
    sent = spied.sent()
    assert all(len(models) == 3 for round in range(4) for models in sent[round].values())
    full = {id: [round for round in range(4, 24) if len(sent[round][id]) == 3] for id in sent[0]}
    asked = [order for order, _ in spied.orders if order.step == "ask_for_models"]
    assert len(asked) == 20
    for rounds in full.values():
        assert {round % 4 for round in rounds} >= {rounds[0] % 4}
        assert {round for round in range(4, 24) if round % 4 == rounds[0] % 4} <= set(rounds)
    assert len({rounds[0] % 4 for rounds in full.values()}) > 1  # not all in the same round


@pytest.mark.parametrize("name", toys.SKIPPING)
def test_a_client_whose_concept_changes_comes_back(name):
    data = concepts(seed=1, changes=20)
    method = ALGORITHMS[name](num_models=3, skip_below=THRESHOLDS[name], recheck_every=5)
    made, spied, _ = played(method, data, rounds=36)
    groups = {id: row["group"] for id, row in toys.rows(made).items()}
    sent = spied.sent()
    assert set(sent[18]["c0"]) != {groups["c1"]}  # before, it was with others
    assert groups["c0"] == groups["c1"] == groups["c4"] != groups["c3"]
    assert toys.rows(made)["c0"]["accuracy"] > 0.9


def test_label_tables_are_right_while_models_are_skipped():
    """Totals are the sum of the clients' last tables, and these hold every example once."""
    data = concepts()
    method = FedConceptEM(skip_below=0.2, recheck_every=3)
    made, spied, progress = played(method, data, rounds=14, cohort=5, dropout=0.2)
    assert any(len(models) < 3 for round in spied.sent().values() for models in round.values())
    counted = [toys.state(made, id).counted for id in data.participants]
    for k, table in progress.server.totals.items():
        assert torch.allclose(table, sum(each[k] for each in counted), rtol=0, atol=1e-9)
    labels = torch.zeros(CLASSES, dtype=torch.float64)
    for id in data.participants:
        labels += torch.bincount(data.splits(id).train.y, minlength=CLASSES)
    whole = sum(progress.server.totals.values())
    assert torch.allclose(whole, labels, rtol=0, atol=1e-9)


def test_a_table_of_a_skipped_model_is_taken_back_once_and_without_noise():
    data = toys.federation(clients=1)
    method = FedConceptEM(skip_below=0.2, noise=5.0)
    model = toys.model_for(method, data, hidden=[8])
    client = toys.client(data.splits("client-0").train, model, secret=0)
    whole = FedConceptEMMessage(
        models={k: model.init(0, k) for k in range(3)},
        log_prior={k: torch.zeros(3).double() for k in range(3)},
    )
    few = method.with_models(whole, {1: whole.models[1]})
    first, _ = method.train(client, method.init_client(client, whole), whole)
    second, reply = method.train(client, first, few)
    change = toys.sent(reply)["change"]
    assert set(toys.sent(reply)["models"]) == {1}
    assert torch.equal(change[0], -first.counted[0])
    assert not second.counted[0].any()
    _, again = method.train(client, second, few)
    assert set(toys.sent(again)["change"]) == {1}


def test_who_holds_only_removed_models_looks_at_what_is_left():
    data = concepts(clients=6)
    method = FedConceptEM(
        num_models=6,
        adaptive=True,
        threshold=0.12,
        tolerance=0.2,
        patience=2,
        skip_below=0.1,
        recheck_every=3,
    )
    made, spied, progress = played(method, data, rounds=25, cohort=3)
    assert progress.server.removed
    left = set(progress.server.models)
    assert set().union(*spied.sent()[24].values()) <= left
    for id in data.participants:
        assert set(toys.state(made, id).counted) >= left
    assert all(sum(row["weights"].values()) == pytest.approx(1) for row in toys.rows(made).values())


def test_a_model_of_weight_zero_is_not_asked_what_it_predicts():
    data = toys.federation(clients=1)
    model = toys.model_for(FedEM(), data, hidden=[8])
    client = toys.client(data.splits("client-0").train, model)
    models = {k: model.init(0, k) for k in range(3)}
    omega = torch.tensor([0.25, 0.0, 0.75], dtype=torch.float64)
    broken = models | {1: tree.scale(models[1], float("nan"))}
    found = mixture.predict(client, broken, omega, client.examples)
    assert torch.equal(found, mixture.predict(client, models, omega, client.examples))
    by_hand = sum(
        float(omega[k]) * client.predictions(models[k], client.examples).double() for k in (0, 2)
    )
    assert torch.allclose(found, by_hand, rtol=0, atol=1e-12)


def test_a_model_that_comes_back_counts_at_the_threshold():
    method = FedEM(skip_below=0.01)
    kept = torch.tensor([0.6, 0.0, 0.4], dtype=torch.float64)
    assert method.weights_before(kept).tolist() == [0.6, 0.01, 0.4]
    assert FedEM().weights_before(kept).tolist() == [0.6, 0.0, 0.4]
    pi = torch.tensor([[0.5, 0.0, 0.1], [0.3, 0.0, 0.1]], dtype=torch.float64)
    joint = FedGMM(num_gaussians=2, skip_below=0.01)
    message = FedGMMMessage({0: {}, 1: {}, 2: {}}, None, pi)
    found = joint.weights_of({"pi": pi}, message)
    assert found[:, 1].tolist() == pytest.approx([0.006, 0.004])
    assert torch.equal(found[:, [0, 2]], pi[:, [0, 2]])


def test_drawn_clients_of_fedsoft_are_sent_the_centres_that_they_asked_for():
    method = FedSoft(drawn=2, skip_below=0.2, recheck_every=3)
    made, spied, _ = played(method, concepts(seed=1), rounds=12)
    told, drawn = spied.sent("tell_importance"), spied.orders
    fewer = [models for models in told[11].values() if len(models) < 3]
    assert fewer
    for order, _ in drawn:
        if order.step == "train_if_drawn" and order.stage_round >= 3:
            for id in order.clients:
                message = order.message_to(id)
                assert tuple(message.centres) == told[order.stage_round][id]
                assert set(message.drawn_by) <= set(message.centres)
    assert agreement(made) > 0


def test_bad_thresholds_are_refused():
    rule = r"skip_below must be < 1 / num_models = 0.25, got 0.3"
    for name in toys.SKIPPING:
        with pytest.raises(SettingError, match=rule):
            ALGORITHMS[name](num_models=4, skip_below=0.3)
    with pytest.raises(SettingError, match="skip_below"):
        FedEM(skip_below=-0.1)
    with pytest.raises(SettingError, match="skip_below needs weights of the client's own"):
        FedGMM(skip_below=0.01, shared_weights=True)
