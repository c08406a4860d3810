"""Nodes elsewhere: the same bits as one process, whatever happens to them."""

import shutil
from dataclasses import replace

import pytest
import torch

import toys
from concordfl import ClientStepError, SettingError, tree
from concordfl.algorithms import APFL, FedAvg
from concordfl.core import Order, Outcome
from concordfl.diagnosis.method import Diagnose
from concordfl.engine.files import to_json
from concordfl.engine.flower.client_store import ClientStore
from concordfl.engine.flower.host import respond
from concordfl.engine.flower.meeting import Lost
from concordfl.engine.flower.parcel import Answer, Request
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
from fake_carrier import RUN_ID, FakeTime, federate, nodes, respond_as

PLAN = Plan(rounds=3, cohort=4, evaluate_every=2, dropout=0.1, noise_seed=0)
METHODS = ("apfl", "fedavg", "fedconcat", "fedconceptem", "fedgmm", "fedvc", "ifca")


def straight(method, data, plan):
    """The same run in one process, without held-out clients."""
    made = toys.experiment(method, data, plan=plan)
    made.roster = made.roster._replace(held_out=())
    return made, made.run(made.start())


def end_of(made):
    progress = made.run(made.restore())
    return tree.digest(progress.server), made.executor.states_digest()


@pytest.fixture
def data():
    return toys.federation(clients=4)


@pytest.mark.parametrize("name", METHODS)
def test_nodes_elsewhere_give_the_same_bits(tmp_path, name):
    data, method = toys.federation(clients=5), toys.all_methods()[name]
    serial, expected = straight(method, data, PLAN)
    setup = toys.make_setup(method, data, PLAN)
    made = federate(nodes(tmp_path, setup, data), setup, data, PLAN)
    progress = made.run(made.start())
    assert tree.equal(progress.server, expected.server)
    assert progress.traffic == expected.traffic
    assert progress.missing == expected.missing
    assert made.executor.states_digest() == serial.executor.states_digest()
    for ours, theirs in zip(made.records, serial.records, strict=True):
        assert to_json({**ours, "seconds": 0}) == to_json({**theirs, "seconds": 0})


def test_a_diagnosis_of_nodes_elsewhere_is_the_same_to_the_bit(tmp_path):
    data, method, plan = (
        toys.federation(clients=5),
        Diagnose(max_groups=2, signs=19),
        Plan(rounds=1),
    )
    serial, expected = straight(method, data, plan)
    setup = toys.make_setup(method, data, plan)
    made = federate(nodes(tmp_path, setup, data), setup, data, plan)
    progress = made.run(made.start())
    assert tree.equal(progress.server, expected.server)
    assert progress.traffic == expected.traffic
    diagnosis = made.records[-1]["server"]["diagnosis"]
    assert diagnosis == serial.records[-1]["server"]["diagnosis"]
    assert set(diagnosis["clients"]) == set(data.participants)


PRIVATE = ("apfl", "ditto", "fedconceptem", "feddual", "fedrep", "fedvc", "moon")


@pytest.mark.parametrize("name", PRIVATE)
def test_private_states_stay_where_they_are(tmp_path, data, name):
    """No message of the run holds any tensor of a client's state, but what the method says that it
    sends.
    """
    plan, method = Plan(rounds=3, evaluate_every=1), toys.all_methods()[name]
    setup = toys.make_setup(method, data, plan)
    carrier = nodes(tmp_path, setup, data, shares=frozenset({"size"}), secret=None)
    made = federate(carrier, setup, data, plan)
    made.run(made.start())
    private = []
    for id in data.participants:
        store = ClientStore(tmp_path / id, RUN_ID, id)
        kept = tree.unpack(store.read(store.versions()[-1]))
        parts = kept._asdict() if hasattr(kept, "_asdict") else kept
        state = {name: part for name, part in parts.items() if name not in method.public_state}
        private += [leaf for leaf in tree.leaves(state) if isinstance(leaf, torch.Tensor)]
        private_bytes = [store.secret().encode(), data.splits(id).train.x.numpy().tobytes()[:64]]
        for secret in private_bytes:
            assert not any(secret in message for message in carrier.seen)
    large = [leaf.numpy().tobytes() for leaf in private if leaf.numel() > 4]
    assert large
    for content in large:
        assert not any(content in message for message in carrier.seen)
    # What is shared would be found.
    last = next(m for m in reversed(carrier.seen) if isinstance(tree.unpack(m), Request))
    shared = tree.unpack(last).orders[-1].broadcast
    assert all(leaf.numpy().tobytes() in last for leaf in tree.leaves(shared))
    assert made.executor.states_digest() == ""  # which no client has shared


