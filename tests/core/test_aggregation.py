"""How replies are added, and the steps that a server takes from the means of them."""

import itertools
import json
from dataclasses import dataclass, replace

import pytest
import torch

import toys
from concordfl import Aggregation, Chosen, Client, Mean, SettingError, Total, client_step, tree
from concordfl.algorithms import IFCA, FedAvg, FedConcat
from concordfl.core import Classification, Outcome, ServerStep
from concordfl.core.aggregation import Averaged
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder

AVERAGING = {name: method for name, method in toys.all_methods().items() if method.averages}
STEPPED = Aggregation(server_lr=0.5, server_momentum=0.9)


def server_of(method, aggregation=None, rounds=2, **more):
    made = toys.experiment(
        method, plan=Plan(rounds=rounds, evaluate_every=rounds), aggregation=aggregation, **more
    )
    return made.run(made.start()).server


# --- what a reply is made of ----------------------------------------------------------------------


def test_a_mean_is_scaled_then_added_then_divided():
    """To the bit, whatever the weights: nothing is reordered on the way."""
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(50, generator=generator) for _ in range(3)]
    weights = [7, 13.5, 29]
    sent = [
        Aggregation().outgoing(Mean({"w": value}, weight, around={"w": values[0]}), "total")
        for value, weight in zip(values, weights, strict=True)
    ]
    for reply, value, weight in zip(sent, values, weights, strict=True):
        assert type(reply) is Averaged
        assert torch.equal(reply.total["w"], value * float(weight))
        assert reply.weight == weight
        assert isinstance(reply.weight, float)
    total = Aggregation().add(Aggregation().add(sent[0], sent[1]), sent[2])
    added = (values[0] * 7.0 + values[1] * 13.5) + values[2] * 29.0
    assert torch.equal(total.mean()["w"], added / 49.5)


def test_what_travels_survives_bytes():
    sent = toys.sent({0: Mean({"w": torch.ones(2)}, 3, around={"w": torch.zeros(2)})})
    again = Outcome.from_bytes(Outcome(sent, {"a": 16}, {}).to_bytes()).value[0]
    assert type(again) is Averaged
    assert torch.equal(again.mean()["w"], torch.ones(2))


def test_totals_and_containers_are_left_as_they_are():
    table = torch.arange(3.0)
    sent = toys.sent({"sums": Total({"s": table}), "pair": (Total(1), [Total(2.0)]), "none": None})
    assert sent["sums"]["s"] is table
    assert sent["pair"] == (1, [2.0])
    assert sent["none"] is None
    assert toys.sent({}) == {}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (torch.ones(1), "made of Mean and Total, got a bare Tensor$"),
        ({"a": Total(1), "b": {3: torch.ones(1)}}, "got a bare Tensor at 'b.3'$"),
        ({"a": [Total(1), 2.0]}, "got a bare float at 'a.1'$"),
        (Chosen({0: {"w": 1}}, among={0: None}), "got a bare int at '0.w'$"),
    ],
)
def test_a_bare_leaf_of_a_reply_that_is_added_is_refused(reply, message):
    with pytest.raises(TypeError, match=message):
        Aggregation().outgoing(reply, "total")


def test_individual_replies_need_no_declaration():
    bare = {"shares": torch.ones(2), "mean": Mean(torch.ones(1), 2, around=None)}
    sent = Aggregation().outgoing(bare, "replies")
    assert sent["shares"] is bare["shares"]
    assert sent["mean"].weight == 2  # but may have one
    replies = {}

    @dataclass(frozen=True)
    class Telling(FedAvg):
        @client_step
        def tell(self, client, state, message):
            return state, client.label_counts()

        def round(self, server, cohort):
            replies.update(cohort.run(self.tell))
            return super().round(server, cohort)

    server_of(Telling(), rounds=1)
    data = toys.federation()
    assert {id: int(counts.sum()) for id, counts in replies.items()} == {
        id: data.size(id) for id in data.participants
    }


def test_a_method_that_forgets_to_declare_is_told_so():
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        @client_step
        def train(self, client, state, message):
            return state, {"model": message}

    with pytest.raises(Exception, match="step 'train', .* got a bare Tensor at 'model.*weight'"):
        server_of(Forgetful())


# --- the server's step ----------------------------------------------------------------------------


