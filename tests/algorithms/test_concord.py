"""Concord against what must come out of it."""

from functools import partial

import numpy as np
import pytest
import torch
from sklearn.metrics import homogeneity_score

import toys
from concordfl import Aggregation, SettingError, Training
from concordfl.algorithms import Concord, FedAvg
from concordfl.core import Batch, Task, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan
from concordfl.toolbox.heads import ManyHeads, hits, likeness

PLAN = Plan(rounds=4, cohort=4)


def concepts(clients=18, examples=60, seed=0, newcomers=0):
    """Linear data with three concepts, at clients with label skew; the last ones are new."""
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(4, 6))
    made, groups = {}, {}
    for number in range(clients + newcomers):
        concept = number % 3

        def draw(count, concept=concept, mix=rng.dirichlet(np.ones(4))):  # noqa: B008
            y = rng.choice(4, size=count, p=mix)
            x = (centres[y] + rng.normal(size=(count, 6))).astype(np.float32)
            return Arrays(x, [y, 3 - y, (y + 1) % 4][concept])

        made[f"client-{number:02d}"] = (draw(examples), draw(5), draw(20))
        groups[f"client-{number:02d}"] = {"concept": str(concept)}
    ids = list(made)
    return Federation.build(
        {id: made[id] for id in ids[:clients]}, {id: made[id] for id in ids[clients:]}, 4, groups
    )


def some_client(method, size=30, **more):
    data = toys.federation(clients=1, examples=size)
    examples = data.splits("client-0").train
    return toys.client(examples, toys.model_for(method, data, hidden=[8]), **more)


def start(method, client):
    task = Task(client.model, client.objective, tuple(client.examples.x.shape[1:]))
    return method.init_server(task, 0)


def whole_models(client, server, count):
    """K networks, each with the shared encoder and one of the heads."""
    encoder = tree.subset(server.params, client.model.encoder_names)
    head = {name: server.params[name].chunk(count) for name in client.model.head_names}
    return {k: {**encoder, **{name: head[name][k] for name in head}} for k in range(count)}


# --- limits ---------------------------------------------------------------------------------------


def test_one_head_without_balance_is_fedavg_to_the_bit():
    concord = toys.experiment(Concord(num_heads=1, balanced=False), plan=PLAN)
    fedavg = toys.experiment(FedAvg(), plan=PLAN)
    ours = concord.run(concord.start()).server.params
    assert tree.equal(ours, fedavg.run(fedavg.start()).server)


def test_a_servers_rate_acts_as_at_fedavg():
    half = Aggregation(server_lr=0.5)
    concord = toys.experiment(Concord(num_heads=1, balanced=False), plan=PLAN, aggregation=half)
    fedavg = toys.experiment(FedAvg(), plan=PLAN, aggregation=half)
    ours = concord.run(concord.start()).server.params
    assert tree.equal(ours, fedavg.run(fedavg.start()).server)


def test_the_first_head_and_the_encoder_begin_where_fedavg_does():
    data = toys.federation()
    ours = toys.model_for(Concord(), data).init(3)
    theirs = toys.model_for(FedAvg(), data).init(3)
    first = {name: ours[name][: len(value)] for name, value in theirs.items()}
    assert tree.equal(first, theirs)
    heads = ours["head.weight"].chunk(6)
    assert not any(torch.equal(heads[0], other) for other in heads[1:])


def test_the_weights_are_those_of_whole_models():
    """ω from the losses of K networks that share an encoder, computed without Concord."""
    method = Concord(num_heads=3, sharpness=4.0)
    client = some_client(method)
    server = start(method, client)
    network = toys.model_for(FedAvg(), toys.federation(), hidden=[8])
    other = toys.client(client.examples, network)
    losses = other.losses_each(whole_models(client, server, 3)).double().mean(0)
    expected = np.exp(-4 * losses.numpy()) / np.exp(-4 * losses.numpy()).sum()
    found = method.adapt(client, {}, server, new=True)
    assert np.allclose(found.omega, expected, atol=1e-6)
    assert expected.max() - expected.min() > 0.01


def test_a_sharp_client_takes_the_head_that_ifca_would():
    method = Concord(num_heads=3, sharpness=1e5)
    client = some_client(method)
    server = start(method, client)
    other = toys.client(client.examples, toys.model_for(FedAvg(), toys.federation(), hidden=[8]))
    omega = method.adapt(client, {}, server, new=True).omega
    assert omega.tolist() == [
        float(k == other.best(whole_models(client, server, 3))) for k in range(3)
    ]


