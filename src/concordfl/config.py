"""The configuration of a run: a TOML file turned into typed settings, and back.

Unknown keys are refused with the nearest known name; a bad value is answered with its rule and the
value.
"""

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w
from torch import nn

from . import models
from .by_name import choose, method_from, method_table, named, nearest_name, registered
from .core import Aggregation, Algorithm, ObjectiveChoice, SettingError, Training
from .core.optim import SCHEDULES
from .core.own_code import names_own_code
from .core.settings import check_keys, received, to_toml
from .data import Source
from .data.datasets import DATASETS, DEFAULT_DATASET, OWN_DATA
from .data.own import OwnData
from .engine.plan import Plan
from .scenarios import NAMED, PARTITIONS, SHIFTS, Scenario

FORMAT = 1  # of run files
SECTIONS = (
    *("run", "data", "scenario", "objective", "model", "training", "aggregation", "algorithm"),
)
# settings of further methods by their names, which only `concordfl compare` reads
COMPARED = "compare"
DEFAULT_ALGORITHM = "fedavg"  # where a run file names none; it has no settings
DEFAULT_MODEL = "mlp"
# sections of which a method may have settings of its own, as `[algorithm.training]` or
# `[compare.NAME.training]`; these go before those of the section itself
OWN_SECTIONS = ("training", "aggregation")
# where relative paths begin: put into a table when it is read from a file
RELATIVE_TO = "relative_to"
MAX_FILE_BYTES = 10**7
MAX_NESTING = 20  # levels of tables and lists
# What tomllib raises beyond its own error: numbers of too many digits, impossible dates (both
# ValueErrors, as its own is), tables of too many levels.
TOML_ERRORS = (ValueError, RecursionError)


@dataclass(frozen=True)
class ModelChoice:
    """The `[model]` section: the name of a network, and its options.

    A network that only this process has is `given`, and named in angle brackets.
    """

    name: str
    options: Mapping[str, Any]
    given: models.Given | None = None

    def __post_init__(self) -> None:
        if self.given is None:
            models.check(self.name, self.options)

    @classmethod
    def of(cls, given: object) -> "ModelChoice":
        """A network given in Python: a module, or a function that builds one."""
        name, only_here = models.named(given)
        return cls(name, {}, only_here)

    def builder(self, input_shape: tuple[int, ...], num_classes: int) -> Callable[[], nn.Module]:
        if self.given is not None:
            return models.given_builder(self.given, self.name, input_shape, num_classes)
        return models.make_builder(self.name, input_shape, num_classes, self.options)

    def further_builder(self) -> Callable[[], nn.Module] | None:
        """How the further models of a mixture are built, where it is not as the first."""
        return models.further_builder(self.given, self.name)


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
    objective: ObjectiveChoice = ObjectiveChoice()  # noqa: RUF009 - frozen

    @classmethod
    def from_table(
        cls,
        table: Mapping[str, Any],
        *,
        data: Source | None = None,
        model: ModelChoice | None = None,
        algorithm: Algorithm | None = None,
    ) -> "Config":
        """From the sections of a run file; an object given in Python stands for its section."""
        _require_nesting(table)
        table = with_relative_paths(_without_format(with_registered_names(table)))
        check_keys(table, (*SECTIONS, COMPARED))
        check_sections(table)
        table = _with_own_sections(table)
        network = {"name": DEFAULT_MODEL, **table.get("model", {})}
        data = data or choose(_data_table(table.get("data", {})), "name", DATASETS, "data")
        return cls(
            run=Plan.from_table(table.get("run", {}), "run"),
            data=data,
            scenario=_scenario(table.get("scenario", {}), data),
            model=model or ModelChoice(network.pop("name"), network),
            training=_training(table.get("training", {})),
            aggregation=Aggregation.from_table(table.get("aggregation", {}), "aggregation"),
            algorithm=algorithm or _algorithm(table.get("algorithm", {})),
            objective=ObjectiveChoice.from_table(table.get("objective", {}), "objective"),
        )

    def to_table(self) -> dict[str, Any]:
        """The complete table, defaults included: `from_table` gives the same configuration back."""
        scenario = self.scenario.to_table()
        scenario["partition"] = named(self.scenario.partition, "kind", PARTITIONS)
        scenario["shifts"] = [named(shift, "kind", SHIFTS) for shift in self.scenario.shifts]
        training = self.training.to_table()
        training["schedule"] = named(self.training.schedule, "kind", SCHEDULES)
        return {
            "run": self.run.to_table(),
            "data": named(self.data, "name", DATASETS),
            "scenario": scenario,
            "objective": self.objective.to_table(),
            "model": {"name": self.model.name, **to_toml(self.model.options)},
            "training": training,
            "aggregation": self.aggregation.to_table(),
            "algorithm": method_table(self.algorithm),
        }

    def to_toml(self) -> str:
        """The complete run file, with the number of its format."""
        return tomli_w.dumps({"format": FORMAT, **self.to_table()})

    def own_code(self) -> dict[str, str]:
        """Settings that name code which is not concordfl's, as `package.module:function`."""
        return own_code(self.to_table())


