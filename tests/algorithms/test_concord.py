"""Concord against what must come out of it."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.stats import norm, ttest_1samp
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_rand_score

import toys
from concordfl import Aggregation, SettingError, Training
from concordfl.algorithms import Concord, FedAvg, grouping
from concordfl.algorithms.concord import (
    WORSE_THAN_GUESSING,
    ConcordClient,
    _is_worse_than_guessing,
)
from concordfl.algorithms.grouping import NOTHING_JOINED, Grouping, GroupSums
from concordfl.algorithms.typicality import log_distances, log_shares_of_all
from concordfl.core import Batch, Examples, Task, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.evaluate import EVALUATION_STEPS
from concordfl.engine.executors import Serial
from concordfl.engine.plan import Plan
from concordfl.toolbox.class_heads import (
    ClassSums,
    linear_heads_of_all,
    squared_distances,
    sums_at_heads,
    sums_by_class,
)
from concordfl.toolbox.heads import ManyHeads

PLAN = Plan(rounds=4, cohort=4)
LATE = {f"client-{number:02d}" for number in range(0, 18, 4)}
NEW = ConcordClient(NOTHING_JOINED, torch.empty(0), visits=0)


def concepts(clients=18, examples=60, seed=0, newcomers=0, number_of_concepts=3, later=None):
    """Linear data with concepts, at clients with label skew; the last clients are new. `later`: the
    round from which every other client of the first concept has labels of a third one.
    """
    rng = np.random.default_rng(seed)
    centres = 4 * rng.normal(size=(4, 6))
    made, groups, drift = {}, {}, {}
    for number in range(clients + newcomers):
        concept = number % number_of_concepts

        def draw(count, concept, mix=rng.dirichlet(np.ones(4))):  # noqa: B008
            y = rng.choice(4, size=count, p=mix)
            x = (centres[y] + rng.normal(size=(count, 6))).astype(np.float32)
            return Arrays(x, [y, 3 - y, (y + 1) % 4][concept])

        def client(concept, draw=draw):
            return draw(examples, concept), draw(5, concept), draw(20, concept)

        id = f"client-{number:02d}"
        made[id] = client(concept)
        groups[id] = {"concept": str(concept)}
        if later and id in LATE:
            drift[id] = [(later, client(2))]
    ids = list(made)
    participants, held_out = (
        {id: made[id] for id in part} for part in (ids[:clients], ids[clients:])
    )
    return Federation.build(participants, held_out, 4, groups, later=drift)


def some_client(method, size=30, **more):
    data = toys.federation(clients=1, examples=size)
    examples = data.splits("client-0").train
    return toys.client(examples, toys.model_for(method, data, hidden=[8]), **more)


def start(method, client):
    """The first message, with heads that differ and are all in use."""
    task = Task(client.model, client.objective, tuple(client.examples.x.shape[1:]))
    message = method.message(method.init_server(task, 0), None)
    noise = np.random.default_rng(1)
    moved = {
        name: message.params[name]
        + torch.from_numpy(noise.normal(size=message.params[name].shape) * 0.3).float()
        for name in client.model.head_names
    }
    return message._replace(
        params={**message.params, **moved}, used=torch.ones(method.num_heads, dtype=torch.bool)
    )


def whole_models(client, server, count):
    """K networks, each with the shared encoder and one of the heads."""
    encoder = tree.subset(server.params, client.model.encoder_names)
    head = {name: server.params[name].chunk(count) for name in client.model.head_names}
    return {k: {**encoder, **{name: head[name][k] for name in head}} for k in range(count)}


# --- limits ---------------------------------------------------------------------------------------


def test_one_head_without_balance_is_fedavg_to_the_bit():
    concord = toys.experiment(Concord(num_heads=1, balanced=False, settling_steps=0), plan=PLAN)
    fedavg = toys.experiment(FedAvg(), plan=PLAN)
    ours = concord.run(concord.start()).server.params
    assert tree.equal(ours, fedavg.run(fedavg.start()).server)


def test_with_one_head_new_clients_tune_as_fedavgs():
    method = Concord(num_heads=1, balanced=False, settling_steps=0)
    client = some_client(method)
    message = start(method, client)
    found = method.adapt(client, NEW, message, new=True)
    tuned = method.tune(client, found, message, epochs=2).params
    expected = FedAvg().tune(client, {}, message.params, epochs=2)
    assert tree.equal(tuned, expected)
    assert not tree.equal(tuned, message.params)


def test_a_new_client_tunes_the_heads_that_explain_it():
    """And no encoder that inputs are described by, or that heads have settled on."""
    for method, changed in (
        (Concord(num_heads=3, settling_steps=0), True),
        (Concord(num_heads=3), False),
        (Concord(num_heads=3, settling_steps=0, density=True), False),
    ):
        client = some_client(method)
        message = start(method, client)._replace(used=torch.tensor([True, False, False]))
        found = method.adapt(client, NEW, message, new=True)
        tuned = method.tune(client, found, message, epochs=1).params
        encoder = client.model.encoder_names
        same = tree.equal(tree.subset(tuned, encoder), tree.subset(message.params, encoder))
        assert same != changed
        rows = tuned["head.weight"].view(3, -1) != message.params["head.weight"].view(3, -1)
        assert rows.any(1).tolist() == [True, False, False], "the only head in use"


def test_a_servers_rate_acts_as_at_fedavg():
    half = Aggregation(server_lr=0.5)
    concord = toys.experiment(
        Concord(num_heads=1, balanced=False, settling_steps=0), plan=PLAN, aggregation=half
    )
    fedavg = toys.experiment(FedAvg(), plan=PLAN, aggregation=half)
    ours = concord.run(concord.start()).server.params
    assert tree.equal(ours, fedavg.run(fedavg.start()).server)


def test_all_heads_and_the_encoder_begin_where_fedavg_does():
    data = toys.federation()
    ours = toys.model_for(Concord(), data).init(3)
    theirs = toys.model_for(FedAvg(), data).init(3)
    first = {name: ours[name][: len(value)] for name, value in theirs.items()}
    assert tree.equal(first, theirs)
    heads = ours["head.weight"].chunk(6)
    assert all(torch.equal(heads[0], other) for other in heads[1:])


def test_the_weights_are_those_of_whole_models():
    """ω from the losses of K networks that share an encoder, computed without Concord."""
    method = Concord(num_heads=3, sharpness=4.0)
    client = some_client(method)
    server = start(method, client)
    network = toys.model_for(FedAvg(), toys.federation(), hidden=[8])
    other = toys.client(client.examples, network)
    losses = other.losses_each(whole_models(client, server, 3)).double().mean(0)
    expected = np.exp(-4 * losses.numpy()) / np.exp(-4 * losses.numpy()).sum()
    found = method.adapt(client, NEW, server, new=True)
    assert np.allclose(found.omega, expected, atol=1e-6)
    assert expected.max() - expected.min() > 0.01


def test_a_sharp_client_takes_the_head_that_ifca_would():
    method = Concord(num_heads=3, sharpness=1e5)
    client = some_client(method)
    server = start(method, client)
    other = toys.client(client.examples, toys.model_for(FedAvg(), toys.federation(), hidden=[8]))
    omega = method.adapt(client, NEW, server, new=True).omega
    assert omega.tolist() == [
        float(k == other.best(whole_models(client, server, 3))) for k in range(3)
    ]


@pytest.mark.parametrize(("weight", "learnt"), [(1.0, 0.0), (0.5, 0.5), (0.0, 1.0)])
def test_predictions_are_bayes_with_the_clients_label_shares(weight, learnt):
    """One head: p(y|x) ∝ exp(output) times the client's share of y, in the place of what the head
    has learnt of how common y is.
    """
    method = Concord(num_heads=1, share_weight=weight)
    client = some_client(method)
    prior = np.array([6.0, 3.0, 1.0])
    server = start(method, client)._replace(prior=torch.from_numpy(prior))
    state = method.adapt(client, NEW, server, new=False)
    logits = client.logits(server.params).double().numpy()
    counts = np.bincount(client.examples.y.numpy(), minlength=3) + prior
    joint = np.exp(logits) * counts / (prior / prior.sum()) ** learnt
    expected = joint / joint.sum(1, keepdims=True)
    assert np.allclose(method.predict(client, state, server, client.examples), expected, atol=1e-6)


def drawn(clients, examples, rare=0.5, noise=0.0, apart=3.0, seed=0):
    """Clients alike with two classes, one of them `rare`, and some labels by chance."""
    rng = np.random.default_rng(seed)

    def draw(count):
        y = (rng.random(count) < rare).astype(int)
        x = (apart * y[:, None] + rng.normal(size=(count, 4))).astype(np.float32)
        return Arrays(x, np.where(rng.random(count) < noise, 1 - y, y))

    made = {f"client-{k:02d}": (draw(examples), draw(5), draw(40)) for k in range(clients)}
    return Federation.build(made, {}, 2, {})


def test_of_a_rare_class_as_much_is_predicted_as_there_is():
    """Shares that stand beside heads in training and in prediction do not count twice."""
    data = drawn(20, 60, rare=0.1, apart=0.5)
    made, progress = play(Concord(gate=False), data, network="linear")
    method, server = made.setup.algorithm, progress.server
    predicted, truth = [], []
    for id in data.participants:
        splits = data.splits(id)
        client = toys.client(splits.train, made.setup.model, classes=2)
        state = method.adapt(client, NEW, server, new=True)
        predicted.append(method.predict(client, state, server, splits.test)[:, 1])
        truth.append(splits.test.y.double())
    assert float(torch.cat(predicted).mean()) == pytest.approx(
        float(torch.cat(truth).mean()), abs=0.02
    )


def trained_reply(method, client, server):
    return toys.sent(method.train(client, NEW, server)[1])


def test_a_free_head_is_not_trained_by_who_is_explained():
    method = Concord(num_heads=3)
    client = some_client(method)
    message = start(method, client)._replace(used=torch.tensor([True, False, True]))
    explained = easy(method, client, message)
    weights = trained_reply(method, client, explained)["heads"].weight
    assert (weights[3:6] == 0).all()
    assert method.adapt(client, NEW, message, new=True).omega[1] == 0


def easy(method, client, message):
    """The message after some epochs at the client, so that all heads in use explain it."""
    params, log_shares = message.params, torch.zeros(3)
    omega = message.used.double() / message.used.sum()
    for _ in range(20):
        params = client.fit(params, partial(method._loss, client, omega, log_shares))
    return message._replace(params=params)


def test_the_encoder_and_a_head_learn_by_omega():
    """Gradients beside those of whole networks, each trained by itself."""
    method = Concord(num_heads=3, balanced=False)
    client = some_client(method)
    message = start(method, client)
    omega = torch.tensor([0.7, 0.0, 0.3], dtype=torch.float64)
    examples = client.examples
    batch = Batch(examples.inputs(), examples.y, None, torch.arange(len(examples)))
    loss = partial(method._loss, client, omega, torch.zeros(3))
    found = client.grad(loss, message.params, batch)

    other = toys.client(examples, toys.model_for(FedAvg(), toys.federation(), hidden=[8]))
    models = whole_models(client, message, 3)
    alone = [other.grad(other.loss, params, batch) for params in models.values()]
    for name in client.model.head_names:
        expected = torch.cat([share * each[name] for share, each in zip(omega, alone, strict=True)])
        assert torch.allclose(found[name].double(), expected.double(), atol=1e-6)
    for name in client.model.encoder_names:
        expected = 0.7 * alone[0][name] + 0.3 * alone[2][name]
        assert torch.allclose(found[name], expected, atol=1e-6)


def test_rows_count_by_labels():
    """A head's row is averaged by the examples with its label, and a tenth of the mean of all."""
    method = Concord(num_heads=2)
    client = some_client(method)
    reply = trained_reply(method, client, start(method, client))
    counts = np.bincount(client.examples.y.numpy(), minlength=3)
    omega = method.adapt(client, NEW, start(method, client), new=False).omega.numpy()
    expected = omega[:, None] * (counts + 0.1 * counts.mean())
    assert np.allclose(reply["heads"].weight, expected.ravel())


