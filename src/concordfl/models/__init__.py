"""Networks by name.

Each has an `encoder` and a `head`, a last linear layer; `head(encoder(x))` are the logits.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from ..core import SettingError
from ..core.own_code import check_name, find_function, names_own_code, refuse_given
from ..core.settings import nearest, received
from .cnn import cnn
from .dense import linear, mlp
from .femnist_cnn import femnist_cnn
from .given import Given, further_builder, named, takes_nothing
from .given import builder as given_builder
from .lenet import lenet
from .memory import require_memory
from .mobilenet import mobilenet_v2
from .options import Factory, checked_copies, checked_options, named_options
from .parts import widened
from .resnet import resnet18, resnet50
from .vgg import vgg9

__all__ = [
    "MODELS",
    "Given",
    "check",
    "further_builder",
    "given_builder",
    "make_builder",
    "named",
]

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


def check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse a network that is not known, or options that it does not take. Nothing is imported:
    a user's own function is looked at when the network is made.
    """
    if not isinstance(name, str):
        raise SettingError(f"model.name must be a string, got {received(name)}")
    checked_copies(options)
    refuse_given(name, "model")
    if names_own_code(name):
        check_name(name, "model.name")
    else:
        checked_options(_known(name), options)


def make_builder(
    name: str, input_shape: tuple[int, ...], num_classes: int, options: Mapping[str, Any]
) -> Callable[[], nn.Module]:
    """A function that builds the network anew at each call. `name` may be a user's own, as
    `package.module:function`.

    The option `width_copies` puts several encoders side by side under one head: a baseline as wide
    as a concatenated model.
    """
    check(name, options)
    shape, copies = tuple(input_shape), checked_copies(options)
    if names_own_code(name):
        factory = find_function(name, "model.name")
        values = named_options(factory, options)
    else:
        factory = _known(name)
        values = checked_options(factory, options)
        require_memory(factory, name, shape, num_classes, values, copies)
    return partial(_build, factory, name, shape, num_classes, values, copies)


def _build(
    factory: Factory,
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    options: dict[str, Any],
    copies: int,
) -> nn.Module:
    given = () if takes_nothing(factory) else (input_shape, num_classes)
    modules = [factory(*given, **options) for _ in range(copies)]
    if not isinstance(modules[0], nn.Module):
        raise SettingError(
            f"model {name!r} must return a torch.nn.Module, got {type(modules[0]).__name__}"
        )
    return modules[0] if copies == 1 else widened(modules)


def _known(name: str) -> Factory:
    if name not in MODELS:
        raise SettingError(
            "model.name must be a known model or `package.module:function`, got "
            f"{received(name)}{nearest(name, MODELS)}"
        )
    return MODELS[name]
