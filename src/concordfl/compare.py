"""Comparisons: the same run with several methods and seeds. Finished cells are reused, an
interrupted one is taken up again.
"""

import hashlib
import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from . import runner
from .algorithms import ALGORITHMS
from .config import COMPARED, Config, name_of, override, read_table
from .core import SettingError
from .deploy.finished import FinishedRun
from .engine.experiment import ignore
from .engine.files import write_atomically
from .engine.records import to_json

# seconds of a cell: a table of sixty such takes longer than anybody wants to wait
WORTH_KEEPING = 10.0

# keys of [run] that change no result
HOW = ("executor", "workers", "device", "client_states", "checkpoint_seconds", "keep_checkpoints")

Cells = dict[tuple[str, int], Config]  # by row of the table and seed
Shown = Callable[[str], AbstractContextManager[runner.Observer]]


def cells(table: Mapping[str, Any], algorithms: Sequence[str], seeds: Sequence[int]) -> Cells:
    """The configuration of every (method, seed).

    Settings of [algorithm] go to the method that the run file names; others may have theirs in
    [compare.NAME].
    """
    Config.from_table(table)
    named = table.get("algorithm", {}).get("name", "fedavg")
    found = {}
    for algorithm in algorithms:
        section = (
            table.get("algorithm", {})
            if algorithm == named
            else table.get(COMPARED, {}).get(algorithm, {})
        )
        for seed in seeds:
            run = {**table.get("run", {}), "seed": seed}
            own = {**table, "algorithm": {**section, "name": algorithm}, "run": run}
            own.pop(COMPARED, None)
            found[algorithm, seed] = Config.from_table(own)
    return found


def varied(
    table: Mapping[str, Any], vary: str, algorithms: Sequence[str], seeds: Sequence[int]
) -> Cells:
    """Cells for every value of `SECTION.KEY=VALUE,VALUE,...`: a row each, and one for a method that
    does not depend on it.
    """
    path, equals, values = vary.partition("=")
    if not equals or "." not in path:
        raise SettingError(f"--vary must be SECTION.KEY=VALUE,VALUE,..., got {vary!r}")
    if path.strip() == "run.seed":
        raise SettingError(f"--vary must not be about run.seed, which --seeds is for, got {vary!r}")
    by_value = {
        value: cells(override(table, [f"{path}={value}"]), algorithms, seeds)
        for value in _split(values)
    }
    found: Cells = {}
    for algorithm in algorithms:
        alike = (
            len({config_hash(several[algorithm, seeds[0]]) for several in by_value.values()}) == 1
        )
        for value, several in by_value.items():
            row = (
                algorithm if alike else f"{algorithm}, {path.rpartition('.')[2].strip()} = {value}"
            )
            found |= {(row, seed): several[algorithm, seed] for seed in seeds}
    if len(by_value) > 1 and {row for row, _ in found} == set(algorithms):
        raise SettingError(
            f"--vary must change one of the methods {', '.join(algorithms)}, got {vary!r}"
        )
    return found


def _split(values: str) -> list[str]:
    """At commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in values:
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def config_hash(settings: Config) -> str:
    """What a result depends on: everything but how it was computed."""
    table = _what(settings.to_table())
    table["fingerprint"] = settings.data.fingerprint()
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def _what(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without how it is computed."""
    run = {key: value for key, value in table["run"].items() if key not in HOW}
    return {**table, "run": run}


def compare(
    configs: Cells, out: Path, shown: Shown, results: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Summaries by row, in the order of seeds; each cell has a run directory of its own below
    `out`.

    Results that took long are kept in the folder `results` as small JSON files, and taken from
    there.
    """
    summaries: dict[str, list[dict[str, Any]]] = {}
    for (row, seed), settings in configs.items():
        name = config_hash(settings)
        kept = None if results is None else results / f"{name}.json"
        if kept is not None and kept.exists():
            summaries.setdefault(row, []).append(json.loads(kept.read_text()))
            continue
        folder = out / f"{name_of(settings.algorithm, ALGORITHMS)}-seed{seed}-{name}"
        with shown(f"{row}, seed {seed}") as observe:
            result = _finish(settings, folder, observe)
        summary = {**result.summary, "history": [_milestone(record) for record in result.records]}
        summaries.setdefault(row, []).append(summary)
        if kept is not None and summary["seconds"]["total"] > WORTH_KEEPING:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, to_json(_small(summary, settings), indent=1) + "\n")
    return summaries


def require_history(configs: Cells, results: Path | None) -> None:
    """Refuse before any work if a kept result does not tell how it came about."""
    for settings in configs.values():
        kept = None if results is None else results / f"{config_hash(settings)}.json"
        if kept is not None and kept.exists() and "history" not in json.loads(kept.read_text()):
            raise SettingError(
                f"a curve needs results with a history, got {kept} without: remove it to compute "
                "it again"
            )


def measured(file: Path, settings: Config, what: str, measure: Callable[[FinishedRun], Any]) -> Any:
    """What `measure` finds in the finished run of `settings`, as JSON has it; computed once for a
    run file in `experiments`.
    """
    name, results = config_hash(settings), results_folder(file)
    kept = None if results is None else results / f"{name}-{what}.json"
    if kept is None or not kept.exists():
        folder = Path("runs") / f"{file.stem}-{name_of(settings.algorithm, ALGORITHMS)}-{name}"
        _finish(settings, folder)
        found = to_json(measure(FinishedRun.open(folder, trust=True)), indent=1)
        if kept is None:
            return json.loads(found)
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(kept, found + "\n")
    return json.loads(kept.read_text())


def _finish(settings: Config, folder: Path, observe: runner.Observer = ignore) -> runner.Result:
    """The run in `folder`, begun or taken up again."""
    if (folder / "config.toml").exists():
        _require_same(settings, folder)
        return runner.resume(folder, observe=observe, trust=True)
    return runner.run(settings, out=folder, observe=observe)


def _require_same(settings: Config, folder: Path) -> None:
    """Refuse a cell whose configuration is not the one asked for: it would give another result,
    and might name somebody else's code.
    """
    asked, found = tomllib.loads(settings.to_toml()), read_table(folder / "config.toml")
    if not isinstance(found.get("run"), Mapping) or _what(found) != _what(asked):
        raise SettingError(
            f"{folder} must hold the run that is compared, got one with other settings: remove it "
            "or give another --out"
        )


def results_folder(file: Path) -> Path | None:
    """`experiments/results`, for a run file that lies in `experiments`."""
    found = next(
        (parent for parent in file.resolve().parents if parent.name == "experiments"), None
    )
    return None if found is None else found / "results"


def _small(summary: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Without values per client; with the configuration it belongs to."""
    small = {
        key: value
        for key, value in summary.items()
        if key not in ("groups", "preprocessing", "thresholds")
    }
    for part in ("final", "selected"):
        small[part] = small[part] and {
            key: value for key, value in small[part].items() if key != "clients"
        }
    return {**small, "config": settings.to_table()}


def _milestone(record: Mapping[str, Any]) -> dict[str, Any]:
    """An evaluated round in a line: accuracy, and the bytes it took to get there."""
    accuracy = {
        f"{place}_accuracy": record[place].get("accuracy")
        for place in ("local", "global")
        if place in record
    }
    return {
        "round": record["round"],
        "stage": record["stage"],
        **accuracy,
        "bytes": record["bytes"],
    }
