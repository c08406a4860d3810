"""FedBN, Ditto, FedRep, FedDual, pFedMe and APFL: their limits, and what stays at the client."""

import numpy as np
import pytest
import torch
from torch import nn

import toys
from concordfl import Client, Model, SettingError, Task, Training
from concordfl.algorithms import (
    APFL,
    IFCA,
    Ditto,
    FedAvg,
    FedBN,
    FedDual,
    FedRep,
    FeSEM,
    PFedMe,
)
from concordfl.core import Classification, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan

OWN = ("toys:batch_norm_net",)


def finished(method, data=None, rounds=4, training=toys.TRAINING, network="mlp", cohort=1.0):
    plan = Plan(rounds=rounds, evaluate_every=rounds, cohort=cohort)
    made = toys.experiment(method, data, plan=plan, training=training, network=network)
    return made, made.run(made.start())


@pytest.mark.parametrize("network", ["mlp", *OWN])
@pytest.mark.parametrize("method", [Ditto(), APFL()])
def test_the_shared_model_is_fedavgs_to_the_bit(method, network):
    assert tree.equal(
        finished(method, network=network)[1].server, finished(FedAvg(), network=network)[1].server
    )


def test_fedbn_without_normalisation_is_fedavg_to_the_bit():
    ours, theirs = finished(FedBN()), finished(FedAvg())
    assert tree.equal(ours[1].server, theirs[1].server)
    assert ours[0].records[-1]["local"] == theirs[0].records[-1]["local"]
    assert toys.rows(ours[0]) == toys.rows(theirs[0])


def test_fedbn_keeps_normalisation_layers_at_the_client():
    made, progress = finished(FedBN(), network=OWN[0])
    private = {
        "encoder.1.weight",
        "encoder.1.bias",
        "encoder.1.running_mean",
        "encoder.1.running_var",
    }
    assert set(made.setup.model.normalisation_names) == private
    assert not private & set(progress.server)
    states = [toys.state(made, id)["layers"] for id in made.federation.participants]
    assert all(set(state) == private for state in states)
    assert not tree.equal(states[0], states[1])


class Residual(nn.Module):
    """Normalisation inside a residual branch, under names that do not say so."""

    def __init__(self, features, classes):
        super().__init__()
        self.encoder = nn.ModuleDict(
            {"a": nn.Linear(features, 8), "b": nn.Sequential(nn.Linear(8, 8), nn.GroupNorm(2, 8))}
        )
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        x = self.encoder["a"](x)
        return self.head(x + self.encoder["b"](x))


def test_fedbn_finds_layers_inside_residual_branches():
    assert Model(lambda: nn.Sequential(nn.Linear(5, 5), nn.RMSNorm(5))).normalisation_names == (
        "1.weight",
    )
    model = Model(lambda: Residual(5, 3))
    assert set(model.normalisation_names) == {"encoder.b.1.weight", "encoder.b.1.bias"}


def test_a_new_client_of_fedbn_estimates_its_statistics():
    made, progress = finished(FedBN(), network=OWN[0])
    splits = made.federation.splits("held-out")
    client = toys.client(splits.train, made.setup.model)
    state = made.algorithm.adapt(
        client, made.algorithm.init_client(client, progress.server), progress.server, new=True
    )
    hidden = nn.functional.linear(
        splits.train.x, progress.server["encoder.0.weight"], progress.server["encoder.0.bias"]
    )  # what the normalisation layer sees
    assert np.allclose(state["layers"]["encoder.1.running_mean"], hidden.mean(0), atol=0.35)
    assert not np.allclose(state["layers"]["encoder.1.running_mean"], 0, atol=0.35)


def test_a_new_client_of_fedbn_tunes_its_own_layers_too():
    made, progress = finished(FedBN(), network=OWN[0])
    client = toys.client(made.federation.splits("held-out").train, made.setup.model)
    state = made.algorithm.init_client(client, progress.server)
    tuned = made.algorithm.tune(client, state, progress.server, epochs=2)
    by_hand = client.fit({**progress.server, **state["layers"]}, epochs=2, purpose="tune")
    assert not torch.equal(by_hand["encoder.1.weight"], state["layers"]["encoder.1.weight"])
    examples = client.examples
    assert torch.equal(
        made.algorithm.predict(client, state, tuned, examples),
        client.predictions(by_hand, examples),
    )