def encoder_length(client, params):
    return torch.cat([params[name].flatten() for name in client.model.encoder_names]).norm()


@pytest.mark.parametrize(("lr", "is_drawn_back"), [(8.0, True), (0.01, False)])
def test_a_client_that_diverges_moves_the_encoder_by_its_own_length_at_most(lr, is_drawn_back):
    method = Concord(num_heads=2)
    client = some_client(method, training=Training(lr=lr, momentum=0.0))
    message = method.message(start(method, client), None)
    length = encoder_length(client, message.params)
    omega = method.adapt(client, NEW, message, new=False).omega
    away = client.fit(message.params, method._own_loss(client, message, omega))
    far = tree.subtract(away, message.params)
    assert (encoder_length(client, far) > length) == is_drawn_back

    reply = trained_reply(method, client, message)
    assert reply["drawn_back"] == is_drawn_back
    sent = {**reply["encoder"].mean(), **reply["heads"].mean(otherwise=message.params)}
    share = min(1.0, float(length / encoder_length(client, far)))
    for name in client.model.encoder_names:
        expected = message.params[name] + share * far[name]
        assert torch.allclose(sent[name], expected, rtol=1e-4, atol=1e-6)
    for name in client.model.head_names:
        expected = message.params[name] + share * far[name]
        assert torch.allclose(sent[name], expected, rtol=1e-4, atol=1e-6), "as much as the encoder"