def test_predictions_are_bayes_with_the_clients_label_shares():
    """One head: p(y|x) ∝ exp(output) times the client's share of y, one example added to each."""
    method = Concord(num_heads=1)
    client = some_client(method)
    server = start(method, client)
    state = method.adapt(client, {}, server, new=False)
    logits = client.logits(server.params).double().numpy()
    counts = np.bincount(client.examples.y.numpy(), minlength=3) + 1
    joint = np.exp(logits) * counts
    expected = joint / joint.sum(1, keepdims=True)
    assert np.allclose(method.predict(client, state, server, client.examples), expected, atol=1e-6)


def trained_reply(method, client, server):
    return toys.sent(method.train(client, {}, server)[1])


def test_a_head_that_has_become_another_is_not_trained():
    method = Concord(num_heads=3)
    client = some_client(method)
    server = start(method, client)
    gone = server._replace(standing=torch.tensor([True, False, True]))
    weights = trained_reply(method, client, gone)["heads"].weight
    assert (weights > 0).tolist() == [True] * 3 + [False] * 3 + [True] * 3
    assert method.adapt(client, {}, gone, new=True).omega[1] == 0


def test_heads_learn_at_the_full_rate_and_the_encoder_by_omega():
    """Gradients beside those of whole networks, each trained by itself."""
    method = Concord(num_heads=3, balanced=False)
    client = some_client(method)
    server = start(method, client)
    omega = torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64)
    examples = client.examples
    index = torch.arange(len(examples))
    batch = Batch(examples.inputs(), examples.y, None, index)
    loss = partial(method._loss, client, omega, torch.zeros(3))
    found = client.grad(loss, server.params, batch)

    other = toys.client(examples, toys.model_for(FedAvg(), toys.federation(), hidden=[8]))
    models = whole_models(client, server, 3)
    alone = [other.grad(other.loss, params, batch) for params in models.values()]
    for name in client.model.head_names:
        expected = torch.cat([each[name] for each in alone])
        assert torch.allclose(found[name], expected, atol=1e-6)
    for name in client.model.encoder_names:
        expected = 0.7 * alone[0][name] + 0.3 * alone[2][name]
        assert torch.allclose(found[name], expected, atol=1e-6)


def test_rows_count_by_labels():
    """A head's row is averaged by the examples with its label, and a tenth of the mean of all."""
    method = Concord(num_heads=2)
    client = some_client(method)
    reply = trained_reply(method, client, start(method, client))
    counts = np.bincount(client.examples.y.numpy(), minlength=3)
    omega = method.adapt(client, {}, start(method, client), new=False).omega.numpy()
    expected = omega[:, None] * (counts + 0.1 * counts.mean())
    assert np.allclose(reply["heads"].weight, expected.ravel())


def test_a_network_without_encoder_and_linear_head_is_refused():
    with pytest.raises(SettingError, match="concord needs a model with an encoder and a linear"):
        ManyHeads(torch.nn.Linear(3, 2), 2, "concord")


def test_all_heads_begin_near_the_first_but_not_at_it():
    module = torch.nn.Module()
    module.encoder, module.head = torch.nn.Identity(), torch.nn.Linear(400, 3)
    first, *others = ManyHeads(module, 4, "concord").head.weight.detach().chunk(4)
    assert torch.equal(first, module.head.weight)
    for other in others:  # what is added is drawn as the first was, and scaled
        assert 0.25 < float((other - first).std() / first.std()) < 0.35


def test_a_head_without_bias():
    module = torch.nn.Module()
    module.encoder, module.head = torch.nn.Identity(), torch.nn.Linear(4, 3, bias=False)
    heads = ManyHeads(module, 5, "concord")
    assert heads.head.bias is None
    inputs = torch.randn(2, 4)
    assert torch.allclose(heads(inputs), module.head(inputs))


# --- heads of one concept -------------------------------------------------------------------------


def test_hits_are_counted_by_head_label_and_where_an_example_is():
    outputs = torch.zeros(3, 2, 2)  # three examples, two heads, two labels
    outputs[:, 0, 0], outputs[:, 1, 1] = 1.0, 1.0  # the first says 0 always, the second 1
    omega = torch.tensor([0.25, 0.75], dtype=torch.float64)
    found = hits(outputs, torch.tensor([0, 0, 1]), omega)
    by_label = [[2, 0], [0, 1]]  # of head j, of label y
    assert found.tolist() == (np.array([0.25, 0.75])[:, None, None] * by_label).tolist()


