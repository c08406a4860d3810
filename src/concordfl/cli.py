"""The command line."""

import inspect
import os
import statistics
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
from . import kept_results, newcomer, runner, scoring
from .algorithms import ALGORITHMS
from .cells import ConfigHasher, vary
from .core import ConcordError, DataError, SettingError
from .core.settings import nearest
from .data.dataset import FileSource, data_folders
from .data.datasets import DATASETS
from .data.fetch import fetch
from .engine.files import write_atomically
from .engine.memory import keep_freed_memory
from .engine.plan import Plan
from .metrics import novelty
from .models import MODELS
from .preview import preview
from .progress import downloading, shown
from .report import curves, tables
from .scenarios import NAMED, PARTITIONS, SHIFTS

app = typer.Typer(
    name="concordfl",
    help="Federated learning when clients' data differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
# A pipe has no width: tables need not be broken there.
console = Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
errors = Console(stderr=True)

SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated."),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="A new folder for the results.")]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Override run.seed.")]
ExecutorOption = Annotated[
    str | None, typer.Option("--executor", help="Override run.executor: auto, serial or processes.")
]
KeepOption = Annotated[
    bool,
    typer.Option("--keep", help="Keep results that took long beside the run file."),
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Compute all anew, whatever results are kept.")
]
FolderArgument = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]
DataOption = Annotated[
    Path,
    typer.Option("--data", help="Examples: .npz, .csv or a folder of images.", show_default=False),
]
RunFile = Annotated[Path, typer.Argument(help="A run file in TOML.", show_default=False)]


class Kind(StrEnum):
    algorithms = "algorithms"
    datasets = "datasets"
    models = "models"
    scenarios = "scenarios"


@app.command("list")
def list_known(
    kind: Annotated[Kind | None, typer.Argument(help="Only one kind.", show_default=False)] = None,
) -> None:
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
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be run, and run nothing.")
    ] = False,
) -> None:
    """Run one method as a run file says."""
    table = configuration.override(
        configuration.read_table(file), _assignments(set, seed, executor)
    )
    settings = configuration.Config.from_table(table)
    if dry_run:
        for part in preview(settings):
            console.print(part, highlight=False, markup=False)
        return
    algorithm = configuration.name_of(settings.algorithm, ALGORITHMS)
    wanted = Path("runs") / f"{file.stem}-{algorithm}-seed{settings.run.seed}"
    folder = out or comparison.new_folder(wanted)
    _show_run(folder, lambda observe: runner.run(settings, out=folder, observe=observe), algorithm)


@app.command()
def resume(folder: FolderArgument) -> None:
    """Go on with a run where it stopped, bit for bit."""
    _show_run(folder, lambda observe: runner.resume(folder, observe=observe), folder.name)