def test_running_statistics_of_a_client_that_diverges_stay_as_they_were():
    method, data = Concord(num_heads=2), toys.federation(clients=1, examples=30)
    model = toys.model_for(method, data, "toys:batch_norm_net")
    diverges = Training(lr=1000.0, momentum=0.0)
    client = toys.client(data.splits("client-0").train, model, training=diverges)
    message = method.message(start(method, client), None)
    reply = trained_reply(method, client, message)
    assert reply["drawn_back"]
    sent = reply["encoder"].mean()
    running = [name for name in model.buffer_names if name in model.encoder_names]
    assert running
    for name in running:
        assert torch.equal(sent[name], message.params[name])


def test_an_encoder_without_weights_has_no_length_to_move_by():
    plan = Plan(rounds=2)
    made = toys.experiment(Concord(), concepts(clients=4), network="toys:whitening_net", plan=plan)
    assert made.run(made.start()).server.drawn_back == 0


@pytest.mark.parametrize(("lr", "is_drawn_back"), [(20.0, True), (0.05, False)])
def test_how_many_clients_were_drawn_back_is_recorded(lr, is_drawn_back):
    made = toys.experiment(Concord(num_heads=2), plan=PLAN, training=Training(lr=lr, momentum=0.0))
    described = made.algorithm.describe(made.run(made.start()).server)
    assert ("drawn_back" in described) == is_drawn_back


