"""A run that was made without a folder, written to one."""

import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..assemble import identity_of, with_files
from ..config import with_fixed_paths
from ..core import Algorithm, ClientId, SettingError, tree
from ..engine import checkpoint
from ..engine.checkpoint import Progress
from ..engine.experiment import schedule
from ..engine.files import one_line
from ..engine.records import NO_RECORDS, SUMMARY_FILE, RunFolder
from ..engine.running import RUNNING_FILE
from .finished import FinishedRun
from .kept import InFolder

Rows = Mapping[ClientId, dict[str, Any]]


def save(
    run: FinishedRun,
    records: Iterable[Mapping[str, Any]],
    rows_of: Callable[[int], Rows],
    path: Path,
) -> None:
    """All of a run into a new folder, the summary last: without it a folder is of no finished
    run.
    """
    _require_over(run)
    settings, files = with_files(with_fixed_paths(run.settings))
    with RunFolder.create(path, settings.to_toml(), files) as folder:
        federation = run.federation()
        identity = {
            "config": folder.config_digest(),
            **identity_of(settings, federation, run.model),
        }
        source = settings.to_table()["data"]
        folder.write_federation({"identity": identity, "source": source, **federation.describe()})
        seal = NO_RECORDS
        for record in records:
            folder.write_clients(record["round"], rows_of(record["round"]))
            seal = folder.append_record(record)
        progress = replace(run.progress, records=seal)
        checkpoint.save(folder.checkpoints, progress, keep=1, identity=identity)
        ids = (id for id in run.kept.participants if run.kept.state(id) is not None)
        states = ((id, tree.pack(run.kept.state(id))) for id in ids)
        write_models(folder, run.algorithm, progress, states)
        kept = InFolder(folder.path, settings, identity, tree.digest(progress.server), ())
        for id in run.kept.newcomers():
            newcomer = run.kept.newcomer(id)
            if newcomer is not None:
                kept.write(newcomer)
        folder.write_summary(run.summary)


def _require_over(run: FinishedRun) -> None:
    """In a folder with a summary, a run counts as finished for good."""
    plan, population = run.settings.run, len(run.kept.participants)
    rounds = len(list(schedule(run.algorithm, plan, run.model, population)))
    if run.progress.round < rounds and not run.summary["stopped_early"]:
        raise SettingError(
            f"a run must be over to be saved, got one after {run.progress.round} of {rounds} "
            "rounds: give run a folder, `out`, where resume goes on with it"
        )


def copy(folder: Path, path: Path) -> None:
    """A run's folder as another, new one, the summary last as `save` has it."""
    source = RunFolder.open(folder).path

    def left_out(inside: str, names: list[str]) -> set[str]:
        left = {".lock", RUNNING_FILE} | ({SUMMARY_FILE} if Path(inside) == source else set())
        return left.intersection(names)

    with RunFolder.create(path, "") as made, one_line(path, "written"):
        shutil.copytree(source, made.path, ignore=left_out, dirs_exist_ok=True)
        if (source / SUMMARY_FILE).is_file():
            shutil.copy2(source / SUMMARY_FILE, made.path / SUMMARY_FILE)


def write_models(
    folder: RunFolder,
    algorithm: Algorithm,
    progress: Progress,
    states: Iterable[tuple[ClientId, bytes]],
) -> None:
    """What is deployed: the run's model, and of personal methods every client's part."""
    folder.write_model("final", algorithm.deployed(progress.server))
    if not algorithm.personal:
        if progress.selected is not None:
            folder.write_model("selected", algorithm.deployed(progress.selected.server))
        return
    for id, state in states:  # of the last round: others are not kept
        folder.write_client_state(id, state)
