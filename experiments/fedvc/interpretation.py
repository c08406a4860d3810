"""Do clients' preferences tell their true groups? Figures 7 and 8 of the FedVC paper, in numbers.

    python experiments/fedvc/interpretation.py [--algorithms NAMES] [--seeds N]
        [--set SECTION.KEY=VALUE ...] [--keep] [--fresh]

Trains FedVC, FedVC-sg and FedAvg (in runs/) and prints how well the clients fall into their true
groups, by FedVC's preferences p, by their weights v of the concepts, and by FedAvg's mean features;
and how well single samples do, by FedVC's estimates p̂ and by FedAvg's features. Silhouette and ARI
are 1 where groups lie apart; chance has an ARI of 0. Of several seeds it prints mean ± standard
deviation. Figures that are kept beside the run files are not computed again, unless with --fresh;
--keep adds to them.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from concordfl import config as configuration
from concordfl.cli import (
    AlgorithmsOption,
    FreshOption,
    KeepOption,
    SeedsOption,
    SetOption,
    script,
)
from concordfl.cli.options import known_names
from concordfl.papers.measures_fedvc import Separations, separations
from concordfl.study.cells import cells
from concordfl.study.measure import measure

HERE = Path(__file__).parent
COLUMNS = {"clients": "clients", "weights": "by v", "samples": "samples"}


def main(
    algorithms: AlgorithmsOption = "fedvc,fedvc-sg,fedavg",
    seeds: SeedsOption = 1,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    table = Table(
        title="How clients and samples fall into the true groups, in percent", title_justify="left"
    )
    table.add_column("run file")
    table.add_column("method")
    for title in COLUMNS.values():
        table.add_column(f"{title}: silhouette", justify="right")
        table.add_column("ARI", justify="right")
    notes: list[str] = []
    for name in ("mnist_target", "digits_feature"):
        file = HERE / f"{name}.toml"
        given = configuration.override(configuration.read_table(file), set)
        methods = known_names(algorithms)
        compared = cells(given, methods, range(seeds))
        measured = measure(
            compared, file, "interpretation", Separations, separations, keep=keep, fresh=fresh
        )
        for method in methods:
            found = [measured.figures[method, seed] for seed in range(seeds)]
            table.add_row(name, method, *_row(found))
        notes += [f"{name}: {note}" for note in measured.notes]
    console = Console(width=120)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _row(found: list[Separations]) -> Iterator[str]:
    """Silhouette and ARI of every column, over the seeds; empty where one has none."""
    for column in COLUMNS:
        for figure in ("silhouette", "ari"):
            values = [100 * each[column][figure] for each in found if column in each]
            spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
            yield f"{np.mean(values):.1f}{spread}" if len(values) == len(found) else ""


if __name__ == "__main__":
    script(main)