def local_models(made, params, round):
    """What every participant makes of `params`, by its number of examples."""
    data = made.federation
    for id in data.participants:
        client = Client(
            id,
            data.splits(id).train,
            objective=Classification(3),
            model=made.setup.model,
            training=made.setup.training,
            seed=0,
            round=round,
        )
        yield client.size, client.fit(params)


def closed_form(made, rounds, rate, momentum):
    """v ← β v + (mean - w), w ← w + η v, in doubles; buffers are the mean."""
    params = made.setup.model.init(0)
    velocity = {name: torch.zeros_like(value).double() for name, value in params.items()}
    for round in range(rounds):
        trained = list(local_models(made, params, round))
        whole = sum(size for size, _ in trained)
        after = {}
        for name, old in params.items():
            mean = sum(size * model[name].double() for size, model in trained) / whole
            velocity[name] = momentum * velocity[name] + (mean - old.double())
            moved = old.double() + rate * velocity[name]
            is_buffer = name in made.setup.model.buffer_names
            after[name] = (mean if is_buffer else moved).float()
        params = after
    return params


@pytest.mark.parametrize("network", ["mlp", "toys:batch_norm_net"])
@pytest.mark.parametrize(("rate", "momentum"), [(0.5, 0.0), (1.5, 0.0), (1.0, 0.9), (0.3, 0.5)])
@pytest.mark.parametrize("rounds", [2, 3])
def test_the_step_is_the_closed_form(rounds, rate, momentum, network):
    """FedAvg with η_g, and FedAvgM's velocity; running statistics are averaged."""
    made = toys.experiment(
        FedAvg(),
        plan=Plan(rounds=rounds, evaluate_every=rounds),
        aggregation=Aggregation(server_lr=rate, server_momentum=momentum),
        network=network,
    )
    server = made.run(made.start()).server
    expected = closed_form(made, rounds, rate, momentum)
    plain = closed_form(made, rounds, 1.0, 0.0)
    assert set(server) == set(expected)
    for name, value in expected.items():
        assert torch.allclose(server[name], value, atol=2e-5), name
    assert not all(torch.allclose(server[name], plain[name], atol=1e-3) for name in plain)


def test_running_statistics_are_averaged_and_not_stepped():
    buffers = ("encoder.1.running_mean", "encoder.1.running_var")
    network = "toys:batch_norm_net"
    plain, stepped = (
        server_of(FedAvg(), aggregation, rounds=1, network=network)
        for aggregation in (Aggregation(), STEPPED)
    )
    start = toys.model_for(FedAvg(), toys.federation(), network).init(0)
    for name, value in plain.items():
        if name in buffers:
            assert torch.equal(stepped[name], value)
        else:
            assert torch.allclose(stepped[name], (start[name] + value) / 2, atol=1e-6)


def test_a_rate_of_one_without_momentum_changes_no_bit():
    """Two clients, so that there is one addition: exactly scale, add, divide."""
    data = toys.federation(clients=2)
    settings = Aggregation.from_table({"server_lr": 1.0, "server_momentum": 0.0}, "aggregation")
    made = toys.experiment(
        FedAvg(), data, plan=Plan(rounds=3, evaluate_every=3), aggregation=settings
    )
    server, params = made.run(made.start()).server, made.setup.model.init(0)
    for round in range(3):
        (m, first), (n, second) = local_models(made, params, round)
        params = {
            name: (first[name] * float(m) + second[name] * float(n)) / float(m + n)
            for name in params
        }
    assert tree.equal(server, params)


def test_a_total_of_weight_zero_is_not_stepped():
    step = ServerStep(STEPPED, {}, ())
    total = step.incoming({"m": Averaged({"w": torch.zeros(2)}, 0.0)}, "train")["m"]
    before = {"w": torch.ones(2)}
    assert total.mean(otherwise=before) is before
    assert (step.count, step.memory) == (1, {})  # it was taken, and left alone
    with pytest.raises(SettingError, match=r"averaged around: .* `mean\(otherwise=...\)`"):
        step.incoming(Averaged({"w": torch.ones(2)}, 1.0), "train").mean()


