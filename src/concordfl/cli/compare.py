"""`concordfl compare`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .. import config as configuration
from ..core import SettingError
from ..engine.files import make_folder, new_folder, write_atomically
from ..engine.observers import OneObserver
from ..engine.plan import Plan
from ..report import curves, export_table, tables
from ..study import compare as comparison
from ..study import kept_results, reports
from ..study.cells import Cells, ConfigHasher, assign, vary
from .options import (
    AlgorithmsOption,
    DeviceOption,
    ExecutorOption,
    FreshOption,
    GridOption,
    KeepOption,
    OutOption,
    RayAddressOption,
    RunFile,
    SeedsOption,
    SetOption,
    TrackOption,
    assignments,
    known_names,
    trackers,
)
from .progress import show_progress
from .results import show_parts, stoppable
from .terminal import console, say
from .tune import tuned_table


def compare(
    file: RunFile,
    algorithms: AlgorithmsOption,
    seeds: SeedsOption = 1,
    variations: Annotated[
        list[str],
        typer.Option(
            "--vary",
            metavar="SECTION.KEY=VALUE,VALUE,...",
            help="Try several values of a setting, a row each; repeated, every combination.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 - typer reads the default and never changes it
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned", help="First choose settings of every method on validation data, as `tune`."
        ),
    ] = False,
    grid: GridOption = [],  # noqa: B006 - typer reads the default and never changes it
    over_clients: Annotated[
        bool,
        typer.Option(
            "--over-clients", help="Show accuracy, AUC and F1 with their spread over clients."
        ),
    ] = False,
    over_last_ten: Annotated[
        bool,
        typer.Option(
            "--last-ten",
            help="Show also the mean and standard deviation over the last ten evaluated rounds.",
        ),
    ] = False,
    curve: Annotated[
        Path | None,
        typer.Option(
            help="Draw accuracy against bytes sent: a .svg, .png or .pdf file.", show_default=False
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(
            help="Write all figures to a .csv file, a row per method and seed.", show_default=False
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option(help="Write a page that shows all of it, in the folder of the runs.")
    ] = True,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: OutOption = None,
    executor: ExecutorOption = None,
    ray_address: RayAddressOption = None,
    device: DeviceOption = None,
    keep: KeepOption = False,
    fresh: FreshOption = False,
    track: TrackOption = None,
) -> None:
    """Run several methods on the same federation and show one table.

    Finished runs are reused, and so are the results kept beside the run file.
    """
    names, tracked = known_names(algorithms), trackers(track)
    given = assignments(set, executor=executor, ray_address=ray_address, device=device)
    table = assign(configuration.read_table(file), given, names)
    # What can be refused is refused before any work is done.
    cells, hasher = _cells(table, names, seeds, variations), ConfigHasher()
    # What is to be added to must be whole, even if nothing is taken from it.
    beside = kept_results.read(file, hasher) if keep or not fresh else None
    kept = None if fresh else beside
    if export is not None:
        export_table.check(export)
    if curve is not None:
        curves.kind_of(curve)
    folder = out or Path("runs") / f"compare-{file.stem}"
    if fresh and out is None:
        folder = new_folder(folder)
    if tuned or grid:
        _check_tuned(tuned, variations)
        table = tuned_table(file.stem, table, names, grid, folder)
        cells = _cells(table, names, seeds, variations)
    if curve is not None:
        comparison.require_history(cells, kept, hasher)

    @contextmanager
    def display(title: str) -> Iterator[Sequence[OneObserver]]:
        with show_progress(console, title) as observe:
            yield [observe, *tracked]

    with stoppable(f"the same command with --out {folder}" if fresh else "the same command"):
        found = comparison.compare(
            cells,
            folder,
            display,
            kept,
            hasher=hasher,
            keep_beside=file if keep else None,
        )
    title = f"{file.stem}{', tuned' * tuned}, {seeds} seed{'s' * (seeds > 1)}"
    show_parts(
        tables.comparison_parts(
            title, found.figures, over_clients=over_clients, over_last_ten=over_last_ten
        )
    )
    if curve is not None:
        picture = curves.accuracy_against_bytes(title, found.figures, curves.kind_of(curve))
        write_atomically(curve, picture)
        say(f"Accuracy against bytes is in {curve}")
    if export is not None:
        write_atomically(export, export_table.to_csv(found.figures, found.seeds))
        say(f"All figures are in {export}")
    notes = [
        beside and beside.describe_ignored(),
        kept_results.describe_kept(found.kept, found.num_cells),
        "Kept results are not tracked: --fresh computes all anew"
        if tracked and found.kept
        else None,
        f"Runs are in {folder}" if len(found.kept) < found.num_cells else None,
        f"The report is {_write_report(title, found, folder)}" if report else None,
    ]
    say(*(note for note in notes if note))


def _write_report(title: str, found: comparison.Comparison, folder: Path) -> Path:
    file = folder / "report.html"
    make_folder(folder)
    reports.write(title, reports.of_comparison(found), file)
    return file


def _check_tuned(tuned: bool, variations: list[str]) -> None:
    if not tuned:
        raise SettingError("--grid is for --tuned, got it without")
    if variations:
        raise SettingError("--tuned must not be given with --vary, got both")


def _cells(table: dict[str, object], names: list[str], seeds: int, variations: list[str]) -> Cells:
    configuration.Config.from_table(table)  # refused as a whole before its sections are used
    first = Plan.from_table(table.get("run", {}), "run").seed  # type: ignore[arg-type]
    return vary(table, variations, names, range(first, first + seeds))