def crossed(rates, table):
    """Hits of heads that get these shares (K, K) of each other's examples right, of any label."""
    return torch.tensor(rates, dtype=torch.float64)[:, :, None] * table[:, None]


def test_heads_are_alike_if_each_does_well_on_the_others_examples():
    table = torch.full((3, 4), 50.0, dtype=torch.float64)
    rates = [[0.8, 0.72, 0.1], [0.6, 0.8, 0.4], [0.8, 0.2, 0.8]]
    found = likeness(crossed(rates, table), table)
    assert np.allclose(found, [[0, 0.75, 0.125], [0.75, 0, 0.25], [0.125, 0.25, 0]])


def test_only_labels_that_both_have_learnt_are_compared():
    """The first head knows labels 0 and 1, the second 1 and 2: neither does well on the label that
    it has never seen, and both do well on the one in common.
    """
    table = torch.tensor([[100.0, 100, 0], [0, 100, 100]], dtype=torch.float64)
    right = torch.zeros(2, 2, 3, dtype=torch.float64)
    right[0, 0], right[1, 1] = torch.tensor([90.0, 90, 0]), torch.tensor([0.0, 90, 90])
    right[0, 1], right[1, 0] = torch.tensor([0.0, 81, 0]), torch.tensor([0.0, 90, 0])
    assert likeness(right, table)[0, 1] == pytest.approx(0.9)
    apart = torch.tensor([[100.0, 100, 0, 0], [0, 0, 100, 100]], dtype=torch.float64)
    assert likeness(crossed([[0.9, 0.9], [0.9, 0.9]], apart), apart).max() == 0


def test_heads_that_have_learnt_little_are_not_compared():
    table = torch.full((2, 4), 50.0, dtype=torch.float64)
    assert likeness(crossed([[0.5, 0.5], [0.5, 0.5]], table), table).max() == 0
    assert likeness(crossed([[0.9, 0.9], [0.9, 0.9]], table / 20), table / 20).max() == 0


def test_the_merged_head_is_the_mean_by_what_is_with_each():
    method = Concord(num_heads=3)
    client = some_client(method)
    server = start(method, client)
    held = torch.tensor([30.0, 5.0, 10.0], dtype=torch.float64)
    after = method._merged(client.model, server, held, pair=2)  # of (0, 2)
    before, merged = (whole_models(client, each, 3) for each in (server, after))
    assert after.standing.tolist() == [True, True, False]
    for name in client.model.head_names:
        mean = 0.75 * before[0][name] + 0.25 * before[2][name]
        assert torch.allclose(merged[0][name], mean, atol=1e-6)
        assert torch.equal(merged[1][name], before[1][name])


# --- what it is for -------------------------------------------------------------------------------


def play(method, data, seed=0, rounds=30):
    made = toys.experiment(
        method,
        data,
        plan=Plan(rounds=rounds, evaluate_every=rounds, seed=seed),
        training=Training(lr=0.1, batch_size=16, momentum=0.0, epochs=1),
    )
    return made, made.run(made.start())


@pytest.mark.parametrize("seed", range(3))
def test_concepts_are_found_under_label_skew(seed):
    """Clients of different concepts are on different heads, of which there are fewer than at the
    start; new clients find theirs.
    """
    data = concepts(seed=seed, newcomers=3)
    made, progress = play(Concord(), data, seed)
    found = [toys.rows(made)[id]["group"] for id in data.participants]
    truth = [data.groups[id]["concept"] for id in data.participants]
    assert homogeneity_score(truth, found) == pytest.approx(1.0), "no head mixes concepts"
    assert 3 <= int(progress.server.standing.sum()) < 6
    assert made.records[-1]["global"]["accuracy"] > 0.95


def test_nothing_is_kept_at_clients_and_only_sums_are_asked_for():
    made, _ = play(Concord(), toys.federation(), rounds=2)
    assert list(made.executor.states.ids()) == []


def test_a_round_sends_little_more_than_fedavgs():
    """Six heads on lenet: at most 1.3 times FedAvg's bytes."""
    plan = Plan(rounds=2, evaluate_every=2)
    sent = []
    for method in (Concord(), FedAvg()):
        made = toys.experiment(method, toys.image_federation(), plan=plan, network="lenet")
        traffic = made.run(made.start()).traffic
        sent.append(traffic.up + traffic.down)
    assert sent[1] < sent[0] < 1.3 * sent[1]
