"""The last steps of Concord's heads, against scikit-learn and what must come out of them."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import toys
from concordfl import Aggregation, Training
from concordfl.algorithms import Concord
from concordfl.algorithms.settling import Settling, Slope, Weighed, _begin, _step
from concordfl.core import Classification, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan


def overlapping(clients=6, examples=80, seed=0, classes=3):
    """Classes that no line parts, at clients with label shares of their own."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 4))

    def draw(count, shares):
        y = rng.choice(classes, size=count, p=shares)
        return Arrays((centres[y] + 1.5 * rng.normal(size=(count, 4))).astype(np.float32), y)

    def client():
        shares = rng.dirichlet(np.ones(classes))
        return tuple(draw(count, shares) for count in (examples, 10, 40))

    return Federation.build({f"client-{i}": client() for i in range(clients)}, {}, classes)


def play(method, data, network="linear", **plan):
    made = toys.experiment(
        method,
        data,
        network=network,
        plan=Plan(**{"rounds": 3, "evaluate_every": 50} | plan),
        training=Training(lr=0.3, batch_size=20, momentum=0.0, epochs=1),
    )
    return made, made.run(made.start()).server


def of_all(data):
    splits = [data.splits(id).train for id in data.participants]
    return tuple(torch.cat([getattr(split, part) for split in splits]) for part in ("x", "y"))


def test_one_head_settles_where_the_pooled_regression_is():
    data = overlapping()
    method = Concord(num_heads=1, balanced=False, settling_steps=200)
    _, server = play(method, data)
    x, y = of_all(data)
    outputs = x @ server.params["head.weight"].T + server.params["head.bias"]
    oracle = LogisticRegression(C=1e4, max_iter=2000, tol=1e-8).fit(x, y).predict_proba(x)
    assert np.allclose(outputs.softmax(1), oracle, atol=2e-3)


@pytest.mark.parametrize("num_heads", [1, 4])
def test_settled_heads_have_the_least_loss_of_training(num_heads):
    """By automatic differentiation of the loss that clients train: label shares beside heads."""
    data = overlapping()
    lengths = {}
    for steps in (0, 200):
        made, server = play(Concord(num_heads=num_heads, settling_steps=steps), data, "mlp")
        head = {n: server.params[n].clone().requires_grad_() for n in made.task.model.head_names}
        total = torch.zeros(())
        for id in data.participants:
            client = toys.client(data.splits(id).train, made.task.model)
            own = made.algorithm.head_shares(client, toys.state(made, id), server)
            beside = made.algorithm.beside_in_training(client, server)
            z = made.algorithm.features(client, server, client.examples).float()
            rows = z @ head["head.weight"].T + head["head.bias"]
            outputs = (rows.view(len(z), num_heads, -1) + beside).log_softmax(-1)
            each = outputs[torch.arange(len(z)), :, client.examples.y]
            total = total - (each * own.float()).sum()
        slopes = torch.autograd.grad(total, list(head.values()))
        lengths[steps] = float(sum(slope.square().sum() for slope in slopes) ** 0.5)
    assert lengths[200] < 0.02 * lengths[0]


def test_the_encoder_stays():
    data = overlapping()
    made, before = play(Concord(settling_steps=0), data, "mlp")
    _, after = play(Concord(settling_steps=5), data, "mlp")
    for name in made.task.model.encoder_names:
        assert torch.equal(before.params[name], after.params[name])
    for name in made.task.model.head_names:
        assert not torch.equal(before.params[name], after.params[name])


def test_heads_without_offsets():
    data = overlapping()
    made, server = play(Concord(settling_steps=5), data, "toys:unbiased_net")
    assert server.params["head.weight"].isfinite().all()
    assert made.task.model.head_names == ("head.weight",)


def test_examples_count_by_the_weights_of_their_classes():
    data, method = overlapping(), Concord(num_heads=1, settling_steps=1)
    made, server = play(method, data)
    client = toys.client(
        data.splits("client-0").train, made.task.model, published=lambda name: server
    )
    client.objective = Classification(3, class_weights=(1.0, 2.0, 3.0))
    weights = method._settled(client, toys.state(made, "client-0"))[1]
    assert torch.equal(weights[:, 0], client.examples.y + 1.0)