def test_dittos_own_model_is_anchored_at_the_received_one():
    """Without the pull it is local training; the stronger the pull, the nearer."""
    data = toys.federation(clients=2)

    def distance(penalty):
        made, progress = finished(
            Ditto(penalty=penalty),
            data,
            rounds=3,
            training=Training(lr=0.02, batch_size=8, momentum=0.0, epochs=1),
        )
        return float(tree.sq_dist(toys.state(made, "client-0")["own"], progress.server))

    found = [distance(penalty) for penalty in (0.0, 1.0, 20.0)]
    assert found[0] > found[1] > found[2]


def test_fedrep_trains_the_head_then_the_body():
    made, progress = finished(
        FedRep(head_epochs=2, body_epochs=3), toys.federation(clients=1), rounds=1
    )
    model, start = made.setup.model, made.setup.model.init(0)
    assert set(progress.server) == set(model.encoder_names)
    train = made.federation.splits("client-0").train
    client = Client(
        "client-0",
        train,
        objective=Classification(3),
        model=model,
        training=toys.TRAINING,
        seed=0,
        round=0,
    )
    with_head = client.fit(start, only=model.head_names, epochs=2, purpose="head")
    assert tree.equal(
        tree.subset(with_head, model.encoder_names), tree.subset(start, model.encoder_names)
    )
    state = toys.state(made, "client-0")
    assert tree.equal(state["head"], tree.subset(with_head, model.head_names))
    body = client.fit(
        with_head, only=model.encoder_names, epochs=3, purpose="body"
    )  # under the new head
    for name in model.encoder_names:
        assert torch.allclose(progress.server[name], body[name], atol=1e-6)


def test_a_new_client_of_fedrep_fits_its_head_as_long_as_the_others():
    """For ten epochs, as in the paper, unless told otherwise."""
    made, progress = finished(FedRep(), rounds=1)
    client = toys.client(made.federation.splits("held-out").train, made.setup.model)
    state = made.algorithm.init_client(client, progress.server)
    whole = {**progress.server, **state["head"]}
    for method, epochs in ((FedRep(), 10), (FedRep(head_epochs=3), 3)):
        fitted = client.fit(whole, only=client.model.head_names, epochs=epochs, purpose="head")
        adapted = method.adapt(client, state, progress.server, new=True)["head"]
        assert tree.equal(adapted, tree.subset(fitted, client.model.head_names))


def test_feddual_has_a_private_encoder_beside_the_shared_one():
    made, progress = finished(FedDual())
    assert not any(name.startswith("private.") for name in progress.server)
    start, state = (
        made.setup.model.init(0),
        toys.state(made, "client-0")["private"],
    )
    assert set(state) == {name for name in made.setup.model.names if name.startswith("private.")}
    assert not tree.equal(state, tree.subset(start, state))
    assert made.setup.model.init(0)["head.weight"].shape == (3, 16)
    encoder, private = start["encoder.1.weight"], start["private.1.weight"]
    assert encoder.shape == private.shape
    assert not torch.equal(encoder, private)
    with pytest.raises(
        SettingError, match="feddual needs a model with an encoder and a linear head"
    ):
        FedDual().network(nn.Sequential(), 3)
    with pytest.raises(
        SettingError, match="feddual needs a model whose encoder has parameters, got one without"
    ):
        finished(FedDual(), network="linear")


def test_a_new_client_of_feddual_fits_a_private_encoder():
    made, progress = finished(FedDual())
    client = toys.client(made.federation.splits("held-out").train, made.setup.model)
    state = made.algorithm.init_client(client, progress.server)
    adapted = [
        method.adapt(client, state, progress.server, new=True)["private"]
        for method in (FedDual(new_epochs=1), FedDual())
    ]
    losses = [
        float(client.losses({**progress.server, **private}).mean())
        for private in (state["private"], *adapted)
    ]
    assert losses == sorted(losses, reverse=True)
    whole = {**progress.server, **state["private"]}
    ten = client.fit(whole, only=state["private"], epochs=10, purpose="adapt")
    assert tree.equal(adapted[1], tree.subset(ten, state["private"]))


