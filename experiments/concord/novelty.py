"""Who notices samples unlike anything that was in training? Concord beside FedGMM, on the data of
table 4 of the FedGMM paper.

    python experiments/concord/novelty.py [--algorithms NAMES] [--seeds N]
        [--set SECTION.KEY=VALUE ...] [--keep] [--fresh]

Trains the methods (in runs/) and prints the AUROC of telling participants' test images from the
same at half size, turned by 90 degrees and mirrored: by log p(x) + log p(y|x), by log p(x) alone,
and with both brought to 0 to 1 before they are added; of methods without p(x), by the highest
softmax. Chance has 50. Of several seeds it prints mean ± standard deviation. Figures that are kept
beside the run file are not computed again, unless with --fresh; --keep adds to them.
"""

from pathlib import Path
from typing import Any

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
from concordfl.papers.measures_fedgmm import novel_images
from concordfl.study.cells import cells
from concordfl.study.measure import measure

FILE = Path(__file__).parents[1] / "fedgmm" / "mnist_novelty.toml"
COLUMNS = {"sum of both": None, "log p(x)": "log_p_x", "each 0 to 1": "normalised"}


def main(
    algorithms: AlgorithmsOption = "concord,fedgmm,fedavg",
    seeds: SeedsOption = 1,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    given = configuration.override(configuration.read_table(FILE), set)
    methods = known_names(algorithms)
    measured = measure(
        cells(given, methods, range(seeds)),
        FILE,
        "novel-images",
        dict,
        novel_images,
        keep=keep,
        fresh=fresh,
    )
    table = Table(title="AUROC of novel images, in percent", title_justify="left")
    table.add_column("method")
    for title in COLUMNS:
        table.add_column(title, justify="right")
    for method in methods:
        found = [measured.figures[method, seed] for seed in range(seeds)]
        table.add_row(method, *(_cell(found, part) for part in COLUMNS.values()))
    console = Console(width=120)
    console.print(table)
    for note in measured.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _cell(found: list[dict[str, Any]], part: str | None) -> str:
    """Mean and deviation over seeds; empty where a method has no such score."""
    scores = [each if part is None else each.get(part) for each in found]
    if None in scores:
        return ""
    values = [100 * score["auroc"] for score in scores if score is not None]
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}"


if __name__ == "__main__":
    script(main)
