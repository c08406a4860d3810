import pickle
from functools import partial

import pytest
import torch
from torch import nn

import toys
from concordfl import Key, Model, SettingError
from concordfl.core import tree
from concordfl.models import make_builder


@pytest.fixture
def model():
    return Model(toys.BatchNormNet)


def with_projection(module):
    module.projection = nn.Linear(8, 2)
    return module


def test_params_are_weights_and_floating_point_buffers(model):
    assert set(model.names) == {
        "encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias",
        "encoder.1.running_mean", "encoder.1.running_var", "head.weight", "head.bias",
    }  # fmt: skip
    params = model.init(0)
    assert set(model.weights(params)) == set(model.names) - {
        "encoder.1.running_mean",
        "encoder.1.running_var",
    }
    assert model.head_names == ("head.weight", "head.bias")
    assert set(model.encoder_names) == set(model.names) - set(model.head_names)
    assert set(model.normalisation_names) == {
        name for name in model.names if name.startswith("encoder.1.")
    }
    assert model.num_parameters == 5 * 8 + 8 + 16 + 8 * 3 + 3


def test_init_depends_on_seed_and_index_alone(model):
    assert tree.equal(model.init(0), model.init(0, index=0))
    assert not tree.equal(model.init(0), model.init(1))
    assert not tree.equal(model.init(0), model.init(0, index=1))


def test_further_layers_leave_the_rest_where_it_would_start(model):
    extended = Model(toys.BatchNormNet, with_projection)
    assert tree.equal(tree.subset(extended.init(3), model.names), model.init(3))
    assert extended.call(extended.init(3), torch.zeros(4, 8), part="projection").shape == (4, 2)


def test_logits_are_those_of_the_module_in_eval_mode(model):
    params, x = model.init(0), torch.randn(6, 5)
    module = toys.BatchNormNet().eval()
    module.load_state_dict(params, strict=False)
    assert torch.equal(model.logits(params, x), module(x).detach())
    assert torch.equal(model.features(params, x), module.encoder(x).detach())
    assert torch.equal(model.module(params)(x), module(x))
    assert not model.logits(params, x).requires_grad


def test_other_parameters_are_noticed(model):
    x, first, second = torch.randn(6, 5), model.init(0), model.init(1)
    a, b = model.logits(first, x), model.logits(second, x)
    assert not torch.equal(a, b)
    assert torch.equal(model.logits(first, x), a)


def test_parameters_derived_from_live_ones_keep_their_gradient(model):
    params, x = model.init(0), torch.randn(6, 5)
    with model.trained(params) as (live, trainable):
        half = {name: value * 0.5 for name, value in live.items()}
        grads = torch.autograd.grad(model.logits(half, x).sum(), trainable)
    assert any(grad.abs().sum() > 0 for grad in grads)


def test_only_what_is_trained_changes_and_is_in_train_mode(model):
    params = model.init(0)
    with model.trained(params, only=model.head_names) as (live, trainable):
        model.logits(live, torch.randn(4, 5))
        assert [
            value is live["head.weight"] or value is live["head.bias"] for value in trainable
        ] == [True, True]
    # The frozen normalisation layer kept its statistics.
    assert tree.equal(model.snapshot(), params)
    with model.trained(params) as (live, _):
        model.logits(live, torch.randn(4, 5))
    assert not torch.equal(
        model.snapshot()["encoder.1.running_mean"], params["encoder.1.running_mean"]
    )


def test_unknown_names_and_parts_are_refused(model):
    with (
        pytest.raises(SettingError, match="`only` must name parameters of the model, got"),
        model.trained(model.init(0), ["x"]),
    ):
        pass
    with pytest.raises(SettingError, match="part called 'projection'"):
        model.call(model.init(0), torch.zeros(1, 8), part="projection")
    with pytest.raises(SettingError, match="part called 'encoder'"):
        Model(partial(nn.Linear, 2, 2)).head_names  # noqa: B018


def test_a_model_survives_pickling():
    model = Model(make_builder("lenet", (1, 28, 28), 10, {}))
    copy = pickle.loads(pickle.dumps(model))
    params, x = model.init(0), Key(0).uniform((2, 1, 28, 28)).float()
    assert torch.equal(copy.logits(params, x), model.logits(params, x))


def test_parameters_of_others_keep_their_buffers(model):
    """A mixture of live and received parameters is evaluated; the received statistics stay as they
    were.
    """
    received, x = model.init(0), torch.randn(6, 5)
    before = {name: received[name].clone() for name in model.buffer_names}
    with model.trained(model.init(1)) as (live, _):
        model.logits(
            {**received, **{name: 0.5 * live[name] for name in model.weight_names}}, x
        ).sum().backward()
    assert all(torch.equal(received[name], before[name]) for name in before)


def test_one_training_at_a_time(model):
    with (
        model.trained(model.init(0)),
        pytest.raises(SettingError, match="one inside another"),
        model.trained(model.init(0)),
    ):
        pass
    with model.trained(model.init(0)):
        pass


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=None, affine=False), nn.Dropout(0.5)
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.encoder(x))


def test_every_training_begins_anew():
    model, x = Model(Plain), torch.randn(8, 5)

    def statistics():
        with model.trained(model.init(0)) as (live, _):
            model.logits(live, x)
        return model.snapshot()["encoder.1.running_mean"]

    assert torch.equal(
        statistics(), statistics()
    )  # a running average counts batches, from zero each time


def test_a_frozen_encoder_is_in_eval_mode_altogether():
    model, params = Model(Plain), Model(Plain).init(0)
    with model.trained(params, only=model.head_names) as (live, _):
        outputs = model.logits(live, torch.ones(8, 5))
    assert torch.allclose(outputs, outputs[:1].expand_as(outputs), atol=1e-6)  # no drop-out
    assert tree.equal(model.snapshot(), params)
