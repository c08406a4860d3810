"""What a script measures in finished runs, computed once and kept beside the run file."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter

from ..by_name import algorithm_name
from ..config import read_table
from ..core import DataError
from ..deploy.finished import FinishedRun
from ..engine.files import new_folder, to_json
from ..revision import code_revision
from . import kept_results
from .cells import Cells, ConfigHasher, differing_settings
from .compare import can_be_kept, finish
from .kept_results import Line

Found = TypeVar("Found")


@dataclass(frozen=True)
class Measurements(Generic[Found]):
    figures: dict[tuple[str, int], Found]  # by row and seed, as the cells are
    notes: tuple[str, ...]  # sentences about what was kept and what was ignored


def measure(
    cells: Cells,
    run_file: Path,
    name: str,
    kind: type[Found],
    look: Callable[[FinishedRun], Any],
    *,
    keep: bool = False,
    fresh: bool = False,
) -> Measurements[Found]:
    """What `look` finds in the finished run of every cell, as JSON has it: a value of type `kind`.

    It is taken from the results beside `run_file` if it is there under `name` (unless `fresh`),
    and added to them if asked to `keep` it, unless the cell names code that is not ours.
    The runs themselves are in runs/.
    """
    hasher, table = ConfigHasher(), read_table(run_file)
    results = kept_results.read(run_file, hasher)
    figures: dict[tuple[str, int], Found] = {}
    kept = []
    for (row, seed), settings in cells.items():
        config_hash, method = hasher(settings), algorithm_name(settings.algorithm)
        line = None if fresh else results.measures.get((name, config_hash))
        if line is not None:
            kept.append(line)
        else:
            kept_too = keep and can_be_kept(settings)
            differing = differing_settings(table, settings, method, hasher) if kept_too else {}
            folder = Path("runs") / f"{run_file.stem}-{method}-{config_hash}"
            folder = new_folder(folder) if fresh else folder
            finish(settings, folder)
            line = {
                "format": kept_results.FORMAT,
                "method": method,
                "settings": differing,
                "seed": seed,
                "measure": name,
                "config_hash": config_hash,
                "revision": code_revision(),
                "date": datetime.now(UTC).date().isoformat(),
                "figures": json.loads(to_json(look(FinishedRun.open(folder, trust=True)))),
            }
            if kept_too:
                kept_results.keep(run_file, line)
        figures[row, seed] = _checked(line, kind, results.file)
    notes = (results.describe_ignored(), kept_results.describe_kept(kept, len(cells)))
    return Measurements(figures, tuple(note for note in notes if note is not None))


def _checked(line: Line, kind: type[Found], file: Path) -> Found:
    try:
        found: Found = kept_results.validate(TypeAdapter(kind), line["figures"], ("figures",))
    except ValueError as error:
        which = f"the {line.get('measure')} of {line['method']}, seed {line['seed']}"
        raise DataError(f"{file}: {which}: {error}") from None
    return found
