"""The command line."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from . import compare as comparison
from . import config as configuration
from . import runner
from .algorithms import ALGORITHMS
from .core import ConcordError, SettingError
from .core.settings import nearest
from .data.datasets import DATASETS
from .engine.memory import keep_freed_memory
from .models import MODELS
from .progress import shown
from .report import tables
from .scenarios import PARTITIONS, SHIFTS

app = typer.Typer(
    name="concordfl",
    help="Federated learning when clients' data differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
console = Console()
errors = Console(stderr=True)

SetOption = Annotated[
    list[str], typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated.")
]
OutOption = Annotated[Path | None, typer.Option("--out", help="A new folder for the results.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Override run.seed.")]
ExecutorOption = Annotated[str | None, typer.Option("--executor", help="Override run.executor: auto, serial or processes.")]
RunFile = Annotated[Path, typer.Argument(help="A run file in TOML.", show_default=False)]


class Kind(StrEnum):
    algorithms = "algorithms"
    datasets = "datasets"
    models = "models"
    scenarios = "scenarios"


@app.command("list")
def list_known(kind: Annotated[Kind | None, typer.Argument(help="Only one kind.", show_default=False)] = None) -> None:
    """Show the algorithms, data sets, models and scenarios there are."""
    for shown_kind in [kind] if kind else list(Kind):
        console.print(_catalogue(shown_kind))


@app.command()
def run(
    file: RunFile,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: OutOption = None,
    seed: SeedOption = None,
    executor: ExecutorOption = None,
) -> None:
    """Run one method as a run file says."""
    table = configuration.override(configuration.read_table(file), _assignments(set, seed, executor))
    settings = configuration.Config.from_table(table)
    algorithm = configuration.name_of(settings.algorithm, ALGORITHMS)
    folder = out or _new_folder(Path("runs") / f"{file.stem}-{algorithm}-seed{settings.run.seed}")
    _show_run(folder, lambda observe: runner.run(settings, out=folder, observe=observe), algorithm)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]) -> None:
    """Go on with a run where it stopped, bit for bit."""
    _show_run(folder, lambda observe: runner.resume(folder, observe=observe), folder.name)


@app.command()
def compare(
    file: RunFile,
    algorithms: Annotated[str, typer.Option(help="Names, separated by commas.", show_default=False)],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from run.seed.")] = 1,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: OutOption = None,
    executor: ExecutorOption = None,
) -> None:
    """Run several methods on the same federation and show one table. Finished runs are reused."""
    table = configuration.override(configuration.read_table(file), _assignments(set, None, executor))
    names = [name.strip() for name in algorithms.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise SettingError(f"--algorithms must be known names, got {name!r}{nearest(name, ALGORITHMS)}")
    first = configuration.Config.from_table({**table, "algorithm": {}}).run.seed
    cells = comparison.cells(table, names, range(first, first + seeds))
    folder = out or Path("runs") / f"compare-{file.stem}"
    with _interruptible("the same command"):
        summaries = comparison.compare(cells, folder, lambda title: shown(console, title))
    console.print(
        tables.comparison_table(f"{file.stem}, {seeds} seed{'s' * (seeds > 1)}, after the last round (percent)", summaries)
    )
    console.print(f"Runs are in {folder}", highlight=False, soft_wrap=True)


def main() -> None:
    """The entry point: an error that we expect is one line and exit code 2."""
    keep_freed_memory()
    try:
        status = app(standalone_mode=False)
    except ConcordError as error:
        errors.print(f"concordfl: {error}", highlight=False, markup=False, soft_wrap=True)
        status = 2
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a bug and keeps its traceback.
        if not hasattr(error, "show"):
            raise
        error.show()
        status = 2
    sys.exit(status if isinstance(status, int) else 0)


@contextmanager
def _interruptible(way_on: str) -> Iterator[None]:
    """Say on Ctrl-C how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        errors.print(f"concordfl: stopped; {way_on} goes on from the last checkpoint", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None


def _show_run(folder: Path, work: Callable[[runner.Observer], runner.Result], title: str) -> None:
    with _interruptible(f"`concordfl resume {folder}`"), shown(console, title) as observe:
        result = work(observe)
    console.print(tables.run_table(result.summary))
    traffic = result.summary["bytes"]
    console.print(
        f"{tables.size(traffic['down'])} down, {tables.size(traffic['up'])} up, {result.summary['seconds']['total']:.1f} s "
        f"({result.summary['executor']}: {result.summary['executor_reason']})\nResults are in {folder}",
        highlight=False,
        soft_wrap=True,
    )


def _assignments(given: list[str], seed: int | None, executor: str | None) -> list[str]:
    extra = [f"run.seed={seed}"] * (seed is not None) + [f"run.executor={executor}"] * (executor is not None)
    return [*given, *extra]


def _new_folder(wanted: Path) -> Path:
    """`wanted`, or with the first number that makes it new."""
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def _catalogue(kind: Kind) -> Table:
    table = Table(title=kind.value, title_justify="left")
    if kind is Kind.algorithms:
        for column in ("name", "paper", "year", "what travels", "what stays private", "cost of a round"):
            table.add_column(column)
        for name, algorithm in sorted(ALGORITHMS.items()):
            about = algorithm.about
            table.add_row(name, about.paper, str(about.year or "-"), about.travels, about.private, about.cost)
        return table
    table.add_column("name")
    table.add_column("what it is")
    known: dict[str, str]
    if kind is Kind.datasets:
        known = {name: source.about for name, source in DATASETS.items()}
    elif kind is Kind.models:
        known = {name: inspect.getdoc(model) or "" for name, model in MODELS.items()}
    else:
        known = {f"partition {name}": partition.about for name, partition in PARTITIONS.items()}
        known |= {f"shift {name}": shift.about for name, shift in SHIFTS.items()}
    for name, text in sorted(known.items()):
        table.add_row(name, text)
    return table