@app.command()
def compare(
    file: RunFile,
    algorithms: Annotated[
        str, typer.Option(help="Names, separated by commas.", show_default=False)
    ],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counted from run.seed.")] = 1,
    variations: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="SECTION.KEY=VALUE,VALUE,...",
            help="Try several values of a setting, a row each; repeated, every combination.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer reads the default and never changes it
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
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    """Run several methods on the same federation and show one table.

    Finished runs are reused, and so are the results kept beside the run file.
    """
    table = configuration.override(
        configuration.read_table(file), _assignments(set, None, executor)
    )
    names = [name.strip() for name in algorithms.split(",")]
    for name in names:
        if name not in ALGORITHMS:
            raise SettingError(
                f"--algorithms must be known names, got {name!r}{nearest(name, ALGORITHMS)}"
            )
    first = Plan.from_table(table.get("run", {}), "run").seed
    numbers = range(first, first + seeds)
    configs = vary(table, variations, names, numbers)
    hasher = ConfigHasher()
    # What is to be added to must be whole, even if nothing is taken from it.
    beside = kept_results.read(file, hasher) if keep or not fresh else None
    kept = None if fresh else beside
    if curve is not None:
        curves.kind_of(curve)  # refused before any work is done
        comparison.require_history(configs, kept, hasher)
    folder = out or Path("runs") / f"compare-{file.stem}"
    if fresh and out is None:
        folder = comparison.new_folder(folder)
    with _interruptible(f"the same command with --out {folder}" if fresh else "the same command"):
        found = comparison.compare(
            configs,
            folder,
            lambda title: shown(console, title),
            kept,
            hasher=hasher,
            keep_beside=file if keep else None,
        )
    title = f"{file.stem}, {seeds} seed{'s' * (seeds > 1)}"
    if over_clients:
        heading = f"{title}, last round in percent, ± over clients"
        console.print(tables.over_clients_table(heading, found.figures))
    else:
        heading = f"{title}, accuracy after the last round in percent"
        console.print(tables.comparison_table(heading, found.figures))
    if curve is not None:
        picture = curves.accuracy_against_bytes(title, found.figures, curves.kind_of(curve))
        write_atomically(curve, picture)
        console.print(
            f"Accuracy against bytes is in {curve}", highlight=False, markup=False, soft_wrap=True
        )
    notes = [
        beside and beside.describe_ignored(),
        kept_results.describe_kept(found.kept, found.num_cells),
        f"Runs are in {folder}" if len(found.kept) < found.num_cells else None,
    ]
    for note in notes:
        if note is not None:
            console.print(note, highlight=False, markup=False, soft_wrap=True)


@app.command()
def adapt(folder: FolderArgument, data: DataOption) -> None:
    """Let a new client join a finished run: it adapts to half of its examples and is tested on the
    rest.
    """
    answer = newcomer.adapt(folder, data)
    tested = answer["tested_on"]
    figures = [f"accuracy {tables.percent(tested['accuracy'])}"] if "accuracy" in tested else []
    if "log_likelihood" in answer:
        figures += [f"log-likelihood {answer['log_likelihood']['own_weights']:.3f}"]
    console.print(
        f"{answer['client']}: {', '.join(figures)} on {tested['examples']} examples, after "
        "adapting to "
        f"{answer['adapted_on']} others\nWritten to {folder / 'adapted' / answer['client']}.json",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def score(
    folder: FolderArgument,
    data: DataOption,
    false_alarm: Annotated[
        float,
        typer.Option(
            help="The share of held-out training data that may be called novel.", min=0, max=1
        ),
    ] = 0.05,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Samples known to be familiar: how well are the two told apart?",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .json file.", show_default=False)
    ] = None,
) -> None:
    """Say how familiar samples are to a finished run, and which are unlike anything seen."""
    file = out or folder / "scores" / f"{data.stem}.csv"
    if file.suffix.lower() not in (".csv", ".json"):
        raise SettingError(f"--out must be a .csv or .json file, got {file}")
    if against is None:
        scored, familiar = scoring.score(folder, data, false_alarm), None
    else:
        scored, familiar = scoring.score_both(folder, data, against, false_alarm)
    scoring.write(scored, file)
    console.print(
        f"{len(scored.score)} samples, {_verdict(scored)}", highlight=False, soft_wrap=True
    )
    if familiar is not None:
        figures = novelty(familiar.score, scored.score)
        console.print(
            f"against {len(familiar.score)} familiar samples, {_verdict(familiar)}\n"
            f"AUROC {figures.auroc:.4f}, AP {figures.ap:.4f}, max-F1 {figures.max_f1:.4f}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"Written to {file}", highlight=False, soft_wrap=True)


def _verdict(scored: scoring.Scored) -> str:
    middle = f"median score {statistics.median(scored.score):.4g}"
    if scored.novel is None:
        return f"{middle}; no verdicts, as the run kept no validation data"
    return (
        f"{int(scored.novel.sum())} of them novel: {middle}, threshold {scored.threshold:.4g} "
        f"at a false-alarm rate of {scored.false_alarm:g}"
    )


data_app = typer.Typer(
    help="Data sets: what is here, and how to get the rest.", no_args_is_help=True
)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list() -> None:
    """Show which data sets are on this machine, where, how large, and how to get the others."""
    table = Table(title="data sets", title_justify="left")
    for column in ("name", "here", "size", "where, or how to get it"):
        table.add_column(column, overflow="fold")
    for name, (here, bytes_, where) in data_sets().items():
        table.add_row(name, "yes" if here else "no", tables.size(bytes_) if here else "-", where)
    console.print(table)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A data set's name.", show_default=False)],
) -> None:
    """Fetch a data set from its official home, checked and resumable."""
    if name not in DATASETS:
        raise SettingError(
            f"the data set must be a known name, got {name!r}{nearest(name, DATASETS)}"
        )
    source = DATASETS[name]
    if not source.home:
        advice = source.advice or "it needs nothing"
        raise SettingError(
            f"the data set must have a home to fetch from, got {name!r}, which has none: {advice}"
        )
    folder = data_folders(name)[0]
    for remote in source.home:
        with downloading(console, remote.address) as tell:
            console.print(f"{fetch(remote, folder, tell)}", highlight=False, soft_wrap=True)


