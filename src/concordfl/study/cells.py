"""The cells of a comparison: a configuration for every row of the table and every seed, and the
hash by which the result of a configuration is found again.
"""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple, NoReturn

from ..by_name import method_class
from ..config import (
    COMPARED,
    DEFAULT_ALGORITHM,
    OWN_SECTIONS,
    Config,
    override,
    split_path,
)
from ..core import SettingError
from ..core.own_code import source_digests
from ..core.settings import received
from ..data import Source
from ..data.memory import Memory

Cells = dict[tuple[str, int], Config]  # by row of the table and seed

# Settings of [run] that say how a result is computed and do not change it, or not beyond what an
# executor states; a kept result says which one it was.
HOW_COMPUTED = (
    "executor",
    "workers",
    "ray_address",
    "device",
    "client_states",
    "checkpoint_seconds",
    "keep_checkpoints",
)

# Settings that did not exist from the beginning, each with the value that stood for it before, as
# the complete table of a configuration has it: `"run.min_replies": 1`. With that value a setting
# is not part of the hash, so that older results are still found. A section that came later is
# listed by its keys; when nothing is left of a section, it is no part of the hash either. A key of
# the tables in a list is written like one of the list: `"scenario.shifts.strength"`. Settings that
# are left out unless they are given need no entry.
LATER_SETTINGS: Mapping[str, Any] = {
    "run.min_replies": 1,
    "run.on_error": "stop",
    "aggregation.server_lr": 1.0,
    "aggregation.server_momentum": 0.0,
    "aggregation.pad_choices": False,
    "algorithm.own_steps": "plain",  # of APFL
    "algorithm.average": "size",  # of IFCA, FeSEM, pFedMe and FedRep
    "algorithm.statistics": "trained",  # of FedBN
    "algorithm.new_start": "initial",  # of FedBN and FedDual
    "algorithm.new_epochs": 1,  # of FedDual
    "algorithm.projection_head": True,  # of MOON
    "scenario.adapt_share": 0.5,
    "algorithm.projection": "beside",  # of FedVC, and the next two
    "algorithm.projection_layers": 2,
    "algorithm.moving_averages": "restarted",
    "objective.kind": "auto",
    "objective.likelihood": "gaussian",
    "objective.deviation": 0.5,
    "algorithm.adapt_steps": 200,  # of FedGMM
    "algorithm.skip_below": 0.0,  # of FedEM, FedConceptEM, FedGMM and FedSoft, and the next
    "algorithm.recheck_every": 10,
    "algorithm.longest_move": 1e9,  # of Concord, and the next four
    "algorithm.settling_steps": 0,
    "algorithm.most_groups": None,
    "algorithm.density": False,
    "algorithm.gate": None,  # no result from before is of a network with nothing but heads
    "data.directions": "uniform",  # of synthetic-mixture
    "data.pool_test": False,
    "data.copies": 1,
    "scenario.shifts.strength": "imagenet-c",  # of corruptions
}


def cells(
    table: Mapping[str, Any], methods: Sequence[str], seeds: Sequence[int], **objects: Any
) -> Cells:
    """The configuration of every (method, seed).

    Settings of [algorithm] go to the method that the run file names; others may have theirs in
    [compare.NAME]. Both may hold training settings of the method's own. `objects` given in Python
    stand for their sections, as `Config.from_table` takes them.
    """
    Config.from_table(table, **objects)
    return {
        (method, seed): _cell(table, method, seed, objects) for method in methods for seed in seeds
    }


def _cell(table: Mapping[str, Any], method: str, seed: int, objects: Mapping[str, Any]) -> Config:
    run = {**table.get("run", {}), "seed": seed}
    return Config.from_table({**method_table(table, method), "run": run}, **objects)