def test_a_network_without_encoder_and_linear_head_is_refused():
    with pytest.raises(SettingError, match="concord needs a model with an encoder and a linear"):
        ManyHeads(torch.nn.Linear(3, 2), 2, "concord")


def test_a_head_without_bias():
    module = torch.nn.Module()
    module.encoder, module.head = torch.nn.Identity(), torch.nn.Linear(4, 3, bias=False)
    heads = ManyHeads(module, 5, "concord")
    assert heads.head.bias is None
    inputs = torch.randn(2, 4)
    assert torch.allclose(heads(inputs), module.head(inputs))


# --- the groups -----------------------------------------------------------------------------------


def found_groups(data, method=None, seed=0):
    """After the stages that look for groups: the number, and every client's own."""
    method = method or Concord()
    made = toys.experiment(method, data, plan=Plan(rounds=1, evaluate_every=1, seed=seed))
    progress = made.run(made.start())
    rows = toys.rows(made)
    return progress.server.grouping.number, [rows[id]["group"] for id in data.participants]


@pytest.mark.parametrize("seed", range(3))
def test_groups_are_the_concepts_before_there_is_a_model(seed):
    data = concepts(seed=seed)
    number, groups = found_groups(data, seed=seed)
    assert number == 3
    truth = [data.groups[id]["concept"] for id in data.participants]
    assert adjusted_rand_score(truth, groups) == pytest.approx(1.0)


def test_clients_that_differ_in_labels_alone_are_one_group():
    skewed = concepts(number_of_concepts=1)
    assert found_groups(skewed)[0] == 1


def test_two_heads_or_fewer_look_for_no_groups():
    for heads in (1, 2):
        stages = Concord(num_heads=heads).stages(5, toys.model_for(Concord(), toys.federation()))
        assert [stage.name for stage in stages] == ["train", "settle"]


def test_heads_with_a_common_covariance_are_linear_discriminant_analysis():
    """A grouping into two, whose four cells are classes to scikit-learn."""
    rng = np.random.default_rng(0)
    cells = rng.integers(4, size=8000)
    x = 2 * rng.normal(size=(4, 3))[cells] + rng.normal(size=(8000, 3)) @ np.diag([1, 2, 0.5])
    group, y = cells // 2, cells % 2
    by_group = [
        sums_by_class(torch.from_numpy(x[group == own]), torch.from_numpy(y[group == own]), 2)
        for own in range(2)
    ]
    sums = ClassSums(
        torch.stack([own.counts for own in by_group]),
        torch.stack([own.first for own in by_group]),
        torch.from_numpy(x.T @ x),
    )
    heads = linear_heads_of_all(sums, [2])
    found = heads.log_ratios(torch.from_numpy(x)).permute(1, 0, 2).flatten(1).softmax(1)
    oracle = LinearDiscriminantAnalysis(priors=[0.25] * 4).fit(x, cells).predict_proba(x)
    assert np.abs(found.numpy() - oracle).mean() < 0.01


def test_groupings_side_by_side_are_those_of_each_alone():
    rng = np.random.default_rng(1)
    x, y = torch.from_numpy(rng.normal(size=(90, 3))), torch.from_numpy(rng.integers(2, size=90))
    parts = [sums_by_class(x[at::3], y[at::3], 2) for at in range(3)]
    second = x.T @ x

    def of(*groups):  # of parts, in each
        counts = torch.stack([sum(parts[at].counts for at in group) for group in groups])
        first = torch.stack([sum(parts[at].first for at in group) for group in groups])
        return ClassSums(counts, first, second)

    each = [of([0], [1, 2]), of([0, 1], [2]), of([0], [1], [2])]
    both = ClassSums(
        *(torch.cat(parts) for parts in zip(*(one[:2] for one in each), strict=True)), second
    )
    side_by_side = linear_heads_of_all(both, [2, 2, 3])
    alone = [linear_heads_of_all(one, [len(one.counts)]) for one in each]
    for place, part in enumerate(side_by_side):
        torch.testing.assert_close(part, torch.cat([one[place] for one in alone]))


