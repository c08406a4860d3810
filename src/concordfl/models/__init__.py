"""Networks by name. Each has an `encoder` and a `head`, a last linear layer; `head(encoder(x))` are the logits."""

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
from .lenet import lenet

# (input shape, number of classes, options) -> a new network
Factory = Callable[..., nn.Module]

MODELS: dict[str, Factory] = {"cnn": cnn, "lenet": lenet, "linear": linear, "mlp": mlp}


def make_builder(
    name: str, input_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    """A function that builds the network anew at each call. `name` may be a user's own, as `package.module:function`."""
    factory = _find_own(name) if ":" in name else _find(name)
    parameters = inspect.signature(factory).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_keys(options, list(parameters)[2:], "model")
    return partial(_build, factory, name, tuple(input_shape), num_classes, dict(options))


def _build(factory: Factory, name: str, input_shape: tuple[int, ...], num_classes: int, options: dict[str, Any]) -> nn.Module:
    module = factory(input_shape, num_classes, **options)
    if not isinstance(module, nn.Module):
        raise SettingError(f"model {name!r} must return a torch.nn.Module, got {type(module).__name__}")
    return module


def _find(name: str) -> Factory:
    if name not in MODELS:
        raise SettingError(
            f"model.name must be a known model or `package.module:function`, got {name!r}{nearest(name, MODELS)}"
        )
    return MODELS[name]


def _find_own(name: str) -> Factory:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise SettingError(f"model.name must be importable as `package.module:function`, got {name!r}: {error}") from None
    if not callable(found):
        raise SettingError(f"model.name must name a function, got {name!r}, a {type(found).__name__}")
    factory: Factory = found
    return factory
