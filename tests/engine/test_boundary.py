"""The line between server and clients: what crosses it is data, and who is missing has a reason."""

import hashlib
import inspect
import time
from dataclasses import dataclass

import pytest
import torch

import socket_nodes
import toys
from concordfl import ClientStepError, FormatError, Mean, SettingError, Total, client_step, tree
from concordfl.algorithms import APFL, FedAvg, FedConcat, FedConceptEM, FedGMM
from concordfl.core import Missing, Order, Outcome
from concordfl.core.algorithm import find_step
from concordfl.engine.experiment import Experiment
from concordfl.engine.plan import Plan
from concordfl.engine.roster import Roster

PLAN = Plan(rounds=3, cohort=4, evaluate_every=2, dropout=0.1, noise_seed=0)
FAULTS = Plan(rounds=2, on_error="skip")


@dataclass(frozen=True)
class Unreliable(FedAvg):
    """One client raises, another hangs."""

    @client_step
    def train(self, client, state, message):
        if client.id == "client-1":
            raise ValueError("bad luck")
        if client.id == "client-2":
            time.sleep(30)
        return super().train(client, state, message)


CASES = {
    "fedavg": (FedAvg(), PLAN),
    "fedconceptem": (FedConceptEM(noise=2.0), PLAN),
    "fedconcat": (FedConcat(clusters=2, encoder_rounds=3, head_rounds=3, epsilon=5.0), PLAN),
    "fedgmm": (FedGMM(), PLAN),
    "apfl": (APFL(), PLAN),
    "unreliable": (Unreliable(), FAULTS),
}


def make(case):
    """What a node is made of: made anew in the other process."""
    torch.set_num_threads(1)
    data = toys.federation(clients=5)
    return toys.make_setup(CASES[case][0], data, CASES[case][1]), data


def behind_sockets(case, **how):
    setup, data = make(case)
    executor = socket_nodes.SocketExecutor(make, case, **how)
    made = Experiment(setup, Roster.from_federation(data, setup.model), CASES[case][1], executor)
    return made, executor


def test_the_socket_executor_is_small():
    source = inspect.getsource(socket_nodes.SocketExecutor)
    assert len([line for line in source.splitlines() if line.strip()]) <= 60


@pytest.mark.parametrize("case", ["fedavg", "fedconceptem", "fedconcat", "fedgmm", "apfl"])
def test_nodes_behind_sockets_give_the_same_bits(case):
    algorithm, plan = CASES[case]
    serial = toys.experiment(algorithm, toys.federation(clients=5), plan=plan)
    expected = serial.run(serial.start())
    made, executor = behind_sockets(case)
    try:
        progress = made.run(made.start())
        states = executor.digests()
    finally:
        executor.close()
    assert tree.equal(progress.server, expected.server)
    assert progress.traffic == expected.traffic
    assert [record["local"] for record in made.records] == [
        record["local"] for record in serial.records
    ]
    for id in serial.roster.participants:
        packed = serial.executor.states.get(id) or b""
        assert states[id] == hashlib.sha256(packed).hexdigest()


def test_who_raises_hangs_or_sends_garbage_is_missing_by_name():
    made, executor = behind_sockets("unreliable", garbler="client-3", timeout=3.0)
    made.turns = made.turns[:1]
    try:
        progress = made.start()
        made.play(made.turns[0], progress)
    finally:
        executor.close()
    assert progress.missing == {"failed": 2, "timed out": 1}
    where = {"stage": "train", "step": "train", "round": 1}
    raised, late, garbled = progress.failures
    assert raised == {
        "client": "client-1", **where, "reason": "failed", "detail": "ValueError: bad luck"
    }  # fmt: skip
    assert late == {
        "client": "client-2", **where, "reason": "timed out", "detail": "no answer in time"
    }  # fmt: skip
    assert (garbled["client"], garbled["reason"]) == ("client-3", "failed")


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_failing_client_is_skipped_if_asked_for(executor):
    plan = Plan(rounds=2, on_error="skip")
    made = toys.experiment(toys.Faulty(), plan=plan, executor=executor)
    summary = toys.result(made)
    assert summary["missing"] == {"failed": 2}
    assert summary["failures"][0] == {
        "client": "client-2",
        "stage": "train",
        "step": "train",
        "round": 2,
        "reason": "failed",
        "detail": "ValueError: bad luck",
    }
    without = toys.experiment(toys.Faulty(how="nan"), plan=plan)
    assert summary["parameters_sha256"] == toys.result(without)["parameters_sha256"]


