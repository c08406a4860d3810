"""Do clients' preferences tell their true groups? Figures 7 and 8 of the FedVC paper, in numbers.

    python experiments/fedvc/interpretation.py [--set SECTION.KEY=VALUE ...] [--keep] [--fresh]

Trains FedVC, FedVC-sg and FedAvg (in runs/) and prints how well the clients fall into their true
groups, by FedVC's preferences p and by FedAvg's mean features, and how well single samples do, by
FedVC's estimates p̂ and by FedAvg's features. Silhouette and ARI are 1 where groups lie apart;
chance has an ARI of 0. Figures that are kept beside the run files are not computed again, unless
with --fresh; --keep adds to them.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from concordfl import config as configuration
from concordfl.algorithms import FedAvg
from concordfl.cli import FreshOption, KeepOption, SetOption, script
from concordfl.deploy.finished import FinishedRun
from concordfl.engine.records import RunFolder
from concordfl.metrics import separation
from concordfl.study.cells import cells
from concordfl.study.measure import measure

HERE = Path(__file__).parent
METHODS = ("fedvc", "fedvc-sg", "fedavg")
SAMPLES_PER_CLIENT = 20
Separations = dict[str, dict[str, float]]  # of clients and of samples: silhouette and ARI


def main(
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    table = Table(
        title="How clients and samples fall into the true groups, in percent", title_justify="left"
    )
    table.add_column("run file")
    table.add_column("method")
    for column in ("clients: silhouette", "ARI", "samples: silhouette", "ARI"):
        table.add_column(column, justify="right")
    notes: list[str] = []
    for name in ("mnist_target", "digits_feature"):
        file = HERE / f"{name}.toml"
        given = configuration.override(configuration.read_table(file), set)
        compared = cells(given, METHODS, [0])
        measured = measure(
            compared, file, "interpretation", Separations, _separations, keep=keep, fresh=fresh
        )
        for (method, _), found in measured.figures.items():
            figures = [value for level in found.values() for value in level.values()]
            table.add_row(name, method, *(f"{100 * value:.1f}" for value in figures))
        notes += [f"{name}: {note}" for note in measured.notes]
    console = Console(width=120)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _separations(finished: FinishedRun) -> Separations:
    look = _features if isinstance(finished.settings.algorithm, FedAvg) else _preferences
    clients, samples = look(finished)
    recorded = RunFolder.open(finished.path).read_federation() or {"clients": []}
    groups = {client["id"]: client["groups"].get("partition") for client in recorded["clients"]}
    of_samples = [groups[id] for id in samples for _ in samples[id]]
    return {
        "clients": separation(
            np.stack(list(clients.values())), [groups[id] for id in clients]
        )._asdict(),
        "samples": separation(np.concatenate(list(samples.values())), of_samples)._asdict(),
    }


def _preferences(finished: FinishedRun) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """p of every participant and p̂ of some of its samples, from the run's folder."""
    rows = RunFolder.open(finished.path).read_client_rows(finished.summary["rounds"])
    participants = {id: row for id, row in rows.items() if not row["new"]}
    return {id: np.array(row["preference"]) for id, row in participants.items()}, {
        id: np.array(row["estimates"])[:SAMPLES_PER_CLIENT] for id, row in participants.items()
    }


def _features(finished: FinishedRun) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The mean of every participant's features under the global model, and those of some of its
    samples.
    """
    federation, params = finished.federation(), finished.progress.server
    features = {}
    for id in federation.participants:
        client = finished.client(id, federation.splits(id).train)
        features[id] = client.over(
            None, lambda inputs: finished.model.features(params, inputs)
        ).numpy()
    return {id: each.mean(0) for id, each in features.items()}, {
        id: each[:SAMPLES_PER_CLIENT] for id, each in features.items()
    }


if __name__ == "__main__":
    script(main)