def test_a_participant_of_fedbn_predicts_with_the_layers_it_has_trained():
    """Under the averaged layers it estimates their statistics anew, unless told otherwise."""
    made, progress = finished(FedBN(), network=OWN[0])
    state, server = toys.state(made, "client-0"), progress.server
    train = made.federation.splits("client-0").train
    client = toys.client(train, made.setup.model, has_state=True)
    assert tree.equal(FedBN(statistics="trained").adapt(client, state, server, new=False), state)
    estimated = made.algorithm.adapt(client, state, server, new=False)["layers"]
    for name in ("encoder.1.weight", "encoder.1.bias"):
        assert torch.equal(estimated[name], state["layers"][name])
        assert not torch.equal(estimated[name], made.setup.model.init(0)[name])
    hidden = nn.functional.linear(train.x, server["encoder.0.weight"], server["encoder.0.bias"])
    found, trained = (
        layers["encoder.1.running_mean"] - hidden.mean(0) for layers in (estimated, state["layers"])
    )
    assert found.abs().max() < 0.35
    assert found.norm() < trained.norm()


def test_fedbn_estimates_nothing_where_layers_have_no_statistics():
    made = toys.experiment(FedBN())
    model = Model(lambda: Residual(5, 3))
    client = toys.client(made.federation.splits("client-0").train, model, has_state=True)
    server = FedBN().init_server(Task(model, Classification(3), (5,)), 0)
    state = FedBN().init_client(client, server)
    assert state["layers"]
    assert FedBN().adapt(client, state, server, new=False) is state


@pytest.mark.parametrize(
    ("method", "part"), [(FedBN, "layers"), (FedDual, "private")], ids=["fedbn", "feddual"]
)
def test_new_clients_may_start_from_the_participants_average(method, part):
    """It travels in a sum, is counted, and changes nothing for participants."""
    plain, average = (
        finished(method(new_start=start), network=OWN[0], rounds=2)
        for start in ("initial", "average")
    )
    ids = average[0].federation.participants
    states = {id: toys.state(average[0], id) for id in ids}
    assert all(tree.equal(states[id], toys.state(plain[0], id)) for id in ids)
    private = states[ids[0]][part]
    assert set(average[1].server) == set(plain[1].server) | set(private)
    assert not set(plain[1].server) & set(private)
    sizes = {id: average[0].federation.size(id) for id in ids}
    for name in private:
        mean = sum(sizes[id] * states[id][part][name] for id in ids) / sum(sizes.values())
        assert torch.allclose(average[1].server[name], mean, atol=1e-5)
    for name, value in plain[1].server.items():
        assert torch.equal(value, average[1].server[name])
    sent = 2 * len(ids) * tree.num_bytes(private)
    assert average[1].traffic.up == plain[1].traffic.up + sent
    assert average[1].traffic.down == plain[1].traffic.down
    train = average[0].federation.splits("held-out").train
    client = toys.client(train, average[0].setup.model)
    start = average[0].algorithm.init_client(client, average[1].server)[part]
    assert tree.equal(start, tree.subset(average[1].server, private))


def test_a_new_client_of_fedbn_takes_the_average_as_it_is():
    """Statistics estimated on other classes than the participants' would not fit the layers."""
    method = FedBN(new_start="average")
    made, progress = finished(method, network=OWN[0])
    examples = made.federation.splits("held-out").test
    client = toys.client(made.federation.splits("held-out").train, made.setup.model)
    state = method.adapt(
        client, method.init_client(client, progress.server), progress.server, new=True
    )
    expected = client.predictions(progress.server, examples)
    assert torch.equal(method.predict(client, state, progress.server, examples), expected)
    assert method.unadapted(client, progress.server) is not None
    assert FedBN().unadapted(client, finished(FedBN(), network=OWN[0])[1].server) is None
    participant = toys.client(client.examples, made.setup.model, has_state=True)
    own = toys.state(made, "client-0")
    assert tree.equal(
        tree.subset(method.parameters(participant, own, progress.server), own["layers"]),
        own["layers"],
    )


