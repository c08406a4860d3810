import pytest
import torch

from concordfl import Model, SettingError
from concordfl.models import MODELS, check, make_builder, memory


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("lenet", 44_426),
        ("cnn", 2_171_786),
        ("linear", 7_850),
        ("mlp", 50_890),
        ("femnist_cnn", 6_497_162),
    ],
)
def test_sizes_at_28x28(name, parameters):
    model = Model(make_builder(name, (1, 28, 28), 10, {}))
    assert model.num_parameters == parameters
    assert model.logits(model.init(0), torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_the_femnist_cnn_with_dropout():
    """The size that its authors count at 62 classes; what is dropped is drawn in training only."""
    model = Model(make_builder("femnist_cnn", (1, 28, 28), 62, {"variant": "reddi"}))
    assert model.num_parameters == 1_206_590
    encoder = model.module(model.init(0)).encoder
    kinds = [type(layer).__name__ for layer in encoder]
    assert [layer.kernel_size for layer in encoder if hasattr(layer, "kernel_size")][:2] == [
        (3, 3),
        (3, 3),
    ]
    assert [layer.p for layer in encoder if isinstance(layer, torch.nn.Dropout)] == [0.25, 0.5]
    assert kinds.count("MaxPool2d") == 1
    params, x = model.init(0), torch.rand(4, 1, 28, 28)
    assert torch.equal(model.logits(params, x), model.logits(params, x))
    with model.trained(params) as (live, _):
        assert not torch.equal(model.features(live, x), model.features(live, x))
    with pytest.raises(
        SettingError, match="model.variant must be one of 'leaf' or 'reddi', got 'big'"
    ):
        make_builder("femnist_cnn", (1, 28, 28), 62, {"variant": "big"})


@pytest.mark.parametrize(
    ("name", "parameters"),
    # The published networks with a first layer for small images, and ten classes.
    [
        ("resnet18", 11_173_962),
        ("resnet50", 23_520_842),
        ("mobilenet_v2", 2_236_682),
        ("vgg9", 3_491_530),
    ],
)
def test_sizes_at_32x32_in_colour(name, parameters):
    assert Model(make_builder(name, (3, 32, 32), 10, {})).num_parameters == parameters


def test_wide_baselines_have_several_encoders_under_one_head():
    model = Model(make_builder("lenet", (1, 28, 28), 10, {"width_copies": 5}))
    assert model.num_parameters == 5 * (44_426 - 850) + 5 * 840 + 10
    params, x = model.init(0), torch.rand(2, 1, 28, 28)
    assert model.features(params, x).shape == (2, 5 * 84)
    assert not torch.equal(
        params["encoder.encoders.0.0.weight"], params["encoder.encoders.1.0.weight"]
    )
    with pytest.raises(SettingError, match=r"model.width_copies must be >= 1, got 0"):
        make_builder("lenet", (1, 28, 28), 10, {"width_copies": 0})
    with pytest.raises(
        SettingError, match="needs a model with an encoder and a head, got Sequential"
    ):
        make_builder("toy_models:narrow", (1, 8, 8), 10, {"width_copies": 2})()


def test_normalisation_layers_are_found_inside_residual_branches():
    model = Model(make_builder("resnet18", (3, 16, 16), 10, {}))
    assert len(model.normalisation_names) == 4 * 20
    assert any(".branch." in name for name in model.normalisation_names)
    assert any(".shortcut." in name for name in model.normalisation_names)


def test_head_is_the_last_linear_layer():
    model = Model(make_builder("lenet", (1, 28, 28), 10, {}))
    params, x = model.init(0), torch.rand(3, 1, 28, 28)
    assert sum(params[name].numel() for name in model.head_names) == 850
    features = model.features(params, x)
    assert features.shape == (3, 84)
    by_hand = features @ params["head.weight"].T + params["head.bias"]
    assert torch.allclose(model.logits(params, x), by_hand, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_colour_images(name):
    model = Model(make_builder(name, (3, 32, 32), 7, {}))
    assert model.logits(model.init(0), torch.zeros(1, 3, 32, 32)).shape == (1, 7)


def test_options():
    model = Model(make_builder("mlp", (4,), 2, {"hidden": [5, 6]}))
    assert [
        tuple(value.shape) for name, value in model.init(0).items() if name.endswith("weight")
    ] == [(5, 4), (6, 5), (2, 6)]
    with pytest.raises(SettingError, match=r"unknown key 'model.hiden': did you mean 'hidden'"):
        make_builder("mlp", (4,), 2, {"hiden": [5]})


def test_a_users_own_factory():
    build = make_builder("toys:batch_norm_net", (5,), 3, {})
    assert Model(build).num_parameters == 91


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "lenett",
            "must be a known model or `package.module:function`, got 'lenett': did you mean "
            "'lenet'",
        ),
        ("no.such:thing", "must be importable as `package.module:function`, got 'no.such:thing'"),
        ("toys:nothing", "must be importable"),
        ("toys:TRAINING", "must name a function, got 'toys:TRAINING', a Training"),
    ],
)
def test_unknown_models(name, message):
    with pytest.raises(SettingError, match=message):
        make_builder(name, (5,), 3, {})


