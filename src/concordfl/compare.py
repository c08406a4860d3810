"""Comparisons: the same run with several methods and seeds. Finished cells are reused, an interrupted one is taken up again."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from . import runner
from .config import COMPARED, Config
from .engine.files import write_atomically
from .engine.records import to_json

WORTH_KEEPING = 30.0  # seconds of a cell: a table of a dozen such takes longer than anybody wants to wait

Shown = Callable[[str], AbstractContextManager[runner.Observer]]


def cells(table: Mapping[str, Any], algorithms: Sequence[str], seeds: Sequence[int]) -> dict[tuple[str, int], Config]:
    """The configuration of every (method, seed).

    Settings of [algorithm] go to the method that the run file names; others may have theirs in [compare.NAME].
    """
    Config.from_table(table)
    named = table.get("algorithm", {}).get("name", "fedavg")
    found = {}
    for algorithm in algorithms:
        section = table.get("algorithm", {}) if algorithm == named else table.get(COMPARED, {}).get(algorithm, {})
        for seed in seeds:
            run = {**table.get("run", {}), "seed": seed}
            own = {**table, "algorithm": {**section, "name": algorithm}, "run": run}
            own.pop(COMPARED, None)
            found[algorithm, seed] = Config.from_table(own)
    return found


def config_hash(settings: Config) -> str:
    """What a result depends on: everything but how it was computed."""
    table = settings.to_table()
    for key in ("executor", "workers", "device", "client_states", "checkpoint_seconds", "keep_checkpoints"):
        table["run"].pop(key, None)
    table["fingerprint"] = settings.data.fingerprint()
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def compare(
    configs: Mapping[tuple[str, int], Config], out: Path, shown: Shown, results: Path | None = None
) -> dict[str, list[dict[str, Any]]]:
    """Summaries by method, in the order of seeds; each cell has a run directory of its own below `out`.

    Results that took long are kept in the folder `results` as small JSON files, and taken from there.
    """
    summaries: dict[str, list[dict[str, Any]]] = {}
    for (algorithm, seed), settings in configs.items():
        name = config_hash(settings)
        kept = None if results is None else results / f"{name}.json"
        if kept is not None and kept.exists():
            summaries.setdefault(algorithm, []).append(json.loads(kept.read_text()))
            continue
        folder = out / f"{algorithm}-seed{seed}-{name}"
        with shown(f"{algorithm}, seed {seed}") as observe:
            if (folder / "config.toml").exists():
                result = runner.resume(folder, observe=observe)
            else:
                result = runner.run(settings, out=folder, observe=observe)
        summaries.setdefault(algorithm, []).append(result.summary)
        if kept is not None and result.summary["seconds"]["total"] > WORTH_KEEPING:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(kept, to_json(_small(result.summary, settings), indent=1) + "\n")
    return summaries


def results_folder(file: Path) -> Path | None:
    """`experiments/results`, for a run file that lies in `experiments`."""
    found = next((parent for parent in file.resolve().parents if parent.name == "experiments"), None)
    return None if found is None else found / "results"


def _small(summary: Mapping[str, Any], settings: Config) -> dict[str, Any]:
    """Without values per client; with the configuration it belongs to."""
    small = {key: value for key, value in summary.items() if key not in ("groups", "preprocessing", "thresholds")}
    for part in ("final", "selected"):
        small[part] = small[part] and {key: value for key, value in small[part].items() if key != "clients"}
    return {**small, "config": settings.to_table()}
