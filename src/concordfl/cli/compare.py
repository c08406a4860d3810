"""`concordfl compare`."""

from pathlib import Path
from typing import Annotated

import typer

from .. import compare as comparison
from .. import config as configuration
from ..algorithms import ALGORITHMS
from ..core import SettingError
from ..core.settings import nearest
from ..engine.files import write_atomically
from ..engine.plan import Plan
from ..report import curves, tables
from .options import ExecutorOption, OutOption, RunFile, SetOption, assignments
from .progress import show_progress
from .results import stoppable
from .terminal import console, say, show


def compare(
    file: RunFile,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas.", show_default=False)
    ],
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="How many seeds, counted from run.seed.")
    ] = 1,
    vary: Annotated[
        str | None,
        typer.Option(
            metavar="SECTION.KEY=VALUE,VALUE,...",
            help="Try several values of a setting, a row each.",
            show_default=False,
        ),
    ] = None,
    over_clients: Annotated[
        bool,
        typer.Option(
            "--over-clients", help="Show accuracy, AUC and F1 with their spread over clients."
        ),
    ] = False,
    curve: Annotated[
        Path | None,
        typer.Option(
            help="Draw accuracy against bytes sent: a .svg, .png or .pdf file.", show_default=False
        ),
    ] = None,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: OutOption = None,
    executor: ExecutorOption = None,
) -> None:
    """Run several methods on the same federation and show one table. Finished runs are reused."""
    table = configuration.override(configuration.read_table(file), assignments(set, None, executor))
    cells = _cells(table, _known_names(algorithms), seeds, vary)
    results = comparison.results_folder(file)
    if curve is not None:
        curves.kind_of(curve)  # refused before any work is done
        comparison.require_history(cells, results)
    folder = out or Path("runs") / f"compare-{file.stem}"
    with stoppable("the same command"):
        summaries = comparison.compare(
            cells, folder, lambda title: show_progress(console, title), results
        )
    title = f"{file.stem}, {seeds} seed{'s' * (seeds > 1)}"
    if over_clients:
        heading = f"{title}, last round in percent, ± over clients"
        show(tables.over_clients_table(heading, summaries))
    else:
        heading = f"{title}, accuracy after the last round in percent"
        show(tables.comparison_table(heading, summaries))
    if curve is not None:
        picture = curves.accuracy_against_bytes(title, summaries, curves.kind_of(curve))
        write_atomically(curve, picture)
        say(f"Accuracy against bytes is in {curve}")
    say(f"Runs are in {folder}")


def _known_names(algorithms: str) -> list[str]:
    names = [name.strip() for name in algorithms.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise SettingError(
                f"--algorithms must be known names, got {name!r}{nearest(name, ALGORITHMS)}"
            )
    return names


def _cells(
    table: dict[str, object], names: list[str], seeds: int, vary: str | None
) -> comparison.Cells:
    configuration.Config.from_table(table)  # refused as a whole before its sections are used
    first = Plan.from_table(table.get("run", {}), "run").seed  # type: ignore[arg-type]
    numbers = range(first, first + seeds)
    if vary is None:
        return comparison.cells(table, names, numbers)
    return comparison.varied(table, vary, names, numbers)
