import pytest
import torch
import torch.nn.functional as F
from torch import nn

import toys
from concordfl import Examples, Model, SettingError, Training
from concordfl.core import tree
from concordfl.core.optim import Step
from concordfl.models import make_builder

SIZE = 21


@pytest.fixture
def examples():
    generator = torch.Generator().manual_seed(0)
    return Examples(
        torch.randn(SIZE, 5, generator=generator), torch.randint(3, (SIZE,), generator=generator)
    )


@pytest.fixture
def linear():
    return Model(make_builder("linear", (5,), 3, {}))


def test_inputs_of_images_are_floats_in_channels_last():
    images = torch.arange(2 * 4 * 4 * 3, dtype=torch.uint8).reshape(2, 4, 4, 3)
    inputs = Examples(images, torch.zeros(2)).inputs()
    assert inputs.shape == (2, 3, 4, 4)
    assert inputs.is_contiguous(memory_format=torch.channels_last)
    assert inputs[1, 2, 3, 3].item() == pytest.approx(images[1, 3, 3, 2].item() / 255)
    assert torch.equal(Examples(images, torch.zeros(2)).inputs(torch.tensor([1])), inputs[1:])


def test_fit_is_plain_sgd(examples, linear):
    """Against a loop written with torch.optim, to the bit."""
    training = Training(lr=0.1, momentum=0.9, weight_decay=0.01, batch_size=8, epochs=2)
    client = toys.client(examples, linear, training)
    start = linear.init(0)
    trained = client.fit(start)
    module = linear.module(start)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for epoch in range(2):
        order = client.random("fit").child(epoch).permutation(SIZE)
        for at in range(0, SIZE, 8):
            batch = order[at : at + 8]
            optimizer.zero_grad()
            F.cross_entropy(module(examples.x[batch]), examples.y[batch], reduction="sum").div(
                len(batch)
            ).backward()
            optimizer.step()
    assert tree.equal(trained, {name: value.detach() for name, value in module.named_parameters()})
    assert tree.equal(start, linear.init(0))  # what was passed in is a value


def test_weights_of_one_change_no_bit(examples, linear):
    client = toys.client(examples, linear)
    start = linear.init(0)
    assert tree.equal(
        client.fit(start), client.fit(start, weight=torch.ones(SIZE, dtype=torch.float64))
    )
    assert not tree.equal(client.fit(start), client.fit(start, weight=torch.full((SIZE,), 0.5)))


def test_zero_weights_leave_the_model_alone(examples, linear):
    start = linear.init(0)
    assert tree.equal(toys.client(examples, linear).fit(start, weight=torch.zeros(SIZE)), start)


