"""Settings by name: of a registry, or, of methods, a user's own class."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from .algorithms import ALGORITHMS, ALIASES
from .core import Algorithm, SettingError, Settings
from .core.own_code import find_function, name_of_object, names_own_code, refuse_given
from .core.settings import nearest, received
from .diagnosis import auto

Kind = TypeVar("Kind", bound=Settings)


def choose(
    table: Mapping[str, Any], key: str, registry: Mapping[str, type[Kind]], where: str
) -> Kind:
    """The settings that `table[key]` names, with the rest of the table as their values."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} must be a table with a {key}, got {received(table)}")
    rest = dict(table)
    name = rest.pop(key, None)
    if not isinstance(name, str) or name not in registry:
        raise SettingError(
            f"{where}.{key} must be a known name, got {received(name)}"
            f"{nearest_name(name, registry)}"
        )
    return registry[name].from_table(rest, where)


def nearest_name(name: object, known: Iterable[str]) -> str:
    return nearest(name if isinstance(name, str) else "", known)


def named(settings: Settings, key: str, registry: Mapping[str, type[Any]]) -> dict[str, Any]:
    return {key: name_of(settings, registry), **settings.to_table()}


def name_of(settings: Settings, registry: Mapping[str, type[Any]]) -> str:
    """The name of settings that can only be made from a registry."""
    for name, kind in registry.items():
        if kind is type(settings):
            return name
    raise SettingError(
        f"settings must be of a known kind, got {type(settings).__name__}: known are "
        f"{', '.join(sorted(registry))}"
    )


# --- methods --------------------------------------------------------------------------------------

# What [algorithm] may name: methods, and `auto`, which stands for one of them.
METHODS: Mapping[str, type[Algorithm]] = {**ALGORITHMS, auto.NAME: auto.Auto}


def registered(name: str) -> str:
    """The name in the registry of a method that may be called by another one."""
    return ALIASES.get(name, name)


def algorithm_name(algorithm: Algorithm) -> str:
    """What a method is called in tables and summaries: its name in the registry, else that of its
    class.
    """
    return _registered_name(algorithm) or type(algorithm).__name__


def algorithm_reference(algorithm: Algorithm) -> str:
    """What a run file calls a method: its name in the registry, else `package.module:Class`, or
    `<Class>` for one that cannot be imported.
    """
    return _registered_name(algorithm) or name_of_object(type(algorithm))


def method_table(algorithm: Algorithm) -> dict[str, Any]:
    """The `[algorithm]` section of a method."""
    return {"name": algorithm_reference(algorithm), **algorithm.to_table()}


def _registered_name(algorithm: Algorithm) -> str | None:
    return next((name for name, kind in METHODS.items() if kind is type(algorithm)), None)


def require_method(algorithm: Algorithm) -> None:
    """Refuse `auto` where nothing is diagnosed first."""
    if isinstance(algorithm, auto.Auto):
        raise SettingError(
            "auto is for one run (`concordfl run`, cf.run), which diagnoses its clients first, and "
            "must be a method elsewhere, got algorithm.name = 'auto'"
        )


def method_from(table: Mapping[str, Any], where: str) -> Algorithm:
    """The method that a section names: one of ours, or a user's own class."""
    name = table.get("name")
    if not names_own_code(name):
        refuse_given(name, "algorithm")
        return choose(table, "name", METHODS, where)
    rest = {key: value for key, value in table.items() if key != "name"}
    return method_class(str(name), f"{where}.name").from_table(rest, where)


def method_class(name: str, setting: str) -> type[Algorithm]:
    """The class of a method that `setting` names, ours or a user's own."""
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    kind = find_function(name, setting)
    if not isinstance(kind, type) or not issubclass(kind, Algorithm):
        raise SettingError(
            f"{setting} must name a class of concordfl.Algorithm, got {received(name)}"
        )
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise SettingError(
            f"{setting} must name a class that defines {', '.join(missing)}, got {received(name)}"
        )
    return kind