# --- free heads -----------------------------------------------------------------------------------


def test_a_client_that_no_head_explains_takes_a_free_one():
    """Heads that are sure of other labels lose far more than a guess."""
    method = Concord(num_heads=3)
    client = some_client(method)
    message = start(method, client)._replace(used=torch.tensor([True, False, True]))
    explained = easy(method, client, message)
    visited = NEW._replace(omega=torch.tensor([1.0, 0, 0]).double(), visits=10)
    kept = method._choose_heads(client, visited, explained)
    assert kept[1] == 0
    assert float(kept.sum()) == pytest.approx(1.0)
    turned = {
        name: explained.params[name].view(3, 3, -1).roll(1, 1).reshape(explained.params[name].shape)
        for name in client.model.head_names
    }
    strange = explained._replace(params={**explained.params, **turned})
    assert method._choose_heads(client, visited, strange).tolist() == [0, 1, 0]
    full = strange._replace(used=torch.ones(3, dtype=torch.bool))
    assert float(method._choose_heads(client, visited, full).sum()) == pytest.approx(1.0)
    assert method.adapt(client, NEW, strange, new=True).omega[1] == 0, "predictions need a head"


def explaining(method, client, scale):
    """A message whose heads are next to a guess, or far off."""
    message = start(method, client)
    heads = {name: scale * message.params[name] for name in client.model.head_names}
    return message._replace(params={**message.params, **heads})


def test_a_client_looks_at_all_heads_every_few_visits_only():
    method = Concord(num_heads=3, look_every=4)
    client = some_client(method)
    message = explaining(method, client, 0.1)
    held = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    for visits in (1, 2, 3, 5):
        state = NEW._replace(omega=held, visits=visits)
        assert torch.equal(method._choose_heads(client, state, message), held)
    looked = method._choose_heads(client, NEW._replace(omega=held, visits=4), message)
    assert torch.equal(looked, method.adapt(client, NEW, message, new=True).omega)


def test_a_client_that_its_head_explains_no_more_looks_at_once():
    """On all of its examples; it has seen it on a few of all of them."""
    method = Concord(num_heads=3, look_every=100)
    client = some_client(method, size=200)
    message = explaining(method, client, 30)
    losses = method._losses(client, message).mean(0)
    worst = int(losses.argmax())
    assert losses[worst] > np.log(3) + 1
    state = NEW._replace(omega=torch.eye(3, dtype=torch.float64)[worst], visits=1)
    all_used = method._choose_heads(client, state, message)
    assert torch.equal(all_used, method.adapt(client, NEW, message, new=True).omega)
    only_worst = message._replace(used=torch.arange(3) == worst)
    free = method._choose_heads(client, state, only_worst)
    assert float(free.max()) == 1
    assert int(free.argmax()) != worst


def test_noise_at_small_clients_of_one_concept_takes_no_free_heads():
    for seed in range(2):
        _, progress = play(Concord(), drawn(30, 3, noise=0.2, seed=seed), rounds=12)
        assert int(progress.server.used.sum()) == 1


@pytest.mark.parametrize(("spread", "is_worse"), [(0.1, True), (2.0, False)])
def test_a_head_is_given_up_for_what_chance_does_not_explain(spread, is_worse):
    """Losses whose mean is 0.2 above the bound, by Student's test of SciPy."""
    client = some_client(Concord(num_heads=3))
    bound = np.log(3) + WORSE_THAN_GUESSING
    losses = bound + 0.2 + spread * np.random.default_rng(0).normal(size=60)
    assert (ttest_1samp(losses, bound, alternative="greater").pvalue < 0.05) == is_worse
    assert _is_worse_than_guessing(torch.from_numpy(losses), client) == is_worse


def test_one_answer_says_nothing_of_how_much_clients_differ():
    data = concepts(clients=6, number_of_concepts=1)
    several = toys.experiment(Concord(num_heads=1), data, plan=Plan(rounds=1))
    alone = toys.experiment(Concord(num_heads=1), data, plan=Plan(rounds=3, cohort=1))
    assert several.run(several.start()).server.prior.sum() != pytest.approx(4)
    assert alone.run(alone.start()).server.prior.sum() == pytest.approx(4)


