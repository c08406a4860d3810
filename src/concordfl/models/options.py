"""Options of a network: checked against the types of the function that builds it."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from pydantic import TypeAdapter
from torch import nn

from ..core.settings import ModelCount, check_keys, check_value
from .given import takes_nothing

# (input shape, number of classes, options) -> a new network
Factory = Callable[..., nn.Module]

WIDTH_COPIES = "width_copies"
_COPIES: TypeAdapter[int] = TypeAdapter(ModelCount)


def checked_copies(options: Mapping[str, Any]) -> int:
    """How many encoders are put side by side."""
    copies: int = check_value(f"model.{WIDTH_COPIES}", _COPIES, options.get(WIDTH_COPIES, 1))
    return copies


def checked_options(factory: Factory, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of one of our own networks, each as its annotation has it."""
    adapters = _adapters(factory)
    check_keys(options, [*adapters, WIDTH_COPIES], "model")
    return {
        name: check_value(f"model.{name}", adapters[name], _as_tuple(value))
        for name, value in options.items()
        if name != WIDTH_COPIES
    }


def named_options(factory: Factory, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a user's network: their names are checked, their values are the user's."""
    try:
        parameters: Mapping[str, inspect.Parameter] | None = inspect.signature(factory).parameters
    except ValueError:  # a function written in C may not say what it takes
        parameters = None
    if parameters is not None and not _takes_any(parameters):
        first = 0 if takes_nothing(factory) else 2
        check_keys(options, [*list(parameters)[first:], WIDTH_COPIES], "model")
    return {name: value for name, value in options.items() if name != WIDTH_COPIES}


def _takes_any(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())


@functools.cache
def _adapters(factory: Factory) -> dict[str, TypeAdapter[Any]]:
    hints = get_type_hints(factory, include_extras=True)
    names = list(inspect.signature(factory).parameters)[2:]
    return {name: TypeAdapter(hints[name]) for name in names}


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