def requests_in(carrier):
    """What was asked for after the introductions."""
    found = (tree.unpack(message) for message in carrier.seen)
    return [one for one in found if isinstance(one, Request) and one.orders]


def test_an_evaluation_goes_with_the_next_order(tmp_path, data):
    """A trip takes long: three rounds that are all evaluated are four trips, not six."""
    plan = Plan(rounds=3, evaluate_every=1)
    serial, _ = straight(APFL(), data, plan)
    setup = toys.make_setup(APFL(), data, plan)
    carrier = nodes(tmp_path, setup, data)
    told = []
    made = federate(carrier, setup, data, plan)
    made.observe = told.append
    made.run(made.start())
    asked = requests_in(carrier)
    for id in data.participants:
        steps = [[one.step for one in r.orders] for r in asked if r.orders[0].clients == (id,)]
        assert steps == [["train"], *2 * [["evaluate", "train"]], ["evaluate"]]
    for ours, theirs in zip(made.records, serial.records, strict=True):
        assert to_json({**ours, "seconds": 0}) == to_json({**theirs, "seconds": 0})
    assert [one.record["round"] for one in told if one.record] == [1, 2, 3]


@pytest.mark.parametrize("stopped_at", [1, 2])
def test_an_evaluation_that_was_due_is_made_up_for(tmp_path, data, stopped_at):
    """The server ends between a round and the order that its evaluation would have gone with."""
    plan = Plan(rounds=3, evaluate_every=1, checkpoint_seconds=0)
    serial, _ = straight(APFL(), data, plan)
    setup = toys.make_setup(APFL(), data, plan)
    carrier = nodes(tmp_path / "nodes", setup, data)
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = federate(carrier, setup, data, plan, folder)

        def stop(event):
            if event.turn.round == stopped_at and event.record is None:
                raise KeyboardInterrupt

        made.observe = stop
        with pytest.raises(KeyboardInterrupt):
            made.run(made.start())
        resumed = federate(carrier, setup, data, plan, folder)
        resumed.run(resumed.restore())
        assert len(resumed.records) == 3
        for ours, theirs in zip(resumed.records, serial.records, strict=True):
            assert to_json({**ours, "seconds": 0}) == to_json({**theirs, "seconds": 0})


def test_who_hangs_refuses_or_sends_garbage_is_missing_by_name(tmp_path, data):
    plan = Plan(rounds=1, on_error="skip", evaluate_clients=1)
    setup = toys.make_setup(FedAvg(), data, plan)
    carrier = nodes(tmp_path, setup, data)
    made = federate(carrier, setup, data, plan)
    carrier.respond[1] = lambda data: None
    carrier.respond[2] = lambda data: b"garbage"
    carrier.respond[3] = lambda data: Lost("CLIENT_APP_CRASHED", is_gone=False)
    progress = made.start()
    made.play(made.turns[0], progress)
    assert progress.missing == {"timed out": 1, "failed": 2}
    details = {failure["client"]: failure["detail"] for failure in progress.failures}
    assert details["client-0"] == "no answer within 10 s"
    assert details["client-1"].startswith("bytes must be a packed tree")
    assert details["client-2"] == "CLIENT_APP_CRASHED"


