import importlib.util

import numpy as np
import pytest
import torch

import toys
from concordfl.core import Examples
from concordfl.toolbox import embedding

HERE = all(importlib.util.find_spec(package) for package in embedding.PACKAGES)
needs_encoder = pytest.mark.skipif(not HERE, reason="the extra `encoders` is not installed")


def images(count, channels=3, seed=0):
    x = np.random.default_rng(seed).integers(256, size=(count, 32, 32, channels), dtype=np.uint8)
    return Examples(torch.from_numpy(x), torch.zeros(count, dtype=torch.int64))


@needs_encoder
@pytest.mark.parametrize("name", ["efficientnet-lite0", "efficientnet-lite0-96"])
def test_the_encoder_is_the_pre_trained_network_below_its_last_layer(name):
    examples = images(5)
    client = toys.client(examples, None)
    found = embedding.features(client, name, examples)
    module = embedding.encoder(name)
    assert found.shape == (5, 1280)
    with torch.no_grad():
        large = torch.nn.functional.interpolate(
            examples.inputs() * 255, size=module.pixels, mode="bilinear", align_corners=False
        )
        theirs = module.network((large - 127) / 128)  # its 1,000 classes
        ours = module.network._fc(found.float())
    assert torch.allclose(ours, theirs, atol=1e-3)
    assert embedding.encoder(name) is module
    assert not any(parameter.requires_grad for parameter in module.parameters())


@needs_encoder
def test_grey_images_are_seen_as_colour_ones():
    grey = images(3, channels=1)
    colour = Examples(grey.x.expand(-1, -1, -1, 3).contiguous(), grey.y)
    client = toys.client(grey, None)
    left, right = (
        embedding.features(client, "efficientnet-lite0-96", examples) for examples in (grey, colour)
    )
    assert torch.allclose(left, right, atol=1e-4)


@needs_encoder
def test_an_example_is_encoded_once(monkeypatch):
    examples, calls = images(9), []
    module = embedding.encoder("efficientnet-lite0-96")
    monkeypatch.setattr(
        module.network,
        "extract_features",
        lambda x, inner=module.network.extract_features: calls.append(len(x)) or inner(x),
    )
    client = toys.client(examples, None)
    first = embedding.features(client, "efficientnet-lite0-96", examples)
    assert torch.equal(embedding.features(client, "efficientnet-lite0-96", examples), first)
    assert sum(calls) == 9


def test_plain_inputs_are_flattened():
    examples = images(4, channels=1)
    found = embedding.features(toys.client(examples, None), "pca", examples)
    assert torch.equal(found, (examples.x.reshape(4, -1).float() / 255).double())


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        embedding.SettingError,
        match=r"embedding 'efficientnet-lite0' needs .*: `pip install concordfl\[encoders\]`",
    ):
        embedding.check("efficientnet-lite0")
