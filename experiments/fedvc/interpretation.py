"""Do clients' preferences tell their true groups? Figures 7 and 8 of the FedVC paper, in numbers.

    python experiments/fedvc/interpretation.py [--set SECTION.KEY=VALUE ...]

Trains FedVC, FedVC-sg and FedAvg (in runs/; what was computed is kept in experiments/results/) and
prints how well the clients fall into their true groups, by FedVC's preferences p and by FedAvg's
mean features, and how well single samples do, by FedVC's estimates p̂ and by FedAvg's features.
Silhouette and ARI are 1 where groups lie apart; chance has an ARI of 0.
"""

from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from concordfl import config as configuration
from concordfl.algorithms import FedAvg
from concordfl.cli import SetOption, script
from concordfl.compare import cells, measured
from concordfl.deploy.finished import FinishedRun
from concordfl.engine.records import RunFolder
from concordfl.metrics import separation
from concordfl.runner import make_federation

HERE = Path(__file__).parent
METHODS = ("fedvc", "fedvc-sg", "fedavg")
SAMPLES = 20  # of every client


def main(set: SetOption = []) -> None:  # noqa: B006 - typer reads the default and never changes it
    table = Table(
        title="How clients and samples fall into the true groups, in percent", title_justify="left"
    )
    columns = ("run file", "method", "clients: silhouette", "ARI", "samples: silhouette", "ARI")
    for place, column in enumerate(columns):
        table.add_column(column, justify="left" if place < 2 else "right")
    for name in ("mnist_target", "digits_feature"):
        for method in METHODS:
            file = HERE / f"{name}.toml"
            given = configuration.override(configuration.read_table(file), set)
            found = measured(
                file, cells(given, [method], [0])[method, 0], "interpretation", _measure
            )
            table.add_row(
                name,
                method,
                *(
                    f"{100 * found[level][figure]:.1f}"
                    for level in found
                    for figure in found[level]
                ),
            )
    Console(width=120).print(table)


def _measure(finished: FinishedRun) -> dict[str, Any]:
    look = _features if isinstance(finished.settings.algorithm, FedAvg) else _preferences
    clients, samples = look(finished)
    groups = {id: finished.summary["groups"][id]["partition"] for id in clients}
    of_samples = [groups[id] for id in samples for _ in samples[id]]
    return {
        "clients": separation(
            np.stack(list(clients.values())), [groups[id] for id in clients]
        )._asdict(),
        "samples": separation(np.concatenate(list(samples.values())), of_samples)._asdict(),
    }


def _preferences(finished: FinishedRun) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """p of every participant and p̂ of some of its samples, from the records."""
    record = RunFolder.open(finished.path).read_records()[-1]
    told = {id: record["inspect"][id] for id in record["local"]["clients"]["accuracy"]}
    return {id: np.array(one["preference"]) for id, one in told.items()}, {
        id: np.array(one["estimates"])[:SAMPLES] for id, one in told.items()
    }


def _features(finished: FinishedRun) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The mean of every participant's features under the global model, and those of some of its
    samples.
    """
    federation, params = make_federation(finished.settings), finished.progress.server
    features = {}
    for id in federation.participants:
        client = finished.client(id, federation.splits(id).train)
        features[id] = client.over(
            None, lambda inputs: finished.model.features(params, inputs)
        ).numpy()
    return {id: each.mean(0) for id, each in features.items()}, {
        id: each[:SAMPLES] for id, each in features.items()
    }


if __name__ == "__main__":
    script(main)
