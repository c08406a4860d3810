"""The configuration of a run: a TOML file turned into typed settings, and back.

Unknown keys are refused with the nearest known name; a bad value is answered with its rule and the
value.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from torch import nn

from .algorithms import ALGORITHMS
from .core import Aggregation, Algorithm, SettingError, Settings, Training
from .core.optim import SCHEDULES
from .core.settings import check_keys, nearest, to_toml
from .data import Source
from .data.datasets import DATASETS, DEFAULT_DATASET, OWN_DATA
from .engine.plan import Plan
from .models import make_builder
from .scenarios import NAMED, PARTITIONS, SHIFTS, Scenario

Kind = TypeVar("Kind", bound=Settings)
SECTIONS = ("run", "data", "scenario", "model", "training", "aggregation", "algorithm")
# settings of further methods by their names, which only `concordfl compare` reads
COMPARED = "compare"


@dataclass(frozen=True)
class ModelChoice:
    """The `[model]` section: a name, and options of that model."""

    name: str
    options: Mapping[str, Any]

    def builder(self, input_shape: tuple[int, ...], num_classes: int) -> Callable[[], nn.Module]:
        return make_builder(self.name, input_shape, num_classes, self.options)


@dataclass(frozen=True)
class Config:
    """A complete run."""

    run: Plan
    data: Source
    scenario: Scenario
    model: ModelChoice
    training: Training
    aggregation: Aggregation
    algorithm: Algorithm

    @classmethod
    def from_table(cls, table: Mapping[str, Any]) -> "Config":
        check_keys(table, (*SECTIONS, COMPARED))
        for section in table:
            if not isinstance(table[section], Mapping):
                raise SettingError(f"[{section}] must be a table, got {table[section]!r}")
        for name in table.get(COMPARED, {}):
            compared_method(table, name)
        model = {"name": "mlp", **table.get("model", {})}
        data = _choose(_data_table(table.get("data", {})), "name", DATASETS, "data")
        return cls(
            run=Plan.from_table(table.get("run", {}), "run"),
            data=data,
            scenario=_scenario(table.get("scenario", {}), data),
            model=ModelChoice(model.pop("name"), model),
            training=_training(table.get("training", {})),
            aggregation=Aggregation.from_table(table.get("aggregation", {}), "aggregation"),
            algorithm=_choose(
                {"name": "fedavg", **table.get("algorithm", {})}, "name", ALGORITHMS, "algorithm"
            ),
        )

    def to_table(self) -> dict[str, Any]:
        """The complete table, defaults included: `from_table` gives the same configuration back."""
        scenario = self.scenario.to_table()
        scenario["partition"] = _named(self.scenario.partition, "kind", PARTITIONS)
        scenario["shifts"] = [_named(shift, "kind", SHIFTS) for shift in self.scenario.shifts]
        training = self.training.to_table()
        training["schedule"] = _named(self.training.schedule, "kind", SCHEDULES)
        return {
            "run": self.run.to_table(),
            "data": _named(self.data, "name", DATASETS),
            "scenario": scenario,
            "model": {"name": self.model.name, **to_toml(self.model.options)},
            "training": training,
            "aggregation": self.aggregation.to_table(),
            "algorithm": _named(self.algorithm, "name", ALGORITHMS),
        }

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_table())


def compared_method(table: Mapping[str, Any], name: str) -> Algorithm:
    """A method with the settings that `[compare.NAME]` gives it."""
    settings = table.get(COMPARED, {}).get(name, {})
    if not isinstance(settings, Mapping):
        raise SettingError(f"[{COMPARED}.{name}] must be a table, got {settings!r}")
    if "name" in settings:
        raise SettingError(
            f"[{COMPARED}.{name}] must not name a method again, got name = {settings['name']!r}"
        )
    if name == table.get("algorithm", {}).get("name", "fedavg"):
        raise SettingError(
            f"[{COMPARED}] must be about other methods than [algorithm], got {name!r}"
        )
    return _choose({**settings, "name": name}, "name", ALGORITHMS, f"{COMPARED}.{name}")


def read_table(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SettingError(f"the run file must exist, got {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"{path} must be a TOML file: {error}") from None


def override(table: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """`table` with `section.key=value` assignments applied; values are written as in TOML, quotes
    may be left out.

    `section={...}` replaces a whole section.
    """
    changed: dict[str, Any] = _copy(table)
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        parts, value = path.strip().split("."), _value(text.strip())
        if not equals or (len(parts) < 2 and not isinstance(value, dict)):
            raise SettingError(
                f"--set must be SECTION.KEY=VALUE or SECTION={{...}}, got {assignment!r}"
            )
        place = changed
        for part in parts[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise SettingError(f"--set must name a key in a table, got {assignment!r}")
        place[parts[-1]] = value
    return changed


def name_of(settings: Settings, registry: Mapping[str, type[Any]]) -> str:
    return next(name for name, kind in registry.items() if kind is type(settings))


def _copy(value: Any) -> Any:
    return (
        {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
    )


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _choose(
    table: Mapping[str, Any], key: str, registry: Mapping[str, type[Kind]], where: str
) -> Kind:
    """The settings that `table[key]` names, with the rest of the table as their values."""
    if not isinstance(table, Mapping):
        raise SettingError(f"{where} must be a table with a {key}, got {table!r}")
    rest = dict(table)
    name = rest.pop(key, None)
    if not isinstance(name, str) or name not in registry:
        raise SettingError(
            f"{where}.{key} must be a known name, got {name!r}{nearest(str(name), registry)}"
        )
    return registry[name].from_table(rest, where)


def _named(settings: Settings, key: str, registry: Mapping[str, type[Any]]) -> dict[str, Any]:
    return {key: name_of(settings, registry), **settings.to_table()}


def _data_table(table: Mapping[str, Any]) -> dict[str, Any]:
    """A user's own data need no name: `folder` or `table` says it."""
    name = next((key for key in OWN_DATA if key in table), DEFAULT_DATASET)
    return {"name": name, **table}


def _scenario(given: Mapping[str, Any], data: Source) -> Scenario:
    table = dict(given)
    name = table.pop("name", None)
    if name is not None:
        if not isinstance(name, str) or name not in NAMED:
            raise SettingError(
                f"scenario.name must be a known name, got {name!r}{nearest(str(name), NAMED)}"
            )
        table = NAMED[name] | table
    values = {"partition": {"kind": "natural" if data.has_clients else "iid"}, **table}
    values["partition"] = _choose(values["partition"], "kind", PARTITIONS, "scenario.partition")
    if values["partition"].needs_clients:
        values.setdefault("clients", 10)
    if "shifts" in values:
        if not isinstance(values["shifts"], (list, tuple)):
            raise SettingError(
                f"scenario.shifts must be a list of tables, got {values['shifts']!r}"
            )
        values["shifts"] = [
            _choose(shift, "kind", SHIFTS, f"scenario.shifts[{place}]")
            for place, shift in enumerate(values["shifts"])
        ]
    return Scenario.from_table(values, "scenario")


def _training(table: Mapping[str, Any]) -> Training:
    values = dict(table)
    if "schedule" in values:
        values["schedule"] = _choose(values["schedule"], "kind", SCHEDULES, "training.schedule")
    return Training.from_table(values, "training")
