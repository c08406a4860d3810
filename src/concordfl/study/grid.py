"""Grids: the settings that are tried for every method, all of them checked before any work."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..config import OWN_SECTIONS, Config, parse_value
from ..core import SettingError
from ..core.settings import received
from .cells import (
    apply_settings,
    cells,
    has_setting,
    hashed_settings,
    method_section,
    short_names,
    split_values,
)

Grid = Mapping[str, Sequence[Any]]  # the values of every setting, such as `training.lr`

# What a method may have of its own: `algorithm.KEY` is a setting of every method that is tuned.
SECTIONS = ("algorithm", *OWN_SECTIONS)
MAX_CANDIDATES = 1000
LADDER = (0.1, 1 / 3, 1, 3, 10)  # of the learning rate, where no grid is given
OWN_NAME = "as in the run file"


class Candidate(NamedTuple):
    """Settings that are tried for a method."""

    name: str  # `lr = 0.1, epochs = 2`
    values: Mapping[str, Any]  # by the grid's paths; none for settings outside the grid
    changes: Mapping[str, Any]  # to the run file, as `apply_settings` has them
    is_own: bool  # whether the run file has the same

    @property
    def in_grid(self) -> bool:
        return bool(self.values)


def parse_grid(texts: Sequence[str]) -> dict[str, list[Any]]:
    """A grid from `SECTION.KEY=VALUE,VALUE,...`, once for every setting."""
    grid: dict[str, list[Any]] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        if not equals:
            raise SettingError(f"--grid must be SECTION.KEY=VALUE,VALUE,..., got {received(text)}")
        if path.strip() in grid:
            raise SettingError(f"--grid must name a setting once, got {path.strip()} twice")
        grid[path.strip()] = [parse_value(value) for value in split_values(values)]
    return grid


def rate_ladder(settings: Config) -> dict[str, list[Any]]:
    """The grid where none is given: learning rates around that of the run file."""
    rate = settings.training.lr
    return {
        "training.lr": [rate if factor == 1 else float(f"{rate * factor:.2g}") for factor in LADDER]
    }


def check_grid(grid: Grid) -> None:
    """Refuse what could not be a grid for any method."""
    if not isinstance(grid, Mapping):
        raise SettingError(f"a grid must be a dict of values by setting, got {received(grid)}")
    size = 1
    for path, values in grid.items():
        section, _, key = str(path).partition(".")
        if section not in SECTIONS or not key or path == "algorithm.name":
            known = ", ".join(f"{name}.KEY" for name in SECTIONS)
            raise SettingError(f"a grid must be of {known}, got {received(path)}")
        if isinstance(values, str) or not isinstance(values, Sequence) or len(values) < 2:
            raise SettingError(
                f"a grid must have two values or more of a setting, got {path} = {received(values)}"
            )
        size *= len(values)
    if not 1 < size <= MAX_CANDIDATES:
        raise SettingError(f"a grid must have from 2 to {MAX_CANDIDATES:,} settings, got {size:,}")


def candidates(table: Mapping[str, Any], method: str, grid: Grid) -> list[Candidate]:
    """Every combination of the grid's values for a method; the run file's own settings come last
    where they are none of them.
    """
    names, own = short_names(list(grid)), _configuration(table, method)
    section = method_section(table, method)
    found, configurations = [], []
    for values in itertools.product(*grid.values()):
        chosen = dict(zip(grid, values, strict=True))
        changes = {_path_in(section, path): value for path, value in chosen.items()}
        _require_settings(method, grid)
        configuration = _configuration(apply_settings(table, changes), method)
        if configuration in configurations:
            raise SettingError(
                f"a grid must change every method by each of its values, got {_shown(grid)}, "
                f"of which two are the same for {method}"
            )
        configurations.append(configuration)
        parts = [f"{name} = {value}" for name, value in zip(names, values, strict=True)]
        found.append(Candidate(", ".join(parts), chosen, changes, configuration == own))
    if not any(candidate.is_own for candidate in found):
        found.append(Candidate(OWN_NAME, {}, {}, True))
    return found


def _configuration(table: Mapping[str, Any], method: str) -> dict[str, Any]:
    return hashed_settings(cells(table, [method], [0])[method, 0])


def _path_in(section: str, path: str) -> str:
    """Where a method has a setting of the grid for itself: `compare.moon.training.lr`."""
    return f"{section}.{path.removeprefix('algorithm.')}"


def _require_settings(method: str, grid: Grid) -> None:
    """All methods are tuned by the same grid, so that they have the same budget."""
    for path in grid:
        section, key = path.split(".")[:2]
        if section == "algorithm" and not has_setting(method, key):
            raise SettingError(
                f"a grid must change every method, so that all have the same budget, got {path}, "
                f"which {method} does not have: tune such methods by themselves"
            )


def _shown(grid: Grid) -> str:
    values = {path: list(values) for path, values in grid.items()}
    return received(values)