def method_table(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The table of a run with one of a run file's methods."""
    section = _section(table, method_section(table, method))
    own = {**table, "algorithm": {**section, "name": method}}
    own.pop(COMPARED, None)
    return own


def method_section(table: Mapping[str, Any], method: str) -> str:
    """Where a run file has the settings of a method: `algorithm` or `compare.NAME`."""
    named = _section(table, "algorithm").get("name", DEFAULT_ALGORITHM)
    return "algorithm" if method == named else f"{COMPARED}.{method}"


def _section(table: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """A part of a table; empty where there is none, or something else that is refused later."""
    section: Any = table
    for part in split_path(path):
        section = section.get(part) if isinstance(section, Mapping) else None
    return section if isinstance(section, Mapping) else {}


def assign(
    table: Mapping[str, Any], assignments: Sequence[str], methods: Sequence[str]
) -> dict[str, Any]:
    """`table` with assignments as `override` has them, where every setting of a method is that of
    a method which is compared.
    """
    named = {"algorithm": override(table, assignments).get("algorithm")}
    addressed: list[str] = []
    for assignment in assignments:
        path, equals, value = assignment.partition("=")
        paths = method_paths({**table, **named}, path, methods)
        if not paths or all(_is_hidden(table, path, method) for method in methods):
            _refuse_unused("--set", methods, assignment)
        addressed += [f"{one}{equals}{value}" for one in paths]
    return override(table, addressed)


def method_paths(table: Mapping[str, Any], path: str, methods: Sequence[str]) -> list[str]:
    """Where a setting that an option names is found for `methods`; nowhere, if it is not theirs.

    `algorithm.KEY` is of the method that [algorithm] names. Where it names none, it is of all
    `methods` that have such a setting.
    """
    section, *keys = split_path(path)
    if section == COMPARED and keys:
        return [path] if keys[0] in methods else []
    if section != "algorithm" or not keys or keys[0] == "name":
        return [path]
    named = _section(table, "algorithm").get("name")
    if named is not None:
        return [path] if named in methods else []
    owners = [method for method in methods if has_setting(method, keys[0])]
    return [".".join([method_section(table, method), *keys]) for method in owners]


def _is_hidden(table: Mapping[str, Any], path: str, method: str) -> bool:
    """Whether the method has the setting for itself."""
    section, *keys = split_path(path)
    own = _section(table, f"{method_section(table, method)}.{section}")
    return section in OWN_SECTIONS and bool(keys) and keys[0] in own


def has_setting(method: str, name: str) -> bool:
    return name in OWN_SECTIONS or name in {
        one.name for one in fields(method_class(method, "--algorithms"))
    }


def _refuse_unused(option: str, methods: Sequence[str], setting: str) -> NoReturn:
    known = ", ".join(methods)
    raise SettingError(
        f"{option} must change one of the methods {known}, got {received(setting)}: a method's own "
        f"settings are {COMPARED}.NAME.KEY, or algorithm.KEY of the one that [algorithm] names"
    )


# --- several values of a setting ------------------------------------------------------------------


class Variation(NamedTuple):
    """`SECTION.KEY=VALUE,VALUE,...`: the values that a setting takes, as text."""

    path: str
    values: tuple[str, ...]
    paths: tuple[str, ...]  # where the setting is found for the methods that are compared

    @classmethod
    def parse(cls, text: str, table: Mapping[str, Any], methods: Sequence[str]) -> "Variation":
        path, equals, values = text.partition("=")
        if not equals or "." not in path:
            raise SettingError(f"--vary must be SECTION.KEY=VALUE,VALUE,..., got {text!r}")
        if path.strip() == "run.seed":
            raise SettingError(
                f"--vary must not be about run.seed, which --seeds is for, got {text!r}"
            )
        paths = method_paths(table, path.strip(), methods)
        if not paths:
            _refuse_unused("--vary", methods, text)
        return cls(path.strip(), tuple(split_values(values)), tuple(paths))

    def assignments(self, value: str) -> list[str]:
        return [f"{path}={value}" for path in self.paths]


def vary(
    table: Mapping[str, Any],
    variations: Sequence[str],
    methods: Sequence[str],
    seeds: Sequence[int],
) -> Cells:
    """Cells for every combination of the values in `variations`.

    A method has a row for every combination of those settings that it depends on.
    """
    parsed = [Variation.parse(text, table, methods) for text in variations]
    _refuse_repeated(parsed)
    relevant = {
        method: [one for one in parsed if _changes(table, parsed, one, method)]
        for method in methods
    }
    for one in parsed:
        if len(one.values) > 1 and not any(one in several for several in relevant.values()):
            _refuse_unused("--vary", methods, f"{one.path}={','.join(one.values)}")
    found: Cells = {}
    for method, several in relevant.items():
        labels = short_names([one.path for one in several])
        for values in itertools.product(*(one.values for one in several)):
            chosen = [
                assignment
                for one, value in zip(several, values, strict=True)
                for assignment in one.assignments(value)
            ]
            combined = override(table, [*_first_values(parsed), *chosen])
            parts = [f"{label} = {value}" for label, value in zip(labels, values, strict=True)]
            row = ", ".join([method, *parts])
            found |= {
                (row, seed): cells(combined, [method], [seed])[method, seed] for seed in seeds
            }
    return found


def _refuse_repeated(variations: Sequence[Variation]) -> None:
    for path, count in Counter(one.path for one in variations).items():
        if count > 1:
            raise SettingError(f"--vary must name a setting once, got {path} {count} times")


def _changes(
    table: Mapping[str, Any], variations: Sequence[Variation], one: Variation, method: str
) -> bool:
    """Whether a method's configuration depends on the value of the setting."""
    first = _first_values(variations)
    tables = [override(table, [*first, *one.assignments(value)]) for value in one.values]
    configs = [cells(changed, [method], [0])[method, 0].to_table() for changed in tables]
    return any(config != configs[0] for config in configs)


def _first_values(variations: Sequence[Variation]) -> list[str]:
    return [assignment for one in variations for assignment in one.assignments(one.values[0])]


def short_names(paths: Sequence[str]) -> list[str]:
    """The last part of each path, or all of it where two settings end alike."""
    ends = [path.rpartition(".")[2] for path in paths]
    return [end if ends.count(end) == 1 else path for path, end in zip(paths, ends, strict=True)]


def split_values(values: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


# --- the hash of a configuration ------------------------------------------------------------------


class ConfigHasher:
    """Hashes of configurations, by which results are found again.

    A hash depends on everything but how a result is computed. The data's own fingerprint is part
    of it; a hasher reads the data once for every [data] section, so use one per comparison. So is
    the source of a user's own code, which is imported: edited code gives another result.
    """

    def __init__(self, later_settings: Mapping[str, Any] | None = None) -> None:
        self._later_settings = LATER_SETTINGS if later_settings is None else later_settings
        self._fingerprints: dict[Source, str] = {}

    def __call__(self, settings: Config) -> str:
        table = _without(hashed_settings(settings), self._later_settings)
        if settings.data not in self._fingerprints:
            self._fingerprints[settings.data] = settings.data.fingerprint()
        table["fingerprint"] = self._fingerprints[settings.data]
        if sources := source_digests(settings.own_code()):
            table["own_code"] = sources
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def hashed_settings(settings: Config) -> dict[str, Any]:
    """The complete table of a configuration without how it is computed, and on which machine:
    a user's own data count by their content.
    """
    table = settings.to_table()
    # What the columns of a data frame were called is in the fingerprint where it matters.
    named = ("client", "label", "drop") if isinstance(settings.data, Memory) else ()
    for key in ("relative_to", "memory", *named):
        table["data"].pop(key, None)
    table["run"] = {key: value for key, value in table["run"].items() if key not in HOW_COMPUTED}
    return table


def _without(table: Mapping[str, Any], later_settings: Mapping[str, Any]) -> dict[str, Any]:
    """The table without later settings that have their old value; a section of which nothing is
    left goes too.
    """
    sections = {name: _without_in(values, name, later_settings) for name, values in table.items()}
    return {name: rest for name, rest in sections.items() if rest}


def _without_in(
    values: Mapping[str, Any], section: str, later_settings: Mapping[str, Any]
) -> dict[str, Any]:
    left: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{section}.{key}"
        if path in later_settings and later_settings[path] == value:
            continue
        if isinstance(value, list):
            left[key] = [
                _without_in(item, path, later_settings) if isinstance(item, Mapping) else item
                for item in value
            ]
        else:
            left[key] = value
    return left


# --- the settings in which a configuration differs from a run file --------------------------------


def differing_settings(
    table: Mapping[str, Any], settings: Config, method: str, hasher: ConfigHasher
) -> dict[str, Any]:
    """What must be set in the run file's `table` to get the configuration `settings`.

    Keys are those of --set, such as `algorithm.mu` or `compare.moon.mu`; a value of None means
    that the key is left out. Another model or data set is a whole section. The seed is not told.
    """
    seed = settings.run.seed
    base, wanted = (
        hashed_settings(one) for one in (cells(table, [method], [seed])[method, seed], settings)
    )
    for complete in (base, wanted):
        del complete["run"]["seed"]
    own = _own_paths(table, method)
    found: dict[str, Any]
    for whole_sections in (False, True):
        if whole_sections and own:  # which the method's whole section replaces
            base |= {section: {} for section in ("algorithm", *own)}
            own = {}
        found = {}
        for section in wanted:
            path = method_section(table, method) if section == "algorithm" else section
            path = own.get(section, path)
            found |= _section_difference(path, base[section], wanted[section], whole_sections)
        with suppress(SettingError):  # left-out keys may come back, from a scenario's name
            same = cells(apply_settings(table, found), [method], [seed])[method, seed]
            if hasher(same) == hasher(settings):
                return found
    raise SettingError(
        f"a result to be kept must differ from its run file by settings, got {method} with others"
    )


def _own_paths(table: Mapping[str, Any], method: str) -> dict[str, str]:
    """Where the method has settings of its own, by section: `compare.moon.training`."""
    path = method_section(table, method)
    settings = _section(table, path)
    return {section: f"{path}.{section}" for section in OWN_SECTIONS if section in settings}


def _section_difference(
    path: str, base: Mapping[str, Any], wanted: Mapping[str, Any], whole: bool
) -> dict[str, Any]:
    if base == wanted:
        return {}
    if whole or base.get("name") != wanted.get("name"):
        name = {"name"} if path.startswith(f"{COMPARED}.") else set()
        return {path: {key: value for key, value in wanted.items() if key not in name}}
    return {
        f"{path}.{key}": wanted.get(key)
        for key in sorted({*base, *wanted})
        if base.get(key) != wanted.get(key)
    }


def apply_settings(table: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with the settings that `differing_settings` found."""
    changed = override(table, [])  # a copy
    for path, value in settings.items():
        *parents, last = split_path(path)
        section = changed
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise SettingError(f"a setting must be a key in a table, got {path!r}")
        if value is None:
            section.pop(last, None)
        else:
            section[last] = value
    return changed
