"""`compare` in Python: several methods and seeds on the same data, in memory or in folders."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from numbers import Integral
from pathlib import Path
from typing import Any

from .by_name import algorithm_name, algorithm_reference, registered
from .config import Config
from .core import Algorithm, SettingError
from .core.own_code import is_given
from .core.settings import received
from .engine.observers import OneObserver, OnRound, observers_of
from .inputs import AlgorithmLike, Inputs, ModelLike, as_algorithm, read_inputs, refuse_one_method
from .study import compare as study
from .study.cells import Cells, ConfigHasher, cells
from .study.compare import Comparison

MAX_SEEDS = 1000


def compare(
    source: str | Path | Mapping[str, Any] | None = None,
    *,
    algorithms: Sequence[AlgorithmLike] | Mapping[str, AlgorithmLike],
    seeds: int | Sequence[int] = 1,
    clients: object = None,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    model: ModelLike | None = None,
    out: str | Path | None = None,
    on_round: OnRound = (),
    **settings: Any,
) -> Comparison:
    """Run several methods, each with several seeds, on the same clients.

    algorithms: names, tables or objects; a dict gives them names of your own.
    seeds: how many, counted from the run's seed, or which.

    All else is as in `run`. Settings of [compare.NAME] in a run file are those of the method.
    Without `out` nothing is written; with it every run has a folder there, and runs that are
    finished are not done again.
    """
    refuse_one_method(settings)
    inputs = read_inputs(
        source, clients=clients, client=client, label=label, model=model, **settings
    )
    rows = _rows(inputs, algorithms, _seeds(inputs, seeds))
    observers, hasher = observers_of(on_round), ConfigHasher()
    if out is not None:
        _refuse_mix_ups(rows, Path(out), hasher)

    @contextmanager
    def display(_: str) -> Iterator[Sequence[OneObserver]]:
        yield observers

    return study.compare(rows, None if out is None else Path(out), display, hasher=hasher)


def _seeds(inputs: Inputs, seeds: int | Sequence[int]) -> list[int]:
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 1 <= seeds <= MAX_SEEDS:
            raise SettingError(f"seeds must be from 1 to {MAX_SEEDS:,}, got {received(seeds)}")
        first = inputs.config().run.seed
        return list(range(first, first + seeds))
    several = list(seeds) if isinstance(seeds, Sequence) and not isinstance(seeds, str) else []
    are_whole = all(isinstance(seed, Integral) for seed in several)
    if not several or not are_whole or len({*several}) < len(several):
        raise SettingError(
            f"seeds must be a number or a list of different seeds, got {received(seeds)}"
        )
    return several


# --- rows -----------------------------------------------------------------------------------------


def _rows(
    inputs: Inputs,
    algorithms: Sequence[AlgorithmLike] | Mapping[str, AlgorithmLike],
    seeds: Sequence[int],
) -> Cells:
    if isinstance(algorithms, (str, Algorithm)) or not isinstance(algorithms, (Sequence, Mapping)):
        raise SettingError(
            f"algorithms must be a list or a dict of methods, got {received(algorithms)}"
        )
    given = list(algorithms.values() if isinstance(algorithms, Mapping) else algorithms)
    if not given:
        raise SettingError("algorithms must be at least one, got none")
    by_method = [_configs(inputs, one, seeds) for one in given]
    names = list(algorithms) if isinstance(algorithms, Mapping) else _names(given, by_method)
    if len({*names}) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise SettingError(
            f"methods must differ, got {repeated!r} twice: give them names in a dict"
        )
    return {
        (str(name), seed): config
        for name, configs in zip(names, by_method, strict=True)
        for seed, config in configs.items()
    }


def _configs(inputs: Inputs, given: AlgorithmLike, seeds: Sequence[int]) -> dict[int, Config]:
    """The configuration of a method with every seed."""
    if isinstance(given, str):
        found = cells(inputs.table, [registered(given)], seeds, **inputs.objects)
        return {seed: config for (_, seed), config in found.items()}
    table = {key: value for key, value in inputs.table.items() if key != "compare"}
    objects = dict(inputs.objects)
    if isinstance(given, Mapping):
        table["algorithm"] = given
    else:
        objects["algorithm"] = as_algorithm(given)
        table.pop("algorithm", None)
    of_seed = ({**table, "run": {**table.get("run", {}), "seed": seed}} for seed in seeds)
    return {
        seed: Config.from_table(one, **objects) for seed, one in zip(seeds, of_seed, strict=True)
    }


def _names(given: Sequence[AlgorithmLike], configs: Sequence[dict[int, Config]]) -> list[str]:
    """As they were given; a method that occurs several times tells the settings that it has."""
    methods = [next(iter(of_seed.values())).algorithm for of_seed in configs]
    short = [
        one if isinstance(one, str) else algorithm_name(method)
        for one, method in zip(given, methods, strict=True)
    ]
    return [
        name if short.count(name) == 1 else ", ".join([name, *_own_settings(method)])
        for name, method in zip(short, methods, strict=True)
    ]


def _own_settings(method: Algorithm) -> Iterator[str]:
    """The settings of a method that are not its defaults."""
    for one in fields(method):
        value = getattr(method, one.name)
        if one.default is MISSING or value != one.default:
            yield f"{one.name} = {value}"


def _refuse_mix_ups(rows: Cells, out: Path, hasher: ConfigHasher) -> None:
    """Folders are known by their settings, which do not tell objects of one name apart."""
    seen: dict[str, str] = {}
    for (row, _), config in rows.items():
        other = seen.setdefault(hasher(config), row)
        if other != row:
            raise SettingError(f"rows must differ in their settings, got {other!r} and {row!r}")
        names = (config.model.name, algorithm_reference(config.algorithm))
        folder = study.cell_folder(out, config, hasher(config))
        if any(map(is_given, names)) and folder.exists():
            raise SettingError(
                "out must be new for a model or method that cannot be imported, as nothing tells "
                f"whether it is the same, got {folder}"
            )