def test_rows_that_nobody_counts_in_are_not_moved():
    step = ServerStep(STEPPED, {}, ())
    sent = Aggregation().outgoing(
        Mean({"w": torch.full((2, 3), 5.0)}, torch.tensor([0.0, 2.0]), around=None), "train"
    )
    before = {"w": torch.ones(2, 3)}
    after = step.incoming({"m": sent}, "train")["m"].mean(otherwise=before)
    assert torch.equal(after["w"][0], before["w"][0])
    assert torch.equal(after["w"][1], torch.full((3,), 1 + 0.5 * (5 - 1.0)))


def test_means_of_different_names_have_different_momentum():
    step, before = ServerStep(Aggregation(server_momentum=0.5), {}, ()), torch.zeros(1)
    for _ in range(2):
        total = {0: Averaged(torch.ones(1), 1.0), 1: Averaged(torch.full((1,), 3.0), 1.0)}
        moved = {k: part.mean(before) for k, part in step.incoming(total, "train").items()}
    assert {k: float(value) for k, value in moved.items()} == {0: 1.5, 1: 4.5}
    assert set(step.memory) == {"train.0", "train.1"}


@pytest.mark.parametrize("name", AVERAGING)
def test_every_method_that_averages_takes_a_server_step(name):
    data = toys.federation(clients=4, examples=12)
    plain, half, momentum = (
        server_of(AVERAGING[name], aggregation, data=data)
        for aggregation in (
            None,
            Aggregation(server_lr=0.5),
            Aggregation(server_lr=0.5, server_momentum=0.5),
        )
    )
    assert tree.is_finite(half)
    assert tree.is_finite(momentum)
    assert not tree.equal(plain, half)
    assert not tree.equal(half, momentum)


@pytest.mark.parametrize("strategy", ["ifca", "fesem", "fedsoft"])
def test_so_do_other_clusterings_of_fedconcat(strategy):
    method = FedConcat(strategy=strategy, clusters=2, encoder_rounds=2, head_rounds=2)
    plain, half = (server_of(method, a) for a in (None, Aggregation(server_lr=0.5)))
    assert tree.is_finite(half)
    assert not tree.equal(plain.models, half.models)
    assert not tree.equal(plain.head, half.head)


@pytest.mark.parametrize("name", ["local", "fedgmm-unsupervised"])
@pytest.mark.parametrize("option", [{"server_lr": 0.5}, {"server_momentum": 0.5}])
def test_a_method_without_means_refuses_them(name, option):
    method = toys.all_methods()[name]
    with pytest.raises(SettingError) as refused:
        server_of(method, Aggregation(**option))
    rule = (
        "aggregation.server_lr and server_momentum need a method whose new models are means of "
        "the clients'"
    )
    assert str(refused.value) == f"{rule}, got {type(method).__name__}"


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [("server_lr", 0.0, "> 0"), ("server_momentum", 1.0, "< 1"), ("server_momentum", -0.1, ">= 0")],
)
def test_bad_options_are_refused(name, value, rule):
    with pytest.raises(SettingError, match=f"^aggregation.{name} must be {rule}, got {value}$"):
        Aggregation.from_table({name: value}, "aggregation")


# --- momentum is part of the run ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "cfl"])
def test_executors_agree_with_momentum(name):
    made = {
        executor: toys.experiment(
            AVERAGING[name], plan=Plan(rounds=3), executor=executor, aggregation=STEPPED
        )
        for executor in ("serial", "processes")
    }
    serial, processes = (toys.digests(one) for one in made.values())
    assert serial == processes
    assert serial != toys.digests(toys.experiment(AVERAGING[name], plan=Plan(rounds=3)))


@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_momentum_is_kept_by_a_checkpoint(name, tmp_path):
    """Stopping after every round and going on is a straight run."""
    plan = Plan(rounds=4, evaluate_every=4, checkpoint_seconds=0)
    straight = toys.digests(toys.experiment(AVERAGING[name], plan=plan, aggregation=STEPPED))

    def stop(event):
        raise KeyboardInterrupt

    with RunFolder.create(tmp_path / "run", "") as folder:
        for round in itertools.count():
            made = toys.experiment(AVERAGING[name], plan=plan, folder=folder, aggregation=STEPPED)
            made.observe = stop
            progress = made.restore()
            assert progress.round == round
            if progress.round == len(made.turns):
                break
            with pytest.raises(KeyboardInterrupt):
                made.run(progress)
        summary = made.summary(progress)
    assert (summary["parameters_sha256"], summary["states_sha256"]) == straight


