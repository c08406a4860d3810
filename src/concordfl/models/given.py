"""Networks given in Python: an `nn.Module`, or a function that builds one."""

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from ..core import SettingError
from ..core.own_code import is_given, name_of_object, object_name
from ..core.settings import received

Given = nn.Module | Callable[..., nn.Module]


def named(given: object) -> tuple[str, Given | None]:
    """How settings name a network, and the object itself where only this process has it.

    A function that another process can import is named by its module. A module is copied, so that
    whatever becomes of it later changes no run.
    """
    if isinstance(given, nn.Module):
        return object_name(type(given)), copy.deepcopy(given)
    if not callable(given):
        raise SettingError(
            "model must be a name, a table, a torch.nn.Module or a function that returns one, got "
            f"{received(given)}"
        )
    inner = getattr(given, "func", given)  # of a partial function
    name = name_of_object(given) if inner is given else object_name(inner)
    return name, given if is_given(name) else None


def builder(
    given: Given, name: str, input_shape: tuple[int, ...], num_classes: int
) -> Callable[[], nn.Module]:
    """A function that makes the network anew at each call: a module starts as it was given."""
    if isinstance(given, nn.Module):
        return partial(copy.deepcopy, given)
    return partial(_call, given, name, tuple(input_shape), num_classes)


def further_builder(given: Given | None, name: str) -> Callable[[], nn.Module] | None:
    """How the second and further models of a mixture are made, where it is not as the first."""
    return partial(_reset, given, name) if isinstance(given, nn.Module) else None


def takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function is to be called without the shape of an example and the number of classes:
    it can be, and its first two parameters are not called so.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function written in C may not say what it takes
        return False
    if list(signature.parameters)[:2] == ["input_shape", "num_classes"]:
        return False
    return not _required(signature.parameters)


def _required(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, one in parameters.items()
        if one.default is one.empty and one.kind not in variadic
    ]


def _call(
    function: Callable[..., Any], name: str, input_shape: tuple[int, ...], num_classes: int
) -> nn.Module:
    made = function() if takes_nothing(function) else function(input_shape, num_classes)
    if not isinstance(made, nn.Module):
        raise SettingError(
            f"model {name!r} must return a torch.nn.Module, got {type(made).__name__}"
        )
    return made


def _reset(given: nn.Module, name: str) -> nn.Module:
    """A copy with parameters drawn anew: several models that start alike would stay alike."""
    module = copy.deepcopy(given)
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
        elif next(part.parameters(recurse=False), None) is not None:
            raise SettingError(
                f"model {name!r} must be given as a function for a method of several models, got a "
                f"module whose {type(part).__name__} has no reset_parameters"
            )
    return module