@pytest.mark.parametrize("penalty", [100.0, 10000.0])
def test_pfedme_tends_to_fedavg(penalty):
    """inner_lr = 1/λ: θ = w - ∇f/λ, so w moves by η∇f; the larger λ, the nearer to plain SGD with
    rate η.
    """
    data = toys.federation()
    method = PFedMe(penalty=penalty, inner_lr=1 / penalty, outer_lr=0.1, average="size")
    _, ours = finished(
        method, data, training=Training(lr=0.1, batch_size=8, momentum=0.0, epochs=1)
    )
    _, theirs = finished(
        FedAvg(), data, training=Training(lr=0.1, batch_size=8, momentum=0.0, epochs=1)
    )
    away = float(tree.sq_dist(ours.server, theirs.server)) ** 0.5
    assert away < 30 / penalty


@pytest.mark.parametrize(
    ("rate", "momentum", "expected"),
    [(0.01, 0.0, 0.01), (0.002, 0.9, 0.02), (0.5, 0.9, 1 / 15)],
    ids=["the run's", "with momentum", "at most 1/λ"],
)
def test_rates_of_pfedme_that_are_left_out_follow_the_runs(rate, momentum, expected):
    training = Training(lr=rate, momentum=momentum, batch_size=8, epochs=1)
    left_out = finished(PFedMe(), training=training)[1]
    given = finished(PFedMe(inner_lr=expected, outer_lr=expected), training=training)[1]
    for name, value in given.server.items():
        assert torch.allclose(left_out.server[name], value, atol=1e-6)


def test_pfedme_moves_with_its_defaults():
    """Within a factor as far as FedAvg; with rates of 0.01 and 0.005 it stayed where it was."""
    start = finished(FedAvg(), rounds=1)[0].setup.model.init(0)
    made, ours = finished(PFedMe(), training=Training(), rounds=10)
    slow = finished(PFedMe(inner_lr=0.01, outer_lr=0.005), training=Training(), rounds=10)[1]
    theirs = finished(FedAvg(), training=Training(), rounds=10)[1]
    far, near, reference = (
        float(tree.sq_dist(one.server, start)) ** 0.5 for one in (ours, slow, theirs)
    )
    assert far > reference / 4 > near
    assert made.records[-1]["local"]["accuracy"] > 0.9
    assert made.records[-1]["global"]["accuracy"] > 0.9


def test_pfedme_mixes_at_the_server():
    data = toys.federation(clients=2)
    whole, half = (finished(PFedMe(mixing=beta), data, rounds=1) for beta in (1.0, 0.5))
    start = whole[0].setup.model.init(0)
    expected = tree.map(lambda old, new: (old + new) / 2, start, whole[1].server)
    assert all(
        torch.allclose(half[1].server[name], value, atol=1e-7) for name, value in expected.items()
    )


def test_apfls_own_model_by_the_optimizer_is_by_plain_steps_without_momentum():
    training = Training(lr=0.1, momentum=0.0, batch_size=8, epochs=1)
    plain, ours = (
        toys.state(finished(APFL(own_steps=steps), training=training)[0], "client-0")
        for steps in ("plain", "optimizer")
    )
    assert plain.share == pytest.approx(ours.share, abs=1e-5)
    assert all(torch.allclose(plain.own[name], ours.own[name], atol=1e-5) for name in plain.own)


def test_with_momentum_apfls_own_model_keeps_up_only_by_the_optimizer():
    """Clients of two concepts: who mixes in much of the shared model is wrong half of the time."""
    plain, ours = (
        toys.rows(finished(APFL(own_steps=steps), concepts(), rounds=10)[0])
        for steps in ("plain", "optimizer")
    )
    assert np.mean([row["share"] for row in ours.values() if not row["new"]]) > np.mean(
        [row["share"] for row in plain.values() if not row["new"]]
    )


def concepts():
    """Four clients, two of them with exchanged labels."""
    rng = np.random.default_rng(0)

    def draw(exchanged):
        x = rng.normal(size=(40, 3)).astype(np.float32)
        return Arrays(x, ((x[:, 0] > 0) ^ exchanged).astype(np.int64))

    clients = {
        f"client-{i}": tuple(draw(i % 2 == 1) for _ in ("train", "validation", "test"))
        for i in range(4)
    }
    return Federation.build(clients, {}, 2)


