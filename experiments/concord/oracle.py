"""The oracle of docs/concord.md: FedAvg among the clients of each true concept, which no method is
told.

    python experiments/concord/oracle.py experiments/concord/fmnist_strong.toml --seeds 3
        [--set SECTION.KEY=VALUE ...]
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import concordfl as cf
from concordfl.algorithms import IFCA
from concordfl.assemble import make_federation
from concordfl.config import override, read_table
from concordfl.core import Mean, client_step
from concordfl.inputs import load_config


@dataclass(frozen=True)
class Oracle(IFCA):
    """IFCA whose clients are told their models."""

    concepts: tuple[tuple[str, int], ...] = ()  # model by client

    def init_server(self, task, seed):
        return {k: task.model.init(seed) for k in range(self.num_models)}

    @client_step
    def train(self, client, state, message):
        own = dict(self.concepts)[client.id]
        trained = client.fit(message[own])
        return state, {own: Mean(trained, client.size, around=message[own])}

    def adapt(self, client, state, message, *, new):
        return {"best": dict(self.concepts)[client.id]}


def play(table: Mapping[str, Any], seed: int) -> tuple[float, float]:
    sections = {name: table[name] for name in ("run", "data", "scenario", "model", "training")}
    sections["run"] = {**sections["run"], "seed": seed, "executor": "serial"}
    groups = make_federation(load_config(algorithm="fedavg", **sections)).groups
    names = {id: own.get("concept", "") for id, own in groups.items()}
    kinds = sorted(set(names.values()))
    concepts = tuple((id, kinds.index(name)) for id, name in names.items())
    method = Oracle(num_models=len(kinds), concepts=concepts)
    final = cf.run(algorithm=method, **sections).summary["final"]
    return 100 * final["local_accuracy"], 100 * final["global_accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    given = parser.parse_args()
    table = override(read_table(given.file), given.set)
    found = np.array([play(table, seed) for seed in range(given.seeds)])
    for name, column in zip(("local", "global"), found.T, strict=True):
        spread = column.std(ddof=1) if len(column) > 1 else 0.0
        print(f"{name} {column.mean():.1f} ± {spread:.1f}  {column.round(1).tolist()}")


if __name__ == "__main__":
    main()