def test_a_step_is_newtons_for_a_quadratic_loss():
    """Whose slope is the bound times the way to the least: one step is enough."""
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(50, 3)))
    second = (z.T @ z)[None]
    start = _begin(torch.zeros(1, 2, 3).double(), Weighed(torch.tensor([50.0]).double(), second))
    least = torch.from_numpy(rng.normal(size=(1, 2, 3)))
    slope = (start.ahead - least) @ (second / 2)
    half = Slope(torch.tensor([25.0]).double(), slope / 2)  # of half of the clients
    for given in (Slope(torch.tensor([50.0]).double(), slope), half):
        assert torch.allclose(_step(start, given).heads, least, atol=1e-3)


def test_heads_that_nobody_has_stay():
    weighed = Weighed(torch.tensor([10.0, 0]).double(), torch.eye(3).double() * 10)
    weighed = Weighed(weighed.mass, torch.stack([weighed.second, 0 * weighed.second]))
    first = torch.ones(2, 2, 3).double()
    settling = _begin(first, weighed)
    assert isinstance(settling, Settling)
    slope = torch.stack([torch.ones(2, 3), torch.zeros(2, 3)]).double()
    after = _step(settling, Slope(weighed.mass, slope))
    assert torch.equal(after.heads[1], first[1])
    assert not torch.equal(after.heads[0], first[0])
    assert all(leaf.isfinite().all() for leaf in after if isinstance(leaf, torch.Tensor))


@pytest.mark.parametrize("plan", [{"dropout": 0.4}, {"cohort": 2}])
def test_clients_that_are_away(plan):
    data = overlapping(clients=8)
    _, whole = play(Concord(num_heads=1, settling_steps=40), data)
    made, some = play(Concord(num_heads=1, settling_steps=40), data, **plan)
    assert some.params["head.weight"].isfinite().all()
    x, y = of_all(data)

    def accuracy(server):
        outputs = x @ server.params["head.weight"].T + server.params["head.bias"]
        return float((outputs.argmax(1) == y).double().mean())

    assert accuracy(some) > accuracy(whole) - 0.05
    assert tree.num_bytes(made.algorithm.message(some, None)) < tree.num_bytes(some)


def test_a_step_of_the_server_is_not_asked_of_rounds_that_settle():
    steps = Aggregation(server_lr=0.5)
    made = toys.experiment(
        Concord(settling_steps=2), overlapping(), plan=Plan(rounds=2), aggregation=steps
    )
    assert made.run(made.start()).round > 2


def wide(width):
    data = overlapping()

    def padded(part):
        return Arrays(np.pad(part.x.numpy(), ((0, 0), (0, width - part.x.shape[1]))), part.y)

    splits = {id: data.splits(id) for id in data.participants}
    return Federation.build(
        {id: tuple(padded(p) for p in (s.train, s.validation, s.test)) for id, s in splits.items()},
        {},
        3,
    )


def test_heads_that_see_too_much_do_not_settle_and_that_is_said():
    made, server = play(Concord(most_groups=1), wide(1001))
    assert server.settling is None
    assert "heads were not settled, as they see 1,001" in made.algorithm.left_out(made.task, server)
    chosen, server = play(Concord(most_groups=1, settling_steps=0), wide(1001))
    assert not chosen.algorithm.left_out(chosen.task, server)
    usual, server = play(Concord(most_groups=1), wide(1000), rounds=1)
    assert server.settling is not None
    assert not usual.algorithm.left_out(usual.task, server)


def test_a_run_that_ends_before_says_so():
    """As one does whose training has not become better for long: patience is about training."""
    plan = {"rounds": 30, "evaluate_every": 1, "patience": 2}
    made, server = play(Concord(most_groups=1), overlapping(), **plan)
    assert server.settling is None
    assert made.records[-1]["stage"] == "train"
    assert "the run ended before" in made.algorithm.left_out(made.task, server)