def test_apfl_by_hand():
    """One full batch: v, w and α as the paper has them."""
    data, training, start, gradient = one_client()
    made, progress = finished(APFL(share=0.25), data, rounds=1, training=training, network="linear")
    grads = gradient(*start)  # v = w, so v̄ = w
    w = [value - 0.1 * grad for value, grad in zip(start, grads, strict=True)]
    v = [value - 0.1 * 0.25 * grad for value, grad in zip(start, grads, strict=True)]
    slope = gradient(*(0.25 * a + 0.75 * b for a, b in zip(v, w, strict=True)))
    share = 0.25 - 0.1 * sum(
        float(((a - b) * grad).sum()) for a, b, grad in zip(v, w, slope, strict=True)
    )
    state = toys.state(made, "client-0")
    assert torch.allclose(state.own["head.weight"], v[0], atol=1e-6)
    assert torch.allclose(progress.server["head.weight"], w[0], atol=1e-6)
    assert state.share == pytest.approx(share, abs=1e-5)
    assert toys.rows(made)["client-0"]["share"] == state.share


def test_an_apfl_client_that_uses_nothing_of_its_own_is_fedavgs():
    made, _ = finished(APFL(share=0.0, adaptive=False))
    plain, _ = finished(FedAvg())
    for id in made.federation.participants:
        ours, theirs = toys.rows(made)[id], toys.rows(plain)[id]
        assert {name: ours[name] for name in theirs} == theirs


@pytest.mark.parametrize("method", [APFL(), PFedMe(), Ditto(), FedRep(), FedDual()])
def test_personal_models_have_statistics_of_their_own(method):
    made, progress = finished(method, network=OWN[0])
    state = tree.flatten(toys.state(made, "client-0"))
    means = [
        value for name, value in (state | progress.server).items() if name.endswith("running_mean")
    ]
    assert means
    assert all(value.abs().max() > 0.01 for value in means)
    assert made.records[-1]["local"]["accuracy"] > 0.4


def softmax_gradient(x, y):
    """Of the mean cross-entropy of a linear model, by its weight and bias."""

    def gradient(weight, bias):
        error = (
            nn.functional.linear(x, weight, bias).softmax(1) - nn.functional.one_hot(y, 3)
        ) / len(y)
        return error.T @ x, error.sum(0)

    return gradient


def one_client(epochs=1):
    """A client of one full batch: its federation, how it is trained, the start, and the gradient by
    hand.
    """
    data, training = (
        toys.federation(clients=1, examples=12),
        Training(lr=0.1, batch_size=100, epochs=epochs, momentum=0.0),
    )
    start = toys.model_for(FedAvg(), data, "linear").init(0)
    train = data.splits("client-0").train
    return (
        data,
        training,
        (start["head.weight"], start["head.bias"]),
        softmax_gradient(train.x, train.y),
    )


def pulled(values, gradient, rate, penalty, centre):
    """A step on f + λ/2 ‖values - centre‖²."""
    grads = gradient(*values)
    return tuple(
        value - rate * (grad + penalty * (value - c))
        for value, grad, c in zip(values, grads, centre, strict=True)
    )


def test_ditto_by_hand():
    """Two full batches: from the second one on the own model is pulled to the received one."""
    data, training, start, gradient = one_client(epochs=2)
    made, _ = finished(Ditto(penalty=2.0), data, rounds=1, training=training, network="linear")
    own = pulled(pulled(start, gradient, 0.1, 2.0, start), gradient, 0.1, 2.0, start)
    kept = toys.state(made, "client-0")["own"]
    assert torch.allclose(kept["head.weight"], own[0], atol=1e-6)
    assert torch.allclose(kept["head.bias"], own[1], atol=1e-6)


def test_pfedme_by_hand():
    """Two inner steps on θ, then w moves towards it; the client keeps θ, and predicts with it."""
    data, training, start, gradient = one_client()
    method = PFedMe(penalty=3.0, inner_steps=2, inner_lr=0.05, outer_lr=0.2)
    made, progress = finished(method, data, rounds=1, training=training, network="linear")
    theta = pulled(pulled(start, gradient, 0.05, 3.0, start), gradient, 0.05, 3.0, start)
    w = [value - 0.2 * 3.0 * (value - near) for value, near in zip(start, theta, strict=True)]
    own = toys.state(made, "client-0")["own"]
    for place, name in enumerate(("head.weight", "head.bias")):
        assert torch.allclose(own[name], theta[place], atol=1e-6)
        assert torch.allclose(progress.server[name], w[place], atol=1e-6)
    examples = data.splits("client-0").test
    client = toys.client(examples, made.setup.model)
    predicted = method.predict(client, {"own": own}, progress.server, examples)
    expected = nn.functional.linear(examples.x, *theta).softmax(1)
    assert torch.allclose(predicted, expected.to(predicted.dtype), atol=1e-5)