def one_label_each(clients=6, examples=30):
    """Of three labels, two clients have each."""

    def client(label):
        return Arrays(np.eye(3, dtype=np.float32)[[label] * examples], [label] * examples)

    return Federation.build(
        {f"client-{i}": tuple(client(i // 2) for _ in range(3)) for i in range(clients)}, {}, 3
    )


def test_common_shares_are_those_of_all_clients_where_rounds_sample():
    """Two of six clients in a round, and yet every label is about as common as any other."""
    made = toys.experiment(Concord(num_heads=1), one_label_each(), plan=Plan(rounds=40, cohort=2))
    server = made.run(made.start()).server
    assert float(server.label_counts.sum()) == pytest.approx(180, rel=0.01)
    shares = server.prior / server.prior.sum()
    assert shares.min() > 0.1
    assert made.algorithm.message(server, None).label_counts is None, "clients need not know"


def test_a_share_weight_without_shares_is_refused():
    with pytest.raises(SettingError, match="share_weight must be left out where balanced is false"):
        Concord(balanced=False, share_weight=0.9)


# --- what it is for -------------------------------------------------------------------------------


def play(method, data, seed=0, rounds=30, **options):
    made = toys.experiment(
        method,
        data,
        **options,
        plan=Plan(rounds=rounds, evaluate_every=rounds, seed=seed),
        training=Training(lr=0.1, batch_size=16, momentum=0.0, epochs=1),
    )
    return made, made.run(made.start())


@pytest.mark.parametrize("seed", range(3))
def test_concepts_are_found_under_label_skew(seed):
    """Each concept has a head of its own; new clients find theirs."""
    data = concepts(seed=seed, newcomers=3)
    made, progress = play(Concord(), data, seed)
    found = [toys.rows(made)[id]["group"] for id in data.participants]
    truth = [data.groups[id]["concept"] for id in data.participants]
    assert adjusted_rand_score(truth, found) == pytest.approx(1.0)
    assert int(progress.server.used.sum()) == 3
    assert made.records[-1]["global"]["accuracy"] > 0.95


def test_a_concept_that_appears_later_takes_a_free_head():
    data = concepts(number_of_concepts=2, later=10)
    made, progress = play(Concord(), data)
    assert progress.server.grouping.number == 2
    assert int(progress.server.used.sum()) == 3
    groups = {id: toys.rows(made)[id]["group"] for id in data.participants}
    moved = {groups[id] for id in LATE}
    assert moved == {2}
    assert 2 not in {group for id, group in groups.items() if id not in LATE}
    assert made.records[-1]["local"]["accuracy"] > 0.95


def test_only_sums_are_asked_for(monkeypatch):
    orders = []
    perform = Serial.perform

    def spy(executor, order):
        orders.append(order)
        return perform(executor, order)

    monkeypatch.setattr(Serial, "perform", spy)
    play(Concord(), toys.federation(), rounds=2)
    wanted = {order.wanted for order in orders if order.step not in EVALUATION_STEPS}
    assert wanted == {"total"}
    assert all(order.each is None for order in orders), "a message of its own costs what all cost"


def test_half_of_the_label_shares_stand_beside_the_heads_in_training():
    method = Concord(num_heads=1, share_weight=0.5)
    client = some_client(method)
    message = start(method, client)
    examples = client.examples
    batch = Batch(examples.inputs(), examples.y, None, torch.arange(len(examples)))
    seen = []
    fit = client.fit
    client.fit = lambda params, loss: seen.append(loss(params, batch)) or fit(params, loss)
    method.train(client, NEW, message)
    counts = np.bincount(examples.y.numpy(), minlength=3) + 1
    beside = torch.from_numpy(0.5 * np.log(counts / counts.sum()))
    outputs = client.logits(message.params).double() + beside
    expected = torch.nn.functional.cross_entropy(outputs, examples.y)
    assert float(seen[0].detach()) == pytest.approx(float(expected), abs=1e-5)


# --- how likely inputs are ------------------------------------------------------------------------


def test_distances_are_those_of_scipy():
    """Of four cells, two heads with two classes, whose Gaussians share a covariance."""
    rng = np.random.default_rng(0)
    cells = rng.integers(4, size=20_000)
    spread = np.array([[2.0, 0.3, 0.0], [0.3, 2.0, 0.0], [0.0, 0.0, 2.0]])
    means = 3 * rng.normal(size=(4, 3))
    x = means[cells] + rng.multivariate_normal(np.zeros(3), spread, size=len(cells))
    parts = [
        sums_at_heads(
            torch.from_numpy(x[cells // 2 == head]),
            torch.from_numpy(cells[cells // 2 == head] % 2),
            torch.eye(2, dtype=torch.float64)[head],
            2,
        )
        for head in range(2)
    ]
    found = squared_distances(tree.add(*parts), torch.from_numpy(x[:200])).flatten(1).numpy()
    expected = cdist(x[:200], means, "mahalanobis", VI=np.linalg.inv(spread)) ** 2
    assert np.abs(found - expected).max() < 0.05 * expected.max()
    assert np.abs(found - expected).mean() < 0.02 * expected.mean()


def test_distances_of_training_examples_are_normal_on_the_server():
    """(8): the mean and the variance of t over all clients' examples, and its density."""
    data = concepts()
    made, progress = play(Concord(density=True), data, rounds=3)
    method, server = made.setup.algorithm, progress.server
    network = toys.model_for(method, data, hidden=[8])
    clients = [toys.client(data.splits(id).train, network, classes=4) for id in data.participants]
    shares = log_shares_of_all(server.inputs)
    t = torch.cat(
        [log_distances(method.nearness(each, server, each.examples, shares)) for each in clients]
    ).numpy()
    number, total, squares = server.inputs.distances.tolist()
    assert number == len(t)
    assert total / number == pytest.approx(t.mean(), rel=1e-9)
    assert squares / number == pytest.approx((t**2).mean(), rel=1e-9)
    found = torch.cat(
        [method.likelihood(each, None, server, each.examples).log_x for each in clients]
    )
    assert np.allclose(found, norm(t.mean(), t.std()).logpdf(t))


def test_examples_are_shared_among_heads():
    x, y = torch.randn(9, 2, dtype=torch.float64), torch.arange(9) % 3
    sums = sums_at_heads(x, y, torch.tensor([0.25, 0.75], dtype=torch.float64), 3)
    assert sums.counts.tolist() == [[0.75] * 3, [2.25] * 3]
    assert torch.allclose(sums.first.sum(0), sums_by_class(x, y, 3).first)
    assert torch.allclose(sums.second, sums_by_class(x, y, 3).second.sum(0))


def test_what_was_never_seen_is_unlikely():
    data = concepts(newcomers=3)
    made, progress = play(Concord(density=True), data, rounds=5)
    server, method = progress.server, Concord(density=True)
    network = toys.model_for(method, data, hidden=[8])
    client = toys.client(data.splits("client-00").test, network, classes=4)
    x, y = client.examples.x, client.examples.y

    def likely(x, y):
        return method.likelihood(client, None, server, Examples(x, y))

    known, far, renamed = likely(x, y), likely(x + 20, y), likely(x, (y + 2) % 4)
    near = likely(x.mean(0, keepdim=True).expand_as(x), y)  # nearer to all than any example is
    assert (known.log_x > far.log_x).all()
    assert near.log_x.mean() < known.log_x.mean()
    assert known.log_y.mean() > renamed.log_y.mean() + 1
    assert {"log_x", "joint"} == set(made.records[-1]["thresholds"])
    own = method.adapt(client, NEW, server, new=True)
    predicted = method.predict(client, own, server, client.examples)
    labelled = predicted[torch.arange(len(y)), y].log()
    assert torch.allclose(method.likelihood(client, own, server, client.examples).log_y, labelled)


def test_inputs_too_wide_to_be_described_are_refused():
    data = toys.federation(clients=3, features=1001)
    with pytest.raises(SettingError, match=r"more than 1,000 numbers of an input, got 1,001"):
        play(Concord(density=True), data, network="linear", rounds=1)


def likelihoods(method, data, classes):
    """Of the first client's examples, after three rounds: anywhere, and at that client."""
    made, progress = play(method, data, rounds=3)
    method, server = made.setup.algorithm, progress.server
    network = toys.model_for(method, data, hidden=[8])
    client = toys.client(data.splits("client-00").train, network, classes=classes)
    own = method.adapt(client, NEW, server, new=True)
    return [method.likelihood(client, state, server, client.examples) for state in (None, own)]


def test_how_typical_an_input_is_does_not_depend_on_whose_it_is():
    of_all, of_client = likelihoods(Concord(density=True), concepts(), classes=4)
    assert torch.equal(of_all.log_x, of_client.log_x)
    assert not torch.equal(of_all.log_y, of_client.log_y)


@pytest.mark.parametrize("balanced", [True, False])
def test_of_a_single_client_labels_are_as_likely_as_anywhere(balanced):
    """With one head: its shares are those of all."""
    method = Concord(num_heads=1, density=True, balanced=balanced)
    of_all, of_client = likelihoods(method, drawn(1, 60, rare=0.2), classes=2)
    assert torch.allclose(of_all.log_y, of_client.log_y, atol=0.05)


def test_modelling_inputs_changes_no_model():
    data = concepts()
    plain, dense = (play(Concord(density=on), data, rounds=3)[1] for on in (False, True))
    assert tree.equal(plain.server.params, dense.server.params)
    assert plain.server.inputs is None
    assert dense.traffic.up > plain.traffic.up


def test_sums_of_features_stand_for_all_clients_where_rounds_sample():
    data = concepts(clients=12, examples=10)
    plan = Plan(rounds=30, evaluate_every=30, cohort=3)
    made = toys.experiment(Concord(density=True), data, plan=plan)
    counts = made.run(made.start()).server.inputs.sums.counts
    assert float(counts.sum()) == pytest.approx(120, rel=0.01)


def test_who_is_away_when_inputs_are_described_makes_no_training_void():
    plan = Plan(rounds=12, evaluate_every=12, cohort=1, dropout=0.4)
    void = {}
    for density in (False, True):
        made = toys.experiment(Concord(density=density), concepts(clients=6), plan=plan)
        void[density] = made.run(made.start()).void_rounds
    assert void[True] == void[False] > 0


def test_as_many_groups_as_heads_may_be_looked_for():
    assert Concord(num_heads=3, most_groups=3).candidates.sizes == [2, 3]
    stages = Concord(most_groups=1, settling_steps=0).stages(5, None)
    assert [stage.name for stage in stages] == ["train"]
    with pytest.raises(SettingError, match=r"most_groups must be <= num_heads = 3, got 4"):
        Concord(num_heads=3, most_groups=4)


# --- who is away ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_drop_out_while_groups_are_looked_for(seed):
    """A third of the replies is lost: nobody is taken out of sums that they have no part in."""
    data = concepts(seed=seed, number_of_concepts=2)
    plan = Plan(rounds=4, evaluate_every=4, seed=seed, dropout=0.3)
    made = toys.experiment(Concord(), data, plan=plan)
    progress = made.run(made.start())
    assert progress.server.grouping.number == 2
    assert int(progress.server.used.sum()) == 2
    assert set(made.records[-1]["missing"]) == {"dropped out"}, "no reply was refused"


@pytest.mark.parametrize("is_in_it", [True, False])
def test_a_client_judges_heads_without_its_own_part(monkeypatch, is_in_it):
    """Which it has only if the sums are of the round in which it has joined."""
    judged = []

    def spy(sums, sizes):
        judged.append(sums)
        return linear_heads_of_all(sums, sizes)

    monkeypatch.setattr(grouping, "linear_heads_of_all", spy)
    method = Concord(num_heads=3)
    client = some_client(method)
    client.examples.cached("features", client.examples.x.double)
    state, first = method.join_groups(client, NEW, GroupSums(None, -1, is_last=False))
    own = first["sums"].value
    others = ClassSums(*(3 * part + 1 for part in own))
    total = ClassSums(*(a + b for a, b in zip(own, others, strict=True))) if is_in_it else others
    round = state.joined.round if is_in_it else state.joined.round + 1
    method.join_groups(client, state, GroupSums(total, round, is_last=False))
    for half, sums in enumerate(judged):
        for found, expected in zip(sums, others, strict=True):
            torch.testing.assert_close(found, expected[half].double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_rounds_in_which_too_few_answer_end_nothing(seed):
    plan = Plan(rounds=3, evaluate_every=3, seed=seed, dropout=0.5, min_replies=4)
    made = toys.experiment(Concord(), toys.federation(), plan=plan)
    assert made.run(made.start()).round > 0


def test_groups_that_nobody_has_judged_are_not_sent_around(monkeypatch):
    monkeypatch.setattr(Concord, "judge_groups", lambda method, server, cohort: server)
    _, progress = play(Concord(), toys.federation(), rounds=1)
    assert progress.server.grouping == Grouping()
    assert int(progress.server.used.sum()) == 1


def test_clients_of_one_concept_do_not_part_before_anything_is_learnt():
    made, progress = play(Concord(num_heads=2), concepts(number_of_concepts=1), rounds=12)
    assert int(progress.server.used.sum()) == 1
    assert {row["group"] for row in toys.rows(made).values()} == {0}


def test_a_client_that_has_missed_the_groups_looks_until_it_has_decided():
    method = Concord(num_heads=3)
    client = some_client(method)
    message = start(method, client)
    undecided = NEW._replace(omega=torch.full((3,), 1 / 3, dtype=torch.float64), visits=1)
    looked = method._choose_heads(client, undecided, message)
    assert torch.equal(looked, method.adapt(client, NEW, message, new=True).omega)


# --- how much is sent -----------------------------------------------------------------------------


def test_many_heads_look_for_no_more_groups():
    assert Concord(num_heads=1000).candidates == Concord(num_heads=6).candidates


def test_wide_tables_are_one_group_unseen():
    data = toys.federation(clients=3, features=1001)
    made, progress = play(Concord(), data, rounds=1)
    assert progress.server.grouping.number == 1
    found = made.records[-1]["server"]
    assert (found["heads"], found["groups"]) == (1, 1)


def test_a_round_sends_little_more_than_fedavgs():
    """Six heads on lenet, and the groups: at most 1.3 times FedAvg's bytes in forty rounds."""
    plan = Plan(rounds=40, evaluate_every=40)
    sent = []
    for method in (Concord(), FedAvg()):
        made = toys.experiment(method, toys.image_federation(), plan=plan, network="lenet")
        traffic = made.run(made.start()).traffic
        sent.append(traffic.up + traffic.down)
    assert sent[1] < sent[0] < 1.3 * sent[1]
