"""`concordfl tune`."""

import shlex
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import config as configuration
from ..engine.observers import Observer
from ..metrics import METRICS
from ..report import tables
from ..study import tune as tuning
from ..study.cells import assign
from ..study.grid import Grid, parse_grid
from .options import (
    AlgorithmsOption,
    DeviceOption,
    ExecutorOption,
    GridOption,
    RayAddressOption,
    RunFile,
    SeedsOption,
    SetOption,
    assignments,
    known_names,
)
from .progress import show_progress
from .results import stoppable
from .terminal import console, say, show


def tune(
    file: RunFile,
    algorithms: AlgorithmsOption,
    grid: GridOption = [],  # noqa: B006 - typer reads the default and never changes it
    rounds: Annotated[
        int | None,
        typer.Option(help="Of the longest runs; by default run.rounds.", show_default=False),
    ] = None,
    rungs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How often settings are judged, half of them dropped each time; 1 plays all to "
            "the end.",
            show_default=False,
        ),
    ] = None,
    seeds: SeedsOption = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="The run file to write; by default NAME-tuned.toml beside NAME.toml.",
            show_default=False,
        ),
    ] = None,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    executor: ExecutorOption = None,
    ray_address: RayAddressOption = None,
    device: DeviceOption = None,
) -> None:
    """Choose settings of several methods on validation data, and write a run file that has them.

    The better half of a grid's settings goes on at each rung. Finished runs are reused.
    """
    names = known_names(algorithms)
    target = out or file.with_name(f"{file.stem}-tuned.toml")
    tuning.require_writable(target)
    folder = Path("runs") / f"compare-{target.stem}"  # where `compare` looks for the tuned file
    table = assign(configuration.read_table(file), set, names)
    with stoppable("the same command"):
        found = tuning.tune(
            table,
            names,
            _grid(grid),
            out=folder,
            rounds=rounds,
            seeds=seeds,
            rungs=rungs,
            assignments=assignments([], executor=executor, ray_address=ray_address, device=device),
            display=_display,
        )
    found.write(target, shlex.join(["concordfl", *sys.argv[1:]]))
    show_tuning(file.stem, found)
    compare = ["concordfl", "compare", str(target), "--algorithms", algorithms]
    say(f"Written to {target}; `{shlex.join(compare)}` compares them on test data")


def tuned_table(
    name: str, table: dict[str, Any], methods: list[str], grid: list[str], folder: Path
) -> dict[str, Any]:
    """A run file's table for a comparison, with settings chosen by its first seed, which are
    shown.
    """
    with stoppable("the same command"):
        found = tuning.tune(table, methods, _grid(grid), out=folder, display=_display)
    show_tuning(name, found)
    return dict(found.table)


def _grid(texts: list[str]) -> Grid | None:
    return parse_grid(texts) if texts else None


def _display(title: str) -> AbstractContextManager[Observer]:
    return show_progress(console, title, validation=True)


def show_tuning(name: str, found: tuning.Tuning) -> None:
    """A table of the chosen settings, and what must be known of them."""
    table = Table(title=f"{name}, tuned on validation data", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("chosen")
    for column in ("settings", "rounds played", "validation before", "after"):
        table.add_column(column, justify="right")
    for method, tuned in found.methods.items():
        figures = [_figure(tuned, trial) for trial in (tuned.before, tuned.chosen)]
        table.add_row(
            tables.plain(method),
            tables.plain(tuned.chosen.name),
            str(len(tuned.trials)),
            str(tuned.rounds),
            *figures,
        )
    show(table)
    levels = ", ".join(map(str, found.rungs))
    say(f"Settings were judged after {levels} rounds; test data were not looked at", *found.notes())


def _figure(tuned: tuning.MethodTuning, trial: tuning.Trial) -> str:
    value, metric = tuned.validation(trial), METRICS[tuned.metric]
    if metric.is_share or value is None:
        return tables.percent(value)
    return f"{metric.title} {value:.4g}"
