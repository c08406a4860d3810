"""`concordfl run`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import config as configuration
from .. import runner
from ..by_name import algorithm_name
from ..core import SettingError
from ..core.settings import received
from ..engine.files import new_folder
from ..study.cells import method_table
from .options import (
    DeviceOption,
    ExecutorOption,
    OutOption,
    RayAddressOption,
    RunFile,
    SeedOption,
    SetOption,
    TrackOption,
    assignments,
    known_name,
    trackers,
)
from .preview import preview
from .results import show_parts, show_run


def run(
    file: RunFile,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="Another method than [algorithm] names, with its settings in [compare.NAME]; "
            "auto takes the one that `diagnose` recommends.",
            show_default=False,
        ),
    ] = None,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: OutOption = None,
    seed: SeedOption = None,
    executor: ExecutorOption = None,
    ray_address: RayAddressOption = None,
    device: DeviceOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be run, and run nothing.")
    ] = False,
    track: TrackOption = None,
) -> None:
    """Run one method as a run file says."""
    tracked = trackers(track)
    _refuse_compared(set)
    given = assignments(set, seed=seed, executor=executor, ray_address=ray_address, device=device)
    settings = _settings(configuration.read_table(file), given, algorithm)
    if dry_run:
        _show_preview(settings)
        return
    name = algorithm_name(settings.algorithm)
    folder = out or new_folder(Path("runs") / f"{file.stem}-{name}-seed{settings.run.seed}")
    show_run(
        folder,
        lambda observe: runner.run(settings, out=folder, on_round=[observe, *tracked]),
        title=name,
        trust=bool(settings.own_code()),
        track=track,
    )


def _settings(
    table: dict[str, Any], given: list[str], algorithm: str | None
) -> configuration.Config:
    """The run, with what options give for it; they go before settings of the method's own."""
    if algorithm is not None:
        table = method_table(table, known_name(algorithm, "--algorithm"))
    paths = [assignment.partition("=")[0] for assignment in given]
    table = configuration.override(configuration.without_own(table, paths), given)
    return configuration.Config.from_table(table)


def _refuse_compared(assignments: list[str]) -> None:
    for assignment in assignments:
        if assignment.partition("=")[0].partition(".")[0].strip() == configuration.COMPARED:
            raise SettingError(
                "--set must be about the method that is run, whose settings are algorithm.KEY, got "
                f"{received(assignment)}"
            )


def _show_preview(settings: configuration.Config) -> None:
    show_parts(preview(settings))