def forge(respond, change):
    """A node whose outcomes are changed."""

    def changed(data):
        answer = Answer.from_bytes(respond(data))
        if answer.outcome is None:
            return answer.to_bytes()
        return answer._replace(outcome=change(answer.outcome)).to_bytes()

    return changed


@pytest.mark.parametrize(
    ("change", "reason", "detail"),
    [
        (lambda out: Outcome({}, {"client-1": 8}, {}), "failed", "must speak of 1 clients"),
        (lambda out: out._replace(value={"params": None}), "failed", "replies must fit"),
        (lambda out: out._replace(value=torch.ones(3)), "failed", "replies must fit"),
        (lambda out: tree.map(lambda leaf: leaf * float("nan"), out), "refused", "NaN or"),
    ],
)
def test_a_false_reply_is_that_clients_alone(tmp_path, data, change, reason, detail):
    plan = Plan(rounds=1, on_error="skip")
    setup = toys.make_setup(FedAvg(), data, plan)
    carrier = nodes(tmp_path, setup, data)
    made = federate(carrier, setup, data, plan)
    carrier.respond[4] = forge(carrier.respond[4], change)
    progress = made.start()
    if reason == "refused":
        carrier.respond[4] = forge(
            respond_as("client-3", setup, data, tmp_path),
            lambda out: out._replace(value=tree.scale(out.value, float("nan"))),
        )
    made.play(made.turns[0], progress)
    (failure,) = progress.failures
    assert (failure["client"], failure["reason"]) == ("client-3", reason)
    assert detail in failure["detail"]
    assert tree.is_finite(progress.server)


def test_by_default_a_failing_node_ends_the_run(tmp_path, data):
    setup = toys.make_setup(FedAvg(), data, Plan(rounds=1))
    carrier = nodes(tmp_path, setup, data)
    made = federate(carrier, setup, data, Plan(rounds=1))
    carrier.respond[2] = lambda data: b""
    with pytest.raises(ClientStepError, match="client 'client-1', .* packed tree"):
        made.run(made.start())


def test_a_restarted_node_finds_its_state_again(tmp_path, data):
    """A node that vanishes in mid-order and comes back under another number changes no bit."""
    plan = Plan(rounds=3)
    serial, expected = straight(APFL(), data, plan)
    setup = toys.make_setup(APFL(), data, plan)
    carrier = nodes(tmp_path, setup, data)
    respond, orders = carrier.respond[1], []

    def vanish(data):
        orders.append(data)
        if len(orders) == 3:  # an introduction, a round, and in the middle of the second
            carrier.there.remove(1)
            return None
        return respond(data)

    def come_back(seconds):
        if seconds == 4:
            carrier.respond[9] = respond_as("client-0", setup, data, tmp_path)
            carrier.there.add(9)

    carrier.respond[1] = vanish
    time = FakeTime(come_back)
    made = federate(carrier, setup, data, plan, time=time)
    progress = made.run(made.start())
    assert 9 in carrier.there
    assert progress.missing == {}
    assert tree.equal(progress.server, expected.server)
    assert made.executor.states_digest() == serial.executor.states_digest()


def test_a_client_that_stays_away_is_waited_for_once(tmp_path, data):
    plan = Plan(rounds=4, evaluate_every=10)
    setup = toys.make_setup(FedAvg(), data, plan)
    carrier = nodes(tmp_path, setup, data)
    time = FakeTime()
    made = federate(carrier, setup, data, plan, time=time, timeout=100.0)
    carrier.there.remove(1)
    progress = made.run(made.start())
    assert progress.missing == {"timed out": 4, "timed out in evaluation": 1}
    assert {failure["detail"] for failure in progress.failures} == {"its node is not there"}
    assert time.seconds == 100.0


