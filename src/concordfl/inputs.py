"""What `run` and its relatives may be given in Python, as a configuration."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from . import config as configuration
from .by_name import registered
from .config import (
    COMPARED,
    DEFAULT_ALGORITHM,
    DEFAULT_MODEL,
    SECTIONS,
    Config,
    ModelChoice,
)
from .core import Algorithm, SettingError
from .core.settings import check_keys, nearest, received
from .study.cells import method_table

Source = str | Path | Mapping[str, Any] | Config
AlgorithmLike = Algorithm | str | Mapping[str, Any]
ModelLike = nn.Module | Callable[..., nn.Module] | str | Mapping[str, Any]

# settings that are given so often that they need no section
SHORTCUTS = {
    "rounds": "run",
    "seed": "run",
    "lr": "training",
    "epochs": "training",
    "batch_size": "training",
}
# what else `run` is given by name
OTHERS = ("algorithm", "client", "clients", "label", "model", "on_round", "out")


class Inputs(NamedTuple):
    """What was given: sections as a run file has them, and objects that stand for theirs."""

    table: dict[str, Any]
    objects: dict[str, Any]

    def config(self) -> Config:
        return Config.from_table(self.table, **self.objects)


def load_config(source: Source | None = None, **given: Any) -> Config:
    """The configuration of what `read_inputs` takes, or a complete one as it is."""
    if isinstance(source, Config):
        if any(value is not None for value in given.values()):
            raise SettingError(
                "a Config is complete and must be given alone, got further settings beside it"
            )
        return source
    return read_inputs(source, **given).config()


def read_inputs(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    clients: object = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    model: ModelLike | None = None,
    algorithm: AlgorithmLike | None = None,
    **settings: Any,
) -> Inputs:
    """From a run file or a dict of sections, and what is given by name: sections as dicts, single
    settings of SHORTCUTS, and objects.

    Objects stand for their sections; `data` then has the further settings of `clients`. A method
    that is given by name has its settings in [compare.NAME], where [algorithm] is another one's.
    """
    algorithm = registered(algorithm) if isinstance(algorithm, str) else algorithm
    sections = _sections({key: value for key, value in settings.items() if value is not None})
    table = _without_replaced(_table_of(source), model, algorithm)
    objects: dict[str, Any] = {}
    for name, value in (("model", model), ("algorithm", algorithm)):
        if isinstance(value, (str, Mapping)):
            sections[name] = {"name": value} if isinstance(value, str) else value
        elif value is not None:
            objects[name] = ModelChoice.of(value) if name == "model" else as_algorithm(value)
    if clients is not None:
        objects["data"] = _memory(clients, client, label, sections.pop("data", {}))
        table.pop("data", None)
    elif client is not None or label is not None:
        raise SettingError("client and label must be columns of `clients`, got no clients")
    paths = [f"{name}.{key}" for name, section in sections.items() for key in section]
    table = configuration.without_own(table, paths)
    for name, section in sections.items():
        table[name] = {**table.get(name, {}), **section}
    return Inputs(table, objects)


def _table_of(source: Source | None) -> dict[str, Any]:
    if isinstance(source, (str, Path)):
        table = configuration.read_table(Path(source))
    elif source is None or isinstance(source, Mapping):
        table = configuration.with_registered_names(source or {})
    else:
        raise SettingError(
            f"a run must be a file, a dict of sections or settings by name, got {received(source)}"
        )
    configuration.check_sections(table)
    return table


def _without_replaced(
    table: Mapping[str, Any], model: ModelLike | None, algorithm: AlgorithmLike | None
) -> dict[str, Any]:
    """`table` without the settings of a model or method in whose place another one is given."""
    left = dict(table)
    if isinstance(algorithm, str):
        left = method_table(table, algorithm)
    elif algorithm is not None:
        left.pop(COMPARED, None)  # which may be about the method that is now another one
    for section, given, default in (
        ("model", model, DEFAULT_MODEL),
        ("algorithm", algorithm, DEFAULT_ALGORITHM),
    ):
        name = left.get(section, {}).get("name", default)
        if given is not None and not _is_named(given, name):
            left.pop(section, None)
    return left


def _is_named(given: ModelLike | AlgorithmLike, name: object) -> bool:
    """Whether it is what a run file names; a table without a name is about that."""
    if isinstance(given, Mapping):
        return bool(given.get("name", name) == name)
    return isinstance(given, str) and given == name


def refuse_one_method(settings: Mapping[str, Any]) -> None:
    """Where several are compared or tuned, one for all of them would make them the same."""
    if settings.get("algorithm") is not None:
        raise SettingError(
            "methods must be given in algorithms alone, got algorithm = "
            f"{received(settings['algorithm'])} beside it"
        )


def _sections(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sections and shortcuts by section; a setting must not be given twice."""
    known = {*SECTIONS, *SHORTCUTS, *OTHERS}
    sections: dict[str, Any] = {}
    for name, value in given.items():
        if name not in SECTIONS and name not in SHORTCUTS:
            raise SettingError(f"unknown keyword {received(name)}{nearest(name, known)}")
        if name in SECTIONS:
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a dict of settings, got {received(value)}")
            sections[name] = dict(value)
    for name, section in SHORTCUTS.items():
        if name in given:
            if name in sections.get(section, {}):
                raise SettingError(
                    f"{name} must be given once, got it by name and in {section}={{...}}"
                )
            sections.setdefault(section, {})[name] = given[name]
    return sections


def as_algorithm(value: object) -> Algorithm:
    """Refuse what is no method; classes are easily given instead of objects."""
    if isinstance(value, type) and issubclass(value, Algorithm):
        raise SettingError(f"algorithm must be an object, got the class {value.__name__}: call it")
    if not isinstance(value, Algorithm):
        raise SettingError(
            f"algorithm must be a name, a table or an Algorithm, got {received(value)}"
        )
    return value


def _memory(
    clients: object, client: str | None, label: str | Sequence[str] | None, options: Any
) -> Any:
    from .data.csv_table import columns_of
    from .data.frames import is_frame
    from .data.gather import CLIENT, LABEL, gather
    from .data.memory import OPTIONS, Memory

    for name in ("client", "label"):
        if name in options:
            raise SettingError(f"{name} must be given by name beside clients, got data.{name}")
    check_keys(options, OPTIONS, "data")
    memory = Memory.from_table(options, "data")
    given = gather(clients, client, label, memory.drop or ())
    if not is_frame(clients):
        return replace(memory, given=given)
    labels = tuple(map(str, columns_of(label or LABEL)))
    named = labels[0] if len(labels) == 1 else labels
    return replace(memory, given=given, client=str(client or CLIENT), label=named)