def with_registered_names(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table with methods, in [algorithm] and [compare.NAME], by their names in the registry."""
    changed = dict(table)
    algorithm, compared = table.get("algorithm"), table.get(COMPARED)
    if isinstance(algorithm, Mapping) and isinstance(algorithm.get("name"), str):
        changed["algorithm"] = {**algorithm, "name": registered(algorithm["name"])}
    if isinstance(compared, Mapping):
        changed[COMPARED] = {registered(name): settings for name, settings in compared.items()}
        if len(changed[COMPARED]) < len(compared):
            raise SettingError(
                f"[{COMPARED}] must be about different methods, got {', '.join(map(str, compared))}"
            )
    return changed


def check_sections(table: Mapping[str, Any]) -> None:
    """Refuse sections that are no tables, and settings in [compare] that are of no method."""
    _require_nesting(table)
    for section in (*SECTIONS, COMPARED):
        if not isinstance(table.get(section, {}), Mapping):
            raise SettingError(f"[{section}] must be a table, got {received(table[section])}")
    for name in table.get(COMPARED, {}):
        compared_method(table, name)


def compared_method(table: Mapping[str, Any], name: str) -> Algorithm:
    """A method with the settings that `[compare.NAME]` gives it."""
    where = f"{COMPARED}.{name}"
    settings = table.get(COMPARED, {}).get(name, {})
    if not isinstance(settings, Mapping):
        raise SettingError(f"[{where}] must be a table, got {received(settings)}")
    if "name" in settings:
        raise SettingError(
            f"[{where}] must not name a method again, got name = {settings['name']!r}"
        )
    if name == table.get("algorithm", {}).get("name", DEFAULT_ALGORITHM):
        raise SettingError(
            f"[{COMPARED}] must be about other methods than [algorithm], got {name!r}"
        )
    own, _ = _split_own(settings, where)
    return method_from({**own, "name": name}, where)


def _with_own_sections(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with what [algorithm] has of other sections put in its place there."""
    own, sections = _split_own(table.get("algorithm", {}), "algorithm")
    merged = {name: {**table.get(name, {}), **values} for name, values in sections.items()}
    return {**table, **merged, "algorithm": own} if merged else table


def _split_own(settings: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of a method, and those of other sections that it has for itself, checked."""
    sections = {name: settings[name] for name in OWN_SECTIONS if name in settings}
    if "training" in sections:
        _training(sections["training"], f"{where}.training")
    if "aggregation" in sections:
        Aggregation.from_table(sections["aggregation"], f"{where}.aggregation")
    return {key: value for key, value in settings.items() if key not in sections}, sections


def own_code(table: Mapping[str, Any]) -> dict[str, str]:
    """Settings of a table that name code which is not concordfl's; nothing is imported."""
    named = {}
    for section, key in (("model", "name"), ("algorithm", "name"), ("algorithm", "embedding")):
        settings = table.get(section)
        value = settings.get(key) if isinstance(settings, Mapping) else None
        if isinstance(value, str) and names_own_code(value):
            named[f"{section}.{key}"] = value
    compared = table.get(COMPARED)
    for name in compared if isinstance(compared, Mapping) else ():
        if names_own_code(name):
            named[f"{COMPARED}.{name}"] = name
    return named


def _without_format(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """A run file need not give its format; one that a newer concordfl has written is refused."""
    number = table.get("format", FORMAT)
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise SettingError(f"format must be from 1 to {FORMAT}, got {received(number)}")
    return {key: value for key, value in table.items() if key != "format"}


def with_relative_paths(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table with the place at which its relative paths begin in [data], unless one is there."""
    rest = {key: value for key, value in table.items() if key != RELATIVE_TO}
    data, place = rest.get("data"), table.get(RELATIVE_TO)
    if place is None or not isinstance(data, Mapping):
        return rest
    if data.get("name") not in OWN_DATA and not any(key in data for key in OWN_DATA):
        return rest
    return {**rest, "data": {RELATIVE_TO: place, **data}}


def with_fixed_paths(settings: Config) -> Config:
    """The settings with paths that mean the same wherever the run is taken up again."""
    if not isinstance(settings.data, OwnData) or settings.data.relative_to is not None:
        return settings
    return replace(settings, data=replace(settings.data, relative_to=str(Path.cwd())))


def read_run_folder(
    folder: Path,
    *,
    trust: bool,
    model: object = None,
    algorithm: Algorithm | None = None,
) -> Config:
    """The configuration of a run in `folder`, which may be somebody else's: code that is not
    concordfl's is refused unless it is trusted, or given as the object that the run began with.
    """
    table = read_table(folder / "config.toml")
    objects: dict[str, Any] = {}
    if model is not None:
        objects["model"] = ModelChoice.of(model)
        _require_same(table.pop("model", None), {"name": objects["model"].name}, "model", folder)
    if algorithm is not None:
        objects["algorithm"] = algorithm
        _require_same(table.pop("algorithm", None), method_table(algorithm), "algorithm", folder)
    for setting, name in own_code(table).items():
        if not trust:
            raise SettingError(
                f"a run folder must not name code of its own unless it is trusted (--trust, or "
                f"trust=True), got {setting} = {received(name)} in {folder}"
            )
    return _find_moved_data(Config.from_table(table, **objects))


def _find_moved_data(settings: Config) -> Config:
    """Data that are no longer where they were, but in the working folder, may have moved with the
    run; a run is only resumed with the data that it began with.
    """
    if not isinstance(settings.data, OwnData) or settings.data.is_there():
        return settings
    moved = replace(settings.data, relative_to=str(Path.cwd()))
    return replace(settings, data=moved) if moved.is_there() else settings


def _require_same(begun_with: Any, given: Any, section: str, folder: Path) -> None:
    if begun_with != given:
        raise SettingError(
            f"{folder} must be gone on with by the {section} that it began with, "
            f"{received(begun_with)}, got {received(given)}"
        )


def read_table(path: Path) -> dict[str, Any]:
    """A run file; its relative paths begin at its folder."""
    table = _read_toml(path)
    table.setdefault(RELATIVE_TO, str(path.absolute().parent if path.is_file() else Path.cwd()))
    return with_registered_names(table)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        if len(text) > MAX_FILE_BYTES:  # perhaps a device, which never ends
            raise SettingError(f"{path} must have at most {MAX_FILE_BYTES:,} bytes, got more")
        return tomllib.loads(text.decode())
    except FileNotFoundError:
        raise SettingError(f"the run file must exist, got {path}") from None
    except RecursionError:
        raise SettingError(
            f"{path} must be a TOML file of at most {MAX_NESTING} levels, got more"
        ) from None
    except (OSError, ValueError) as error:  # also what is not UTF-8, or not TOML
        raise SettingError(f"{path} must be a TOML file: {error}") from None


def override(table: Mapping[str, Any], assignments: Iterable[str]) -> dict[str, Any]:
    """`table` with `section.key=value` assignments applied; values are written as in TOML, quotes
    may be left out.

    `section={...}` replaces a whole section.
    """
    _require_nesting(table)
    changed: dict[str, Any] = _copy(table)
    for assignment in assignments:
        _assign(changed, assignment)
    return with_registered_names(changed)


def without_own(table: Mapping[str, Any], paths: Sequence[str]) -> dict[str, Any]:
    """`table` where no method, in [algorithm] or [compare.NAME], has values of its own for the
    settings in `paths`, which are given for all.
    """
    changed: dict[str, Any] = _copy(table)
    compared = changed.get(COMPARED)
    others = compared.values() if isinstance(compared, dict) else ()
    for method in (changed.get("algorithm"), *others):
        for path in paths if isinstance(method, dict) else ():
            section, *keys = split_path(path)
            own = method.get(section)
            if section in OWN_SECTIONS and isinstance(own, dict):
                for key in keys[:1] or list(own):
                    own.pop(key, None)
    return changed


def _assign(table: dict[str, Any], assignment: str) -> None:
    path, equals, text = assignment.partition("=")
    keys, value = split_path(path), parse_value(text.strip())
    complete = all(keys) and len(keys) <= MAX_NESTING
    if not equals or not complete or (len(keys) < 2 and not isinstance(value, dict)):
        raise SettingError(
            f"--set must be SECTION.KEY=VALUE or SECTION={{...}}, got {received(assignment)}"
        )
    for key in keys[:-1]:
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            raise SettingError(f"--set must name a key in a table, got {received(assignment)}")
    table[keys[-1]] = value


def split_path(path: str) -> list[str]:
    """The keys of `section.key`; the name of a user's own method, `compare.package.module:Class`,
    is one key, and a method of ours has its name in the registry.
    """
    keys = [key.strip() for key in path.split(".")]
    if keys[0] != COMPARED or len(keys) == 1:
        return keys
    last = next((index for index, key in enumerate(keys) if ":" in key), 1)
    return [COMPARED, registered(".".join(keys[1 : last + 1])), *keys[last + 1 :]]


def _require_nesting(table: Mapping[str, Any]) -> None:
    """Refuse a table of more levels than any setting has, before it is walked recursively."""
    level: list[Any] = [table]
    for _ in range(MAX_NESTING):
        level = [
            item
            for value in level
            if isinstance(value, (Mapping, list, tuple))
            for item in (value.values() if isinstance(value, Mapping) else value)
        ]
    if level:
        raise SettingError(f"settings must have at most {MAX_NESTING} levels, got more")


def _copy(value: Any) -> Any:
    return (
        {key: _copy(item) for key, item in value.items()} if isinstance(value, Mapping) else value
    )


def parse_value(text: str) -> Any:
    """A value as TOML has it, or else a string without quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except TOML_ERRORS:
        return text


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
                f"scenario.name must be a known name, got {received(name)}"
                f"{nearest_name(name, NAMED)}"
            )
        table = NAMED[name] | table
    values = {"partition": {"kind": "natural" if data.has_clients else "iid"}, **table}
    values["partition"] = choose(values["partition"], "kind", PARTITIONS, "scenario.partition")
    if values["partition"].needs_clients:
        values.setdefault("clients", 10)
    if "shifts" in values:
        if not isinstance(values["shifts"], (list, tuple)):
            raise SettingError(
                f"scenario.shifts must be a list of tables, got {received(values['shifts'])}"
            )
        values["shifts"] = [
            choose(shift, "kind", SHIFTS, f"scenario.shifts[{index}]")
            for index, shift in enumerate(values["shifts"])
        ]
    return Scenario.from_table(values, "scenario")


def _algorithm(table: Mapping[str, Any]) -> Algorithm:
    if table and "name" not in table:
        raise SettingError(
            f"[algorithm] must name the method that its settings are of, got {next(iter(table))!r} "
            "and no name"
        )
    return method_from(table or {"name": DEFAULT_ALGORITHM}, "algorithm")


def _training(table: Mapping[str, Any], where: str = "training") -> Training:
    if not isinstance(table, Mapping):
        raise SettingError(f"[{where}] must be a table, got {received(table)}")
    values = dict(table)
    if "schedule" in values:
        values["schedule"] = choose(values["schedule"], "kind", SCHEDULES, f"{where}.schedule")
    return Training.from_table(values, where)