def main() -> None:
    """The entry point."""
    keep_freed_memory()
    _speak(app)


def script(command: Callable[..., None]) -> None:
    """The entry point of a script that is not one of our commands: it gives options and errors as
    they do.
    """
    own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    own.command()(command)
    _speak(own)


def _speak(spoken: typer.Typer) -> None:
    """An error that we expect is one line and exit code 2."""
    try:
        status = spoken(standalone_mode=False)
    except ConcordError as error:
        errors.print(f"concordfl: {error}", highlight=False, markup=False, soft_wrap=True)
        status = 2
    except Exception as error:
        # Click's usage errors know how to show themselves; anything else is a bug and keeps its
        # traceback.
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
        errors.print(
            f"concordfl: stopped; {way_on} goes on from the last checkpoint",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(130) from None


def _show_run(folder: Path, work: Callable[[runner.Observer], runner.Result], title: str) -> None:
    with _interruptible(f"`concordfl resume {folder}`"), shown(console, title) as observe:
        result = work(observe)
    console.print(tables.run_table(result.summary))
    traffic = result.summary["bytes"]
    console.print(
        f"{tables.size(traffic['down'])} down, {tables.size(traffic['up'])} up, "
        f"{result.summary['seconds']['total']:.1f} s "
        f"({result.summary['executor']}: {result.summary['executor_reason']})\nResults are in "
        f"{folder}",
        highlight=False,
        soft_wrap=True,
    )


def _assignments(given: list[str], seed: int | None, executor: str | None) -> list[str]:
    extra = [f"run.seed={seed}"] * (seed is not None) + [f"run.executor={executor}"] * (
        executor is not None
    )
    return [*given, *extra]


def data_sets() -> dict[str, tuple[bool, int, str]]:
    """For every data set: whether it is here, its bytes, and where it is or how to get it."""
    found: dict[str, tuple[bool, int, str]] = {}
    for name, kind in DATASETS.items():
        source = kind()
        if not isinstance(source, FileSource):
            found[name] = (True, 0, "needs no files of its own")
            continue
        try:
            form, place = source.locate()
        except DataError:
            found[name] = (False, 0, source.advice or f"`concordfl data get {name}`")
        else:
            files = [
                file
                for entry in form.files
                for file in [place / entry, *(place / entry).rglob("*")]
            ]
            found[name] = (
                True,
                sum(file.stat().st_size for file in files if file.is_file()),
                str(place),
            )
    return found


def _catalogue(kind: Kind) -> Table:
    table = Table(title=kind.value, title_justify="left")
    if kind is Kind.algorithms:
        table.caption = "cost: of a round, relative to FedAvg's"
        table.add_column("name", no_wrap=True)
        for column in ("paper", "what travels", "what stays private", "cost"):
            table.add_column(column)
        for name, algorithm in sorted(ALGORITHMS.items()):
            about = algorithm.about
            table.add_row(
                name, f"{about.paper} {about.year or ''}", about.travels, about.private, about.cost
            )
        return table
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    known: dict[str, str]
    if kind is Kind.datasets:
        known = {name: source.about for name, source in DATASETS.items()}
    elif kind is Kind.models:
        known = {name: inspect.getdoc(model) or "" for name, model in MODELS.items()}
    else:
        known = {f"partition {name}": partition.about for name, partition in PARTITIONS.items()}
        known |= {f"shift {name}": shift.about for name, shift in SHIFTS.items()}
        known |= {f"name {name}": "a paper's mix of partition and shifts" for name in NAMED}
    for name, text in sorted(known.items()):
        table.add_row(name, text)
    return table
