"""Networks by name.

Each has an `encoder` and a `head`, a last linear layer; `head(encoder(x))` are the logits.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from ..core import SettingError
from ..core.settings import check_keys, nearest
from .cnn import cnn
from .dense import linear, mlp
from .femnist_cnn import femnist_cnn
from .lenet import lenet
from .mobilenet import mobilenet_v2
from .parts import widened
from .resnet import resnet18, resnet50
from .vgg import vgg9

# (input shape, number of classes, options) -> a new network
Factory = Callable[..., nn.Module]

MODELS: dict[str, Factory] = {
    "cnn": cnn,
    "femnist_cnn": femnist_cnn,
    "lenet": lenet,
    "linear": linear,
    "mlp": mlp,
    "mobilenet_v2": mobilenet_v2,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "vgg9": vgg9,
}


def make_builder(
    name: str, input_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    """A function that builds the network anew at each call. `name` may be a user's own, as
    `package.module:function`.

    The option `width_copies` puts so many encoders side by side under one head: a baseline as wide
    as a concatenated model.
    """
    if not isinstance(name, str):
        raise SettingError(f"model.name must be a string, got {name!r}")
    factory = _find_own(name) if ":" in name else _find(name)
    own = {key: value for key, value in options.items() if key != "width_copies"}
    copies = options.get("width_copies", 1)
    if not isinstance(copies, int) or copies < 1:
        raise SettingError(f"model.width_copies must be a whole number >= 1, got {copies!r}")
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_keys(own, [*list(parameters)[2:], "width_copies"], "model")
    return partial(_build, factory, name, tuple(input_shape), num_classes, own, copies)


def _build(
    factory: Factory,
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: dict[str, Any],
    copies: int,
) -> nn.Module:
    modules = [factory(input_shape, num_classes, **options) for _ in range(copies)]
    if not isinstance(modules[0], nn.Module):
        raise SettingError(
            f"model {name!r} must return a torch.nn.Module, got {type(modules[0]).__name__}"
        )
    return modules[0] if copies == 1 else widened(modules)


def _find(name: str) -> Factory:
    if name not in MODELS:
        raise SettingError(
            "model.name must be a known model or `package.module:function`, got "
            f"{name!r}{nearest(name, MODELS)}"
        )
    return MODELS[name]


def _find_own(name: str) -> Factory:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingError(
            f"model.name must be importable as `package.module:function`, got {name!r}: {error}"
        ) from None
    if not callable(found):
        raise SettingError(
            f"model.name must name a function, got {name!r}, a {type(found).__name__}"
        )
    factory: Factory = found
    return factory