def test_wrong_shapes_and_results():
    with pytest.raises(SettingError, match="takes images of at least 16x16, got examples of shape"):
        make_builder("lenet", (5,), 3, {})()
    with pytest.raises(SettingError, match=r"must return a torch.nn.Module, got int"):
        make_builder("toy_models:not_a_module", (5,), 3, {})()


def test_lenet_may_normalise():
    plain = Model(make_builder("lenet", (1, 28, 28), 10, {}))
    normalised = Model(make_builder("lenet", (1, 28, 28), 10, {"batch_norm": True}))
    assert plain.normalisation_names == ()
    assert normalised.num_parameters == 44_426 + 2 * (6 + 16 + 120)
    assert len(normalised.normalisation_names) == 3 * 4


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("lenet", {"batch_norm": "no"}, "model.batch_norm must be true or false, got 'no'"),
        ("mlp", {"hidden": "64"}, "model.hidden must be a list, got '64'"),
        ("mlp", {"hidden": 64}, "model.hidden must be a list, got 64"),
        ("mlp", {"hidden": [0]}, "model.hidden.0 must be >= 1, got 0"),
        ("mlp", {"hidden": [64, True]}, "model.hidden.1 must be a whole number, got True"),
        ("mlp", {"hidden": [10**30]}, f"model.hidden.0 must be <= 100,000, got {10**30}"),
        ("mlp", {"hidden": [2] * 101}, "model.hidden must be a list of at most 100, got "),
        ("cnn", {"hidden": [2]}, "unknown key 'model.hidden'"),
        ("cnn", {"width_copies": 10**9}, "model.width_copies must be <= 1,000, got 1000000000"),
        ("cnn", {"width_copies": "2"}, "model.width_copies must be a whole number, got '2'"),
        ("cnn", {"width_copies": True}, "model.width_copies must be a whole number, got True"),
    ],
)
def test_options_of_a_wrong_kind(name, options, message):
    with pytest.raises(SettingError) as error:
        check(name, options)
    assert str(error.value).startswith(message)


def test_a_network_that_cannot_fit_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr(memory, "physical_memory", lambda: 10**10)
    with pytest.raises(
        SettingError,
        match=r"model 'mlp' must fit into memory 3 times, 10.0 GB, got 10,000,200,001 parameters, "
        r"which take 120.0 GB",
    ):
        make_builder("mlp", (10**5,), 1, {"hidden": [10**5]})
    parameters = 44_426 * 4 * 3
    monkeypatch.setattr(memory, "physical_memory", lambda: parameters)
    make_builder("lenet", (1, 28, 28), 10, {})
    with pytest.raises(SettingError, match="got 88,852 parameters"):
        make_builder("lenet", (1, 28, 28), 10, {"width_copies": 2})
    monkeypatch.setattr(memory, "physical_memory", lambda: None)
    make_builder("lenet", (1, 28, 28), 10, {"width_copies": 2})


def test_the_look_at_the_size_draws_nothing():
    torch.manual_seed(0)
    make_builder("lenet", (1, 28, 28), 10, {})
    drawn = torch.rand(3)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3))