def test_fesem_by_hand():
    """Two full batches with the pull to the centre."""
    data, training, start, gradient = one_client(epochs=2)
    made = toys.experiment(FeSEM(num_models=1, mu=2.0), data, training=training, network="linear")
    centre = made.setup.model.init(0)
    _, reply = made.algorithm.train(
        toys.client(data.splits("client-0").train, made.setup.model, training), {}, {0: centre}
    )
    trained = pulled(pulled(start, gradient, 0.1, 2.0, start), gradient, 0.1, 2.0, start)
    assert torch.allclose(toys.sent(reply).mean()["head.weight"], trained[0], atol=1e-6)


def unequal_clients():
    """Two clients of 6 and 18 examples."""
    whole = toys.federation(clients=1, examples=24)
    train = whole.splits("client-0").train
    arrays = [
        Arrays(train.x[part].numpy(), train.y[part].numpy())
        for part in (slice(0, 6), slice(6, 24), slice(0, 0))
    ]
    small, large, none = arrays
    return Federation.build({"small": (small, none, small), "large": (large, none, large)}, {}, 3)


@pytest.mark.parametrize(
    ("method", "kwargs", "model"),
    [
        (IFCA, {"num_models": 1}, lambda server: server[0]),
        (FeSEM, {"num_models": 1, "mu": 0.0}, lambda server: server.centres[0]),
        # θ = w - ∇f / λ, and w moves by outer_lr λ (w - θ)
        (
            PFedMe,
            {"penalty": 4.0, "inner_steps": 1, "inner_lr": 0.25, "outer_lr": 0.1},
            lambda server: server,
        ),
    ],
    ids=["ifca", "fesem", "pfedme"],
)
def test_clients_count_alike_unless_asked_otherwise(method, kwargs, model):
    """A full-batch step of a linear model by hand, at clients of 6 and 18 examples."""
    data = unequal_clients()
    training = Training(lr=0.1, batch_size=100, epochs=1, momentum=0.0)
    whole = toys.model_for(FedAvg(), data, "linear").init(0)
    start, bias = whole["head.weight"], whole["head.bias"]
    small, large = (
        start - 0.1 * softmax_gradient(train.x, train.y)(start, bias)[0]
        for train in (data.splits(id).train for id in ("small", "large"))
    )
    for average, expected in {
        "equal": (small + large) / 2,
        "size": (6 * small + 18 * large) / 24,
    }.items():
        asked = {} if average == "equal" else {"average": average}
        made = toys.experiment(method(**kwargs, **asked), data, training=training, network="linear")
        progress = made.start()
        made.play(made.turns[0], progress)
        assert torch.allclose(model(progress.server)["head.weight"], expected, atol=1e-6)


def test_fedrep_counts_bodies_alike_unless_asked_otherwise():
    data = unequal_clients()
    bodies = {}
    for id in data.participants:
        alone = Federation.build(
            {id: tuple(Arrays(s.x.numpy(), s.y.numpy()) for s in data.splits(id))}, {}, 3
        )
        bodies[id] = finished(FedRep(), alone, rounds=1)[1].server
    for average, weights in {"equal": (1, 1), "size": (6, 18)}.items():
        _, progress = finished(FedRep(average=average), data, rounds=1)
        for name, value in progress.server.items():
            expected = sum(
                weight * bodies[id][name]
                for id, weight in zip(("small", "large"), weights, strict=True)
            ) / sum(weights)
            assert torch.allclose(value, expected, atol=1e-6)


def test_fedrep_needs_two_parts():
    with pytest.raises(
        SettingError, match="fedrep needs a model with an encoder and a head that have parameters"
    ):
        finished(FedRep(), network="linear")
