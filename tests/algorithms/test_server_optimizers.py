"""SCAFFOLD, the FedOpt family and FedNova: by hand on a linear model, and their limits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import toys
from concordfl import Aggregation, SettingError, Training, tree
from concordfl.algorithms import ALGORITHMS, FedAdagrad, FedAdam, FedAvg, FedNova, FedYogi, Scaffold
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan

FULL_BATCH = Training(lr=0.1, batch_size=100, epochs=1, momentum=0.0)


def finished(
    method, data=None, rounds=3, training=FULL_BATCH, network="linear", cohort=1.0, **more
):
    plan = Plan(rounds=rounds, evaluate_every=rounds, cohort=cohort)
    made = toys.experiment(method, data, plan=plan, training=training, network=network, **more)
    return made, made.run(made.start())


def clients_of(sizes):
    """Clients of those numbers of training examples."""
    rng = np.random.default_rng(0)

    def draw(count):
        return Arrays(rng.normal(size=(count, 5)).astype(np.float32), rng.integers(3, size=count))

    return Federation.build(
        {f"client-{i}": (draw(size), draw(0), draw(4)) for i, size in enumerate(sizes)}, {}, 3
    )


def gradient(train, w):
    """Of the mean cross-entropy of a linear model, by its weight and bias, in numpy."""
    x = np.concatenate([train.x.numpy(), np.ones((len(train), 1))], axis=1).astype(np.float64)
    logits = x @ w.T
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    return (shares - np.eye(3)[train.y.numpy()]).T @ x / len(train)


def joined(params):
    """A linear model as one matrix: its weight, and its bias as the last column."""
    weight, bias = params["head.weight"], params["head.bias"]
    return torch.cat([weight, bias[:, None]], dim=1).double().numpy()


def start_of(made):
    return joined(made.setup.model.init(0))


# --- SCAFFOLD -------------------------------------------------------------------------------------


def scaffold_by_hand(control, data, w, rounds, epochs, momentum=0.0, lr=0.1):
    """Algorithm 1, all clients in every round; with momentum, the gradients of option II count as
    often as they are stepped by.
    """
    trains = [data.splits(id).train for id in sorted(data.participants)]
    c, own = np.zeros_like(w), [np.zeros_like(w) for _ in trains]
    for _ in range(rounds):
        changes, moves = [], []
        for i, train in enumerate(trains):
            y, velocity, reach, pace = w, 0.0, 0.0, 0.0
            for _ in range(epochs):
                velocity = momentum * velocity + gradient(train, y) - own[i] + c
                pace = momentum * pace + 1
                y, reach = y - lr * velocity, reach + pace
            first, second = gradient(train, w), own[i] - c + (w - y) / (reach * lr)
            changes.append((first if control == "gradient" else second) - own[i])
            moves.append(y - w)
            own[i] = own[i] + changes[-1]
        w, c = w + np.mean(moves, axis=0), c + np.mean(changes, axis=0)
    return w, c


@pytest.mark.parametrize("control", ["gradient", "steps"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_by_hand(momentum, control):
    data = clients_of([5, 9, 16])
    made, progress = finished(
        Scaffold(control=control), data, training=replace(FULL_BATCH, epochs=3, momentum=momentum)
    )
    w, c = scaffold_by_hand(control, data, start_of(made), rounds=3, epochs=3, momentum=momentum)
    assert np.allclose(joined(progress.server.params), w, atol=1e-5)
    assert np.allclose(joined(progress.server.control), c, atol=1e-5)
    uncorrected = finished(FedAvg(), data, training=replace(FULL_BATCH, epochs=3))[1].server
    assert not np.allclose(joined(uncorrected), w, atol=1e-3)


def test_in_its_first_round_scaffold_is_fedavg():
    """All controls are zero, and clients of one size count alike in both."""
    data = clients_of([8, 8, 8])
    training = replace(FULL_BATCH, batch_size=3, epochs=2, momentum=0.9)
    ours, theirs = (
        finished(method, data, rounds=1, training=training)[1].server
        for method in (Scaffold(), FedAvg())
    )
    assert np.allclose(joined(ours.params), joined(theirs), atol=1e-6)


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_with_one_local_step_scaffold_is_fedavg(control):
    """The corrections of all clients add up to zero."""
    data, method = clients_of([8, 8, 8]), Scaffold(control=control)
    ours, theirs = (finished(one, data)[1].server for one in (method, FedAvg()))
    assert np.allclose(joined(ours.params), joined(theirs), atol=1e-5)


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_the_servers_control_is_the_mean_of_all_clients_own(control):
    """Also of those who were not asked, whose own is zero: c + |S|/N times the mean change."""
    method = Scaffold(control=control)
    made, progress = finished(method, toys.federation(), rounds=2, cohort=2, network="mlp")
    ids = made.federation.participants
    own = [
        toys.state(made, id)["control"] for id in ids if made.executor.states.get(id) is not None
    ]
    assert 0 < len(own) < len(ids)
    for name, value in progress.server.control.items():
        assert torch.allclose(value, sum(one[name] for one in own) / len(ids), atol=1e-6)


@pytest.mark.parametrize("control", ["gradient", "steps"])
def test_scaffold_finds_the_optimum_where_fedavg_drifts(control):
    """Full batches and many local steps: FedAvg stops where local models cancel out, SCAFFOLD where
    the gradients do.
    """
    data, training = clients_of([12, 12]), replace(FULL_BATCH, epochs=20)
    trains = [data.splits(id).train for id in data.participants]

    def slope(params):
        return np.abs(np.mean([gradient(train, joined(params)) for train in trains], axis=0)).max()

    ours, theirs = (
        finished(method, data, rounds=150, training=training)[1].server
        for method in (Scaffold(control=control), FedAvg())
    )
    assert slope(ours.params) < 1e-5
    assert slope(theirs) > 1e-3


def test_scaffolds_global_rate_is_the_servers():
    data = clients_of([8, 8])
    whole, half = (
        finished(Scaffold(), data, rounds=1, aggregation=Aggregation(server_lr=rate))
        for rate in (1.0, 0.5)
    )
    start = start_of(whole[0])
    moved = joined(whole[1].server.params) - start
    assert np.allclose(joined(half[1].server.params), start + moved / 2, atol=1e-6)
    assert tree.equal(whole[1].server.control, half[1].server.control)


# --- the FedOpt family ----------------------------------------------------------------------------

MOMENTS = {
    FedAdagrad: lambda v, d, b: v + d**2,
    FedAdam: lambda v, d, b: b * v + (1 - b) * d**2,
    FedYogi: lambda v, d, b: v - (1 - b) * d**2 * np.sign(v - d**2),
}


@pytest.mark.parametrize("average", ["equal", "size"])
@pytest.mark.parametrize("kind", MOMENTS)
def test_fedopt_by_hand(kind, average):
    """A full-batch step at each client, then Algorithm 2 at the server."""
    sizes = [5, 9, 16]
    data = clients_of(sizes)
    options = {} if kind is FedAdagrad else {"beta2": 0.7}
    method = kind(server_lr=0.2, beta1=0.6, tau=0.01, average=average, **options)
    made, progress = finished(method, data)
    w = start_of(made)
    m, v = np.zeros_like(w), np.full_like(w, 0.01**2)
    for _ in range(3):
        steps = [-0.1 * gradient(data.splits(f"client-{i}").train, w) for i in range(3)]
        d = np.average(steps, axis=0, weights=sizes if average == "size" else None)
        m = 0.6 * m + 0.4 * d
        v = MOMENTS[kind](v, d, 0.7)
        w = w + 0.2 * m / (np.sqrt(v) + 0.01)
    assert np.allclose(joined(progress.server.params), w, atol=1e-5)
    assert np.allclose(joined(progress.server.second), v, atol=1e-6)


def test_fedadagrad_is_torchs_adagrad():
    """Which has its sum of squares begin where it is told to, and our τ for its eps."""
    data = clients_of([8, 8])
    made, progress = finished(FedAdagrad(server_lr=0.3, tau=0.02), data)
    w = torch.tensor(start_of(made), requires_grad=True)
    theirs = torch.optim.Adagrad([w], lr=0.3, eps=0.02, initial_accumulator_value=0.02**2)
    for _ in range(3):
        at = w.detach().numpy()
        steps = [0.1 * gradient(data.splits(id).train, at) for id in data.participants]
        w.grad = torch.tensor(np.mean(steps, axis=0))
        theirs.step()
    assert np.allclose(joined(progress.server.params), w.detach(), atol=1e-5)


@pytest.mark.parametrize("kind", MOMENTS)
def test_with_a_large_tau_fedopt_is_fedavg(kind):
    """√v + τ is then all but constant: 2τ, as v begins at τ² (FedAdam's loses a little of it)."""
    options = {} if kind is FedAdagrad else {"beta2": 0.999999}
    method = kind(server_lr=2e4, beta1=0.0, tau=1e4, average="size", **options)
    ours, theirs = (
        finished(one, toys.federation(), network="mlp")[1].server for one in (method, FedAvg())
    )
    for name, value in theirs.items():
        assert torch.allclose(ours.params[name], value, atol=1e-5)


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_fedopt_averages_statistics_and_learns_with_its_defaults(name):
    made, progress = finished(
        ALGORITHMS[name](), rounds=15, training=Training(), network="toys:batch_norm_net"
    )
    variance = progress.server.params["encoder.1.running_var"]
    assert "encoder.1.running_var" not in progress.server.second
    assert float(variance.min()) > 0
    assert not torch.equal(variance, torch.ones(8))
    assert made.records[-1]["local"]["accuracy"] > 0.9


@pytest.mark.parametrize("name", ["fedadagrad", "fedadam", "fedyogi"])
def test_a_second_server_step_is_refused(name):
    rule = "server_lr and server_momentum need a method whose new models are means of the clients'"
    with pytest.raises(SettingError, match=f"aggregation.{rule}, got Fed"):
        toys.experiment(ALGORITHMS[name](), aggregation=Aggregation(server_momentum=0.5))


# --- FedNova --------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_by_hand(momentum):
    """Clients of 4, 8 and 16 examples in batches of 4, in any order: normalised by what their 1, 2
    and 4 steps come to.
    """
    sizes = [4, 8, 16]
    data = clients_of(sizes)
    training = replace(FULL_BATCH, batch_size=4, momentum=momentum)
    made, progress = finished(FedNova(), data, rounds=1, training=training)
    w, shares = start_of(made), np.array(sizes) / 28
    moves = []
    for id, size in zip(sorted(data.participants), sizes, strict=True):
        # FedAvg of one client is its own local training
        arrays = [Arrays(s.x.numpy(), s.y.numpy()) for s in data.splits(id)]
        alone = Federation.build({id: tuple(arrays)}, {}, 3)
        _, local = finished(FedAvg(), alone, rounds=1, training=training)
        # a_k: how often the k-th gradient from the end is stepped by
        norm = sum(sum(momentum**j for j in range(k + 1)) for k in range(size // 4))
        moves.append(((joined(local.server) - w) / norm, norm))
    effective = sum(share * norm for share, (_, norm) in zip(shares, moves, strict=True))
    mean = sum(share * move for share, (move, _) in zip(shares, moves, strict=True))
    assert np.allclose(joined(progress.server), w + effective * mean, atol=1e-5)
    plain = finished(FedAvg(), data, rounds=1, training=training)[1].server
    assert not np.allclose(joined(progress.server), joined(plain), atol=1e-3)


@pytest.mark.parametrize("network", ["mlp", "toys:batch_norm_net"])
def test_where_all_take_as_many_steps_fednova_is_fedavg(network):
    """20 to 25 examples are three batches of at most 9."""
    data, training = toys.federation(), replace(toys.TRAINING, batch_size=9)
    assert {-(-data.size(id) // 9) for id in data.participants} == {3}
    ours, theirs = (
        finished(method, data, training=training, network=network)[1].server
        for method in (FedNova(), FedAvg())
    )
    for name, value in theirs.items():
        assert torch.allclose(ours[name], value, atol=1e-5)


def test_fednovas_server_takes_steps_of_what_it_has_averaged():
    data = clients_of([4, 16])
    training = replace(FULL_BATCH, batch_size=4)
    whole, half = (
        finished(
            FedNova(), data, rounds=1, training=training, aggregation=Aggregation(server_lr=rate)
        )
        for rate in (1.0, 0.5)
    )
    start = start_of(whole[0])
    moved = joined(whole[1].server) - start
    assert np.allclose(joined(half[1].server), start + moved / 2, atol=1e-6)


# --- what both need -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Scaffold, FedNova])
def test_changes_by_adam_are_no_gradients(kind):
    rule = "needs training.optimizer = 'sgd', whose steps are multiples of gradients, got 'adam'"
    with pytest.raises(SettingError, match=f"^{kind.__name__} {rule}$"):
        toys.experiment(kind(), training=Training(optimizer="adam"))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_plain_steps_of_momentum(momentum):
    """Along a gradient of 1 torch's SGD moves so many times its rate."""
    w = torch.zeros(1, requires_grad=True)
    theirs = torch.optim.SGD([w], lr=1.0, momentum=momentum)
    for steps in range(1, 8):
        w.grad = torch.ones(1)
        theirs.step()
        assert Training(momentum=momentum).plain_steps(steps) == pytest.approx(-w.item(), rel=1e-5)