def test_a_void_round_leaves_the_momentum_alone():
    made = toys.experiment(FedAvg(), plan=Plan(rounds=3), aggregation=STEPPED)
    progress = made.start()
    made.play(made.turns[0], progress)
    server, momentum = progress.server, dict(progress.momentum)
    assert momentum
    made.plan = replace(made.plan, dropout=1 - 1e-9)
    made.play(made.turns[1], progress)
    assert progress.server is server
    assert tree.equal(progress.momentum, momentum)


# --- choices --------------------------------------------------------------------------------------


def test_a_padded_reply_holds_every_model():
    models = {k: {"w": torch.full((2,), float(k + 1))} for k in range(3)}
    chosen = Chosen({1: Mean({"w": torch.ones(2)}, 4, around=models[1])}, among=models)
    assert set(toys.sent(chosen)) == {1}
    padded = Aggregation(pad_choices=True).outgoing(chosen, "total")
    assert list(padded) == [0, 1, 2]
    assert [reply.weight for reply in padded.values()] == [0, 4, 0]
    assert torch.equal(padded[1].mean()["w"], torch.ones(2))
    assert all(torch.equal(padded[k].total["w"], torch.zeros(2)) for k in (0, 2))


def shapes(reply):
    """All that a reply tells apart from its numbers."""
    return json.dumps({str(k): list(part.total) for k, part in reply.items()})


def test_padding_hides_the_choice_and_changes_no_value():
    servers, uploads, seen = {}, {}, {}
    for pad in (False, True):
        made = toys.experiment(
            IFCA(num_models=3),
            plan=Plan(rounds=3, evaluate_every=3),
            aggregation=Aggregation(pad_choices=pad),
        )
        perform, kept = made.executor.perform, []

        def watched(order, perform=perform, kept=kept):
            if order.step == "train":
                kept.extend(perform(order._replace(wanted="replies")).value.values())
            return perform(order)

        made.executor.perform = watched
        progress = made.run(made.start())
        servers[pad], uploads[pad], seen[pad] = progress.server, progress.traffic.up, kept
    assert tree.equal(servers[False], servers[True])
    assert uploads[True] == 3 * uploads[False]
    assert len({shapes(reply) for reply in seen[False]}) > 1
    assert len({shapes(reply) for reply in seen[True]}) == 1


def test_padding_and_server_steps_go_together():
    servers = [
        server_of(IFCA(num_models=3), replace(STEPPED, pad_choices=pad), rounds=3)
        for pad in (False, True)
    ]
    assert tree.equal(*servers)


def test_a_round_that_prepares_late_is_not_taken_for_a_method_without_means():
    """Nobody answers when the encoders are handed out, so the first round of the head does it."""
    made = toys.experiment(
        FedConcat(clusters=2, encoder_rounds=2, head_rounds=3),
        plan=Plan(rounds=1),
        aggregation=STEPPED,
    )
    plan, progress = made.plan, made.start()
    for turn in made.turns:
        lost = turn.stage.name == "concatenate"
        made.plan = replace(plan, dropout=1 - 1e-9) if lost else plan
        made.play(turn, progress)
        assert (progress.server.head == {}) == (turn.stage.name != "head")
    assert tree.is_finite(progress.server)


def test_means_inside_tuples_are_stepped_too():
    total = ({"w": Averaged({"w": torch.tensor([4.0])}, 2.0)}, [Averaged(torch.tensor([6.0]), 3.0)])
    first, second = ServerStep(Aggregation(server_lr=0.5), {}, ()).incoming(total, "train")
    assert first["w"].mean(otherwise={"w": torch.tensor([1.0])})["w"].item() == 1.5
    assert second[0].mean(otherwise=torch.tensor([0.0])).item() == 1.0


@pytest.mark.parametrize("pad", [True, False])
def test_a_choice_must_be_one_of_those_offered(pad):
    reply = Chosen({3: Total(torch.ones(1))}, among={0: None, 1: None})
    with pytest.raises(ValueError, match=r"must choose among \[0, 1\], got \[3\]"):
        Aggregation(pad_choices=pad).outgoing(reply, "total")


def test_who_averages_nothing_refuses_before_the_first_round():
    for name in ("local", "fedgmm-unsupervised"):
        with pytest.raises(
            SettingError, match="need a method whose new models are means of the clients', got"
        ):
            toys.experiment(toys.all_methods()[name], aggregation=STEPPED)