def test_who_takes_anothers_name_is_not_asked(tmp_path, data):
    """For as long as the first one is there; with other data it is not the same client."""
    setup = toys.make_setup(FedAvg(), data, Plan(rounds=1))
    carrier = nodes(tmp_path, setup, data)
    made = federate(carrier, setup, data, Plan(rounds=1))
    expected = end_of(toys.experiment(FedAvg(), data, plan=Plan(rounds=1)))
    carrier.respond[7] = respond_as("client-0", setup, data, tmp_path / "other")
    carrier.there.add(7)
    assert end_of(made) == expected
    assert not (tmp_path / "other").exists()
    carrier.there.remove(1)
    others = toys.federation(clients=4, examples=30)
    carrier.respond[7] = respond_as("client-0", setup, others, tmp_path / "other")
    made = federate(carrier, setup, data, Plan(rounds=1))
    made.executor.roster = {**made.executor.roster, "client-0": made.executor.roster["client-1"]}
    progress = made.start()
    made.play(made.turns[0], progress)
    assert progress.missing == {"timed out": 1}


def test_two_nodes_of_one_name_are_refused_before_the_start(tmp_path, data):
    setup = toys.make_setup(FedAvg(), data, Plan(rounds=1))
    carrier = nodes(tmp_path, setup, data)
    carrier.respond[7] = carrier.respond[1]
    carrier.there.add(7)
    with pytest.raises(SettingError, match="two nodes called 'client-0'"):
        federate(carrier, setup, data, Plan(rounds=1))


@pytest.mark.parametrize("damaged", [False, True])
@pytest.mark.parametrize("name", ["apfl", "fedconcat"])
def test_a_resumed_server_goes_on_to_the_same_bits(tmp_path, data, name, damaged):
    """Also at an older round, where its newest checkpoint is damaged, and with new nodes."""
    method, plan = toys.all_methods()[name], Plan(rounds=4, checkpoint_seconds=0)
    serial, expected = straight(method, data, plan)
    setup = toys.make_setup(method, data, plan)
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = federate(nodes(tmp_path, setup, data), setup, data, plan, folder)
        made.run(made.restore(), until=len(made.turns) - 1)
    if damaged:
        newest = max(folder.checkpoints.glob("server-*.bin"))
        newest.write_bytes(b"")
    with RunFolder.open(tmp_path / "run") as folder:
        made = federate(nodes(tmp_path, setup, data), setup, data, plan, folder)
        assert end_of(made) == (tree.digest(expected.server), serial.executor.states_digest())
        assert len(made.problems) == damaged


def test_a_client_keeps_no_more_versions_than_may_be_needed(tmp_path, data):
    plan = Plan(rounds=6, checkpoint_seconds=0, keep_checkpoints=2)
    setup = toys.make_setup(APFL(), data, plan)
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = federate(nodes(tmp_path, setup, data), setup, data, plan, folder)
        made.run(made.restore())
    for id in data.participants:
        assert len(ClientStore(tmp_path / id, RUN_ID, id).versions()) == 3


def test_a_client_that_lost_its_state_says_so(tmp_path, data):
    plan = Plan(rounds=2, on_error="skip")
    setup = toys.make_setup(APFL(), data, plan)
    made = federate(nodes(tmp_path, setup, data), setup, data, plan)
    progress = made.start()
    made.play(made.turns[0], progress)
    shutil.rmtree(tmp_path / "client-2")
    made.play(made.turns[1], progress)
    (failure,) = progress.failures
    assert failure["client"] == "client-2"
    assert "must have version" in failure["detail"]


def test_a_client_that_lost_a_publication_is_sent_it_again(tmp_path, data):
    method, plan = toys.all_methods()["fedconcat"], Plan(rounds=3)
    _, expected = straight(method, data, plan)
    setup = toys.make_setup(method, data, plan)
    carrier = nodes(tmp_path, setup, data)
    lost = []

    def lose(data):
        for path in tmp_path.glob("client-1/*/published/*"):
            path.unlink()
            lost.append(path)
        return respond_1(data)

    respond_1, carrier.respond[2] = carrier.respond[2], lose
    made = federate(carrier, setup, data, plan)
    progress = made.run(made.start())
    assert lost
    assert tree.equal(progress.server, expected.server)


