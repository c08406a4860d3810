"""The line between server and clients: what crosses it is data, and who is missing has a reason."""

import hashlib
import inspect
import shutil
import time
from dataclasses import dataclass, replace

import pytest
import torch

import socket_nodes
import toys
from concordfl import ClientStepError, FormatError, Mean, SettingError, Total, client_step, tree
from concordfl.algorithms import APFL, FedAvg, FedConcat, FedConceptEM, FedGMM
from concordfl.core import Missing, Order, Outcome
from concordfl.core.algorithm import find_step
from concordfl.data import Federation
from concordfl.engine.client_states import ClientStates, MemoryStates
from concordfl.engine.experiment import Experiment
from concordfl.engine.node import Node
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
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
    made = Experiment(setup, Roster.from_federation(data, setup), CASES[case][1], executor)
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
    examples = made.federation
    del made.federation  # what the tests have added
    progress = made.run(made.start())
    held = {**vars(made), **vars(progress)}
    del held["executor"]  # it stands for the clients
    seen = list(everything_in(held))
    assert any(thing is made.roster for thing in seen)
    assert any(isinstance(thing, torch.Tensor) for thing in seen)
    private = {examples.x.untyped_storage().data_ptr(), examples.y.untyped_storage().data_ptr()}
    for thing in seen:
        assert not isinstance(thing, (Federation, ClientStates))
        if isinstance(thing, torch.Tensor):
            assert thing.untyped_storage().data_ptr() not in private


def everything_in(thing, seen=None):
    """All objects that can be reached through fields, entries and closures."""
    seen = {} if seen is None else seen
    if id(thing) in seen or isinstance(thing, (str, bytes, int, float, type(None), type)):
        return
    seen[id(thing)] = thing
    yield thing
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, (list, tuple, set, frozenset)):
        parts = thing
    else:
        parts = [*getattr(thing, "__dict__", {}).values(), *closure(thing)]
    for part in parts:
        yield from everything_in(part, seen)


def closure(thing):
    cells = getattr(thing, "__closure__", None) or ()
    return [cell.cell_contents for cell in cells]


# --- what a peer may send -------------------------------------------------------------------------

ASKED = Order("train", "s", 1, 0, 1, ("a", "b"), wanted="replies")
GOOD = Outcome({"a": 1}, {"a": 8}, {"b": Missing("failed", "why")})


@pytest.mark.parametrize(
    "bad",
    [
        GOOD._replace(sent=7),
        GOOD._replace(missing=None),
        GOOD._replace(sent={"a": "many"}),
        GOOD._replace(sent={"a": 8, "c": 8}),  # a client that was not asked
        GOOD._replace(missing={}),
        GOOD._replace(missing={"a": Missing("failed"), "b": Missing("failed")}),  # twice
        GOOD._replace(missing={"b": Missing("tired")}),
        GOOD._replace(missing={"b": "failed"}),
        GOOD._replace(value={"b": 1}),  # a reply in another's name
        GOOD._replace(value=3),
    ],
)
def test_an_outcome_that_is_none_of_the_order_is_refused(bad):
    assert GOOD.check(ASKED) is GOOD
    with pytest.raises(FormatError):
        bad.check(ASKED)


@pytest.mark.parametrize(
    "bad",
    [
        ASKED._replace(clients=5),
        ASKED._replace(clients=(1, 2)),
        ASKED._replace(step=None),
        ASKED._replace(stage_round="0"),
        ASKED._replace(each={"a": 1}),
        ASKED._replace(wanted="everything"),
        ASKED._replace(options=None),
    ],
)
def test_an_order_that_is_none_is_refused(bad):
    assert ASKED.check() is ASKED
    with pytest.raises(FormatError):
        bad.check()


@dataclass(frozen=True)
class Misfit(FedAvg):
    """One client replies a model of another shape."""

    @client_step
    def train(self, client, state, message):
        state, reply = super().train(client, state, message)
        if client.id == "client-3":
            reply = replace(reply, value={name: v[..., :1] for name, v in reply.value.items()})
        return state, reply


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_reply_that_does_not_fit_is_that_clients_failure(executor):
    made = toys.experiment(Misfit(), plan=Plan(rounds=1), executor=executor)
    with pytest.raises(ClientStepError, match="stage 'train', step 'train', round 1.*must fit"):
        toys.result(made)


def test_a_reply_that_does_not_fit_is_skipped_if_asked_for():
    summary = toys.result(toys.experiment(Misfit(), plan=Plan(rounds=1, on_error="skip")))
    assert summary["missing"] == {"failed": 1}
    assert summary["failures"][0]["client"] == "client-3"


@dataclass(frozen=True)
class Hopeless(FedAvg):
    @client_step
    def train(self, client, state, message):
        raise ValueError("never works")


def test_if_every_client_fails_the_run_says_so():
    made = toys.experiment(Hopeless(), plan=Plan(rounds=3, on_error="skip"))
    with pytest.raises(ClientStepError, match="failures from all of 6 clients, .* never works"):
        toys.result(made)


def test_a_real_node_keeps_the_text_of_an_exception_to_itself():
    setup, data = make("fedavg")
    setup = replace(setup, algorithm=Hopeless(), on_error="skip")
    order = Order("train", "train", 1, 0, 1, ("client-0",), broadcast=setup.model.init(0))
    told = Node(setup, data, MemoryStates(), 0).perform(order).missing["client-0"]
    silent = Node(setup, data, MemoryStates(), 0, explains=False).perform(order)
    assert told.detail == "ValueError: never works"
    assert silent.missing["client-0"].detail == "ValueError"


def test_failures_are_recorded_once_and_void_rounds_are_counted():
    plan = Plan(rounds=3, evaluate_every=1, on_error="skip")
    made = toys.experiment(toys.Faulty(), plan=plan)
    summary = toys.result(made)
    assert [len(record.get("failures", [])) for record in made.records] == [0, 1, 1, 1]
    assert len(summary["failures"]) == 3
    assert summary["void_rounds"] == 0
    plan = Plan(rounds=3, min_replies=6, on_error="skip")
    assert toys.result(toys.experiment(toys.Faulty(), plan=plan))["void_rounds"] == 3


def test_a_broken_off_round_leaves_nothing_behind():
    made = toys.experiment(toys.Toy(), plan=Plan(rounds=2))
    perform, orders = made.executor.perform, []

    def break_off(order):
        orders.append(order)
        if len(orders) == 3:
            raise KeyboardInterrupt
        return perform(order)

    made.executor.perform = break_off
    progress = made.start()
    with pytest.raises(KeyboardInterrupt):
        made.run(progress)
    made.run(progress)
    straight = toys.experiment(toys.Toy(), plan=Plan(rounds=2))
    straight.run(straight.start())
    assert made.executor.states_digest() == straight.executor.states_digest()


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


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_resumed_run_draws_the_same_noise(tmp_path, executor):
    """The secret is kept with the clients' states: two copies of a run end alike."""
    plan = Plan(rounds=3, checkpoint_seconds=0)

    def stop(event):
        raise KeyboardInterrupt

    with RunFolder.create(tmp_path / "a", "") as folder:
        made = toys.experiment(FedConceptEM(noise=5.0), plan=plan, folder=folder)
        made.observe = stop
        with pytest.raises(KeyboardInterrupt):
            made.run(made.restore())
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    ends = []
    for name, where in (("a", "serial"), ("b", executor)):
        with RunFolder.open(tmp_path / name) as folder:
            method = FedConceptEM(noise=5.0)
            ends.append(
                toys.digests(toys.experiment(method, plan=plan, folder=folder, executor=where))
            )
    assert ends[0] == ends[1]


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