def test_a_failing_client_ends_the_run_by_default():
    with pytest.raises(ClientStepError, match="client 'client-2', .* ValueError: bad luck"):
        toys.result(toys.experiment(toys.Faulty()))


def test_too_few_replies_void_the_round():
    plan = Plan(rounds=3, min_replies=6, on_error="skip")
    made = toys.experiment(toys.Faulty(), plan=plan)
    progress = made.run(made.start())
    assert tree.equal(progress.server["params"], made.setup.model.init(0))
    with pytest.raises(SettingError, match="min_replies must be <= 3, the clients of a round"):
        toys.experiment(FedAvg(), plan=Plan(cohort=3, min_replies=4))


def test_orders_and_outcomes_are_bytes():
    order = Order(
        "train", "stage", 3, 2, 1, ("a", "ä"), ("a",), {0: torch.ones(2)}, None, "total", {"x": [1]}
    )
    assert tree.equal(Order.from_bytes(order.to_bytes()), order)
    outcome = Outcome({"a": None}, {"a": 3}, {"ä": Missing("failed", "why")})
    assert Outcome.from_bytes(outcome.to_bytes()) == outcome
    with pytest.raises(FormatError, match="must be of kind Order, got Outcome"):
        Order.from_bytes(outcome.to_bytes())


@pytest.mark.parametrize("name", ["predict", "init_server", "__class__", "nothing", "ifca.train"])
def test_only_client_steps_can_be_asked_for(name):
    with pytest.raises(SettingError, match="must name a client step of the method"):
        find_step(FedAvg(), name)


def test_the_steps_of_a_part_have_its_name():
    method = FedConcat(strategy="ifca", clusters=2)
    assert find_step(method, "ifca.train").__self__ == method.parts()["ifca"]
    assert find_step(method, "train").__self__ == method


def test_a_step_cannot_take_the_name_of_an_evaluation():
    @dataclass(frozen=True)
    class Rival(FedAvg):
        @client_step
        def evaluate(self, client, state, message):
            return state, Total(0.0)

    with pytest.raises(SettingError, match="name of one of the engine's, got 'evaluate'"):
        toys.experiment(Rival())


def test_the_server_holds_neither_data_nor_states():
    made = toys.experiment(APFL())
    del made.federation  # what the tests have added
    held = [made.setup, made.roster, made.plan, *made.start().__dict__.values()]
    examples = toys.federation()
    assert not any(
        leaf.shape[:1] == examples.x.shape[:1]
        for thing in held
        for leaf in tree.leaves(list(thing) if isinstance(thing, tuple) else [])
        if isinstance(leaf, torch.Tensor)
    )


# --- secrets --------------------------------------------------------------------------------------


def tables(**plan):
    made = toys.experiment(FedConceptEM(noise=5.0), plan=Plan(rounds=1, **plan))
    return made.run(made.start()).server.totals


def test_noise_comes_from_a_secret_and_not_from_the_seed():
    assert not tree.equal(tables(), tables())
    assert tree.equal(tables(noise_seed=3), tables(noise_seed=3))
    assert not tree.equal(tables(noise_seed=3), tables(noise_seed=4))


def test_without_noise_the_secret_changes_nothing():
    one, other = (toys.digests(toys.experiment(FedConceptEM(), plan=Plan(rounds=2))) for _ in "ab")
    assert one == other


def test_a_node_without_a_secret_draws_no_noise():
    client = toys.client(toys.federation().splits("client-0").train, None)
    with pytest.raises(SettingError, match="must have a secret to draw 'x', got none"):
        client.private_random("x")


def test_clients_reply_means_around_what_they_received():
    setup, data = make("fedavg")
    message = setup.model.init(0)
    client = toys.client(data.splits("client-0").train, setup.model)
    _, reply = FedAvg().train(client, {}, message)
    assert isinstance(reply, Mean)
    assert reply.around is message