# --- what a node refuses --------------------------------------------------------------------------


def ask(tmp_path, data, change=lambda request: request, **order):
    setup = toys.make_setup(FedAvg(), data, Plan())
    objective = (setup.objective.kind, setup.objective.to_table())
    asked = Order("train", "train", 1, 0, 1, ("client-0",), broadcast=setup.model.init(0))
    request = Request(RUN_ID, "toy", objective, order=asked._replace(**order), version=1)
    respond = respond_as("client-0", setup, data, tmp_path)
    return Answer.from_bytes(respond(change(request).to_bytes())).check()


def test_a_node_performs_its_methods_steps_for_itself_alone(tmp_path, data):
    assert "client-0" in ask(tmp_path, data).outcome.sent
    for step in ("predict", "nothing", "__class__"):
        assert ask(tmp_path, data, step=step).outcome.missing["client-0"].detail == "SettingError"
    assert "for client 'client-0' alone" in ask(tmp_path, data, clients=("client-1",)).refusal
    assert "keep its own model" in ask(tmp_path, data, step="add_personal_model").refusal
    before = ask(tmp_path, data, lambda request: request._replace(evaluation=request.order))
    assert "must be an evaluation" in before.refusal


@pytest.mark.parametrize(
    "change",
    [
        lambda request: request._replace(run_id="../../../etc"),
        lambda request: request._replace(base="1"),
        lambda request: request._replace(version=-1),
        lambda request: request._replace(keep=("x",)),
        lambda request: request._replace(published={"a": "../secret"}),
        lambda request: request._replace(enclosed={"a" * 64: torch.ones(3)}),
        lambda request: request._replace(order=Outcome()),
        lambda request: request._replace(evaluation=Outcome()),
        lambda request: request._replace(farewell={}),
        lambda request: request._replace(objective="regression"),
    ],
)
def test_a_request_that_is_none_is_refused(tmp_path, data, change):
    answer = ask(tmp_path, data, change)
    assert answer.refusal == "FormatError: the client's log says why"
    assert not list(tmp_path.iterdir())


def test_a_publication_must_be_what_it_is_called(tmp_path, data):
    false = {"0" * 64: torch.zeros(3, dtype=torch.uint8)}
    assert "FormatError" in ask(tmp_path, data, lambda r: r._replace(enclosed=false)).refusal


def test_a_run_goes_on_with_what_it_began_with(tmp_path, data):
    assert not ask(tmp_path, data).refusal
    assert "the config that" in ask(tmp_path, data, lambda r: r._replace(config="x")).refusal
    others = replace(data, y=data.y.flip(0))
    assert "the data that" in ask(tmp_path, others).refusal


def test_a_damaged_state_is_no_state(tmp_path, data):
    setup = toys.make_setup(APFL(), data, Plan(rounds=2, on_error="skip"))
    made = federate(nodes(tmp_path, setup, data), setup, data, Plan(rounds=2, on_error="skip"))
    progress = made.start()
    made.play(made.turns[0], progress)
    (file,) = tmp_path.glob("client-1/*/states/*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    made.play(made.turns[1], progress)
    (failure,) = progress.failures
    assert failure["detail"] == "FormatError: the client's log says why"


def test_what_goes_wrong_at_a_client_stays_there(caplog):
    def load(request):
        raise ValueError("patient 7 has no age")

    request = Request(RUN_ID, "").to_bytes()
    answer = Answer.from_bytes(respond(request, load))
    assert answer.refusal == "ValueError: the client's log says why"
    assert "patient 7" in caplog.text