def test_purposes_rounds_and_clients_shuffle_differently(examples, linear):
    def batches(**where):
        client = toys.client(
            examples, linear, **{key: where[key] for key in ("seed", "round") if key in where}
        )
        return client.fold(
            lambda seen, batch: [*seen, *batch.index.tolist()],
            [],
            purpose=where.get("purpose", "fit"),
        )

    orders = [batches(), batches(seed=1), batches(round=1), batches(purpose="other")]
    assert all(sorted(order) == list(range(SIZE)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert batches() == orders[0]


@pytest.mark.parametrize(
    ("given", "batches"),
    [({}, 3), ({"epochs": 2}, 6), ({"steps": 1}, 1), ({"steps": 7}, 7), ({"epochs": 0}, 0)],
)
def test_epochs_or_exact_steps(examples, linear, given, batches):
    assert toys.client(examples, linear).fold(lambda count, batch: count + 1, 0, **given) == batches


def test_only_some_parameters(examples, linear):
    start = linear.init(0)
    trained = toys.client(examples, linear).fit(start, only=["head.bias"])
    assert torch.equal(trained["head.weight"], start["head.weight"])
    assert not torch.equal(trained["head.bias"], start["head.bias"])


def test_fit_on_other_data_with_another_loss(examples, linear):
    client = toys.client(examples, linear)
    other = Examples(examples.x * 2, examples.y)
    seen = []

    def loss(params, batch):
        seen.append(batch)
        return client.loss(params, batch) + 0 * sum(value.sum() for value in params.values())

    client.fit(linear.init(0), loss, data=other)
    assert torch.equal(seen[0].x, other.x[seen[0].index])


def test_learning_rate_follows_the_stage_round(examples, linear):
    training = Training(
        lr=0.1, batch_size=SIZE, schedule=Step(every=1, gamma=0.5), momentum=0.0, epochs=1
    )
    start = linear.init(0)

    def moved(round):
        return (
            tree.sq_dist(toys.client(examples, linear, training, round=round).fit(start), start)
            .sqrt()
            .item()
        )

    assert moved(1) == pytest.approx(moved(0) / 2, rel=1e-4)


def test_dropout_is_keyed_and_buffers_are_trained(examples):
    model = Model(toys.BatchNormNet)
    client, start = toys.client(examples, model), model.init(0)
    torch.manual_seed(1)
    first = client.fit(start)
    torch.manual_seed(2)
    assert tree.equal(first, client.fit(start))
    assert not torch.equal(first["encoder.1.running_var"], start["encoder.1.running_var"])


def test_losses_and_counts(examples, linear):
    client, params = toys.client(examples, linear), linear.init(0)
    expected = F.cross_entropy(
        linear.module(params)(examples.x), examples.y, reduction="none"
    ).detach()
    assert torch.equal(client.losses(params), expected)
    both = client.losses_each({"a": params, "b": linear.init(0, index=1)})
    assert both.shape == (SIZE, 2)
    assert torch.equal(both[:, 0], expected)
    assert torch.allclose(client.predictions(params, examples).sum(1), torch.ones(SIZE))
    assert client.label_counts().tolist() == torch.bincount(examples.y, minlength=3).tolist()
    weight = torch.rand(SIZE)
    assert client.label_counts(weight)[0].item() == pytest.approx(
        weight[examples.y == 0].sum().item()
    )


def test_grad_is_autograd(examples, linear):
    client, params = toys.client(examples, linear), linear.init(0)
    grads = client.fold(
        lambda first, batch: first or client.grad(client.loss, params, batch), None, steps=1
    )
    batch = client.random("fit").child(0).permutation(SIZE)[:8]
    module = linear.module(params)
    F.cross_entropy(module(examples.x[batch]), examples.y[batch]).backward()
    assert torch.allclose(grads["head.weight"], module.head.weight.grad, atol=1e-7)


def test_memos_and_publications(examples, linear):
    calls = []
    for _ in range(2):
        assert examples.cached("features", lambda: calls.append(1) or "computed") == "computed"
    assert len(calls) == 1
    with pytest.raises(SettingError, match="nothing has been published under 'x'"):
        toys.client(examples, linear).published("x")


def test_evaluation_in_large_batches_covers_everything():
    many = Examples(torch.randn(1300, 5), torch.zeros(1300, dtype=torch.int64))
    model = Model(lambda: nn.Linear(5, 3))
    assert toys.client(many, model).logits(model.init(0)).shape == (1300, 3)


def test_gradients_with_dropout_are_keyed_and_unused_parameters_have_none(examples):
    model = Model(toys.BatchNormNet)
    client, params = toys.client(examples, model), model.init(0)
    batch = client.fold(lambda first, batch: first or batch, None, steps=1)
    torch.manual_seed(1)
    first = client.grad(client.loss, params, batch)
    torch.manual_seed(2)
    assert tree.equal(first, client.grad(client.loss, params, batch))
    features = client.grad(lambda live, b: model.features(live, b.x).sum(), params, batch)
    assert features["head.weight"].abs().sum() == 0


def test_a_network_that_works_in_place_leaves_the_examples_alone():
    examples = Examples(torch.randn(4, 5), torch.zeros(4, dtype=torch.int64))
    before = examples.x.clone()
    model = Model(lambda: nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3)))
    toys.client(examples, model).losses(model.init(0))
    assert torch.equal(examples.x, before)


def test_a_single_last_example_joins_the_batch_before_where_statistics_need_it():
    x, y = torch.randn(9, 5), torch.zeros(9, dtype=torch.int64)

    def sizes(model, count=9):
        client = toys.client(
            toys.Examples(x[:count], y[:count]),
            model,
            toys.Training(batch_size=4, momentum=0.0, epochs=1),
        )
        return client.fold(lambda seen, batch: [*seen, len(batch.y)], [], epochs=2)

    plain, normalised = Model(lambda: toys.BatchNormNet().head), Model(toys.BatchNormNet)
    assert sizes(plain) == [4, 4, 1, 4, 4, 1]
    assert sizes(normalised) == [4, 5, 4, 5]
    assert sizes(normalised, 8) == [4, 4, 4, 4]
    assert sizes(normalised, 1) == [2, 2]  # seen twice


def test_latest_is_computed_again_for_other_objects(examples, linear):
    client, calls = toys.client(examples, linear), []

    def compute():
        calls.append(len(calls))
        return calls[-1]

    here, there = [1], [1]
    assert [client.latest((here,), compute) for _ in range(3)] == [0, 0, 0]
    assert client.latest((there,), compute) == 1  # equal, but another
    assert client.latest((there, here), compute) == 2
    assert client.latest((here,), compute) == 3  # the last one alone is kept
