"""Reports of run folders, and of comparisons."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..config import read_table
from ..core import ConcordError, SettingError
from ..deploy.finished import FinishedRun
from ..diagnosis.run import load_diagnosis
from ..engine.files import write_atomically
from ..engine.records import DIAGNOSIS_FILE, RunFolder
from ..report import make, page
from ..report.document import Document
from ..report.runs import Portrait, Rows, Run, Runs
from ..result import Result
from .cells import HOW_COMPUTED, short_names
from .compare import Comparison
from .kept_results import figures_of
from .portraits import portrait


class Gathered(NamedTuple):
    runs: Runs
    unfinished: tuple[Path, ...]


def of_folders(folders: Sequence[Path], *, trust: bool = False) -> Gathered:
    """The finished runs in some folders, each a run's or one that holds several. Beside them may
    stand the folder of a diagnosis, for runs that have none of their own.
    """
    diagnosed = [folder for folder in folders if _is_diagnosis(folder)]
    if len(diagnosed) > 1:
        raise SettingError(
            f"a report has one diagnosis beside its runs, got {', '.join(map(str, diagnosed))}"
        )
    beside = load_diagnosis(diagnosed[0]).content if diagnosed else None
    found = [run for folder in folders if folder not in diagnosed for run in _run_folders(folder)]
    finished = [path for path in found if (path / "summary.json").is_file()]
    if not finished:
        raise SettingError(
            f"a report needs a finished run, got none in {', '.join(map(str, folders))}"
        )
    tables = {path: read_table(path / "config.toml") for path in dict.fromkeys(finished)}
    rows = _rows(tables)
    _refuse_repeated(tables, rows)
    firsts = {row: path for path, row in reversed(rows.items())}  # whose data are looked at
    runs = [
        _read(path, row, tables[path], looked_at=firsts[row] == path, trust=trust)
        for path, row in rows.items()
    ]
    if beside is not None:
        runs = [run if run.diagnosis else replace(run, diagnosis=beside) for run in runs]
    return Gathered(Runs(runs), tuple(path for path in found if path not in tables))


def of_comparison(comparison: Comparison) -> Runs:
    """Of all cells: those that were run, and kept results, of which only figures are known."""
    runs = []
    for row, figures in comparison.figures.items():
        for number, (seed, found) in enumerate(zip(comparison.seeds, figures, strict=True)):
            result = comparison.results.get((row, seed))
            if result is None:
                runs.append(Run(row, seed, found))
            else:
                runs.append(of_result(result, row, looked_at=number == 0))
    return Runs(runs)


def of_result(result: Result, row: str, *, looked_at: bool = True) -> Run:
    """A finished run, whether or not it has a folder."""
    rows = result.clients()
    run = _run(row, result.summary, result.records, rows)
    settings = result.finished.settings
    facts = (
        result.finished.federation().describe()["clients"]
        if result.folder is None
        else (_clients(RunFolder.open(result.folder)))
    )
    return replace(
        run,
        clients=facts,
        read_rows=result.figures_of,
        task=_task(settings.to_table()),
        config=settings.to_toml(),
        command=_command(result.folder),
        portrait=portrait(result.finished, run.participants) if looked_at else Portrait(),
        diagnosis=_own_diagnosis(result.folder),
    )


def check_file(file: Path) -> None:
    """Refuse a file that no page could be written to, before any work is done."""
    if file.suffix.lower() not in (".html", ".htm"):
        raise SettingError(f"a report must be an .html file, got {file}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise SettingError(f"a report must be a file in a folder that exists, got {file}")


def write(title: str, runs: Runs, file: Path) -> Document:
    """Write the page, and give what it shows."""
    made = make.document(title, runs)
    write_atomically(file, page.render(made))
    return made


# --- run folders ----------------------------------------------------------------------------------


def _run_folders(folder: Path) -> list[Path]:
    if (folder / "config.toml").is_file():
        return [folder]
    below = sorted(path.parent for path in folder.glob("*/config.toml")) if folder.is_dir() else []
    if not below:
        raise SettingError(f"a report is of folders of runs, got {folder}, which holds none")
    return below


def _read(path: Path, row: str, table: Mapping[str, Any], *, looked_at: bool, trust: bool) -> Run:
    folder = RunFolder.open(path)
    summary = folder.read_summary()
    if summary is None:
        raise SettingError(f"a report needs finished runs, got {path}, which is not")
    rows = folder.read_client_rows(summary["final"]["round"])
    run = _run(row, summary, folder.read_records(), rows)
    return replace(
        run,
        clients=_clients(folder),
        read_rows=folder.read_client_rows,
        task=_task(table),
        config=folder.read_config(),
        command=_command(path),
        portrait=_portrait(path, run, trust=trust) if looked_at else Portrait(),
        diagnosis=_own_diagnosis(path),
    )


def _is_diagnosis(folder: Path) -> bool:
    return (folder / DIAGNOSIS_FILE).is_file() and not (folder / "config.toml").is_file()


def _own_diagnosis(folder: Path | None) -> Mapping[str, Any] | None:
    """Of a run whose method was chosen by `auto`."""
    if folder is None or not (folder / DIAGNOSIS_FILE).is_file():
        return None
    return load_diagnosis(folder).content


def _run(row: str, summary: dict[str, Any], records: Sequence[Any], rows: Rows) -> Run:
    """What a run's summary and records tell."""
    classes = summary["preprocessing"].get("classes") or ()
    return Run(
        row,
        summary["seed"],
        figures_of(summary, records, rows),
        records,
        rows=rows,
        classes=tuple(str(name) for name in classes),
    )


def _clients(folder: RunFolder) -> Sequence[Mapping[str, Any]]:
    recorded = folder.read_federation()
    return () if recorded is None else recorded["clients"]


def _task(table: Mapping[str, Any]) -> str:
    sections = {name: table.get(name) for name in ("data", "scenario")}
    return json.dumps(sections, sort_keys=True, default=str)


def _command(folder: Path | None) -> str:
    file = "run.toml" if folder is None else shlex.quote(str(folder / "config.toml"))
    return f"concordfl run {file} --out again"


def _portrait(path: Path, run: Run, *, trust: bool) -> Portrait:
    try:
        return portrait(FinishedRun.open(path, trust=trust), run.participants)
    except ConcordError as error:
        return Portrait(problem=str(error))


def _rows(tables: Mapping[Path, Mapping[str, Any]]) -> dict[Path, str]:
    """What every run is called: its method, and settings in which runs of one method differ."""
    flat = {path: _flat(table) for path, table in tables.items()}
    names = {}
    for path, own in flat.items():
        method = own["algorithm.name"]
        alike = [other for other in flat.values() if other["algorithm.name"] == method]
        differing = _differing(alike)
        shown = zip(short_names(differing), differing, strict=True)
        names[path] = ", ".join([method, *(f"{short} = {own.get(key)}" for short, key in shown)])
    return names


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Settings that are not the same in all of them."""
    keys = sorted({key for table in tables for key in table})
    values = {key: {json.dumps(table.get(key), default=str) for table in tables} for key in keys}
    return [key for key in keys if len(values[key]) > 1]


def _flat(table: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that make a result another one, but for the seed."""
    skipped = {"run.seed", *(f"run.{name}" for name in HOW_COMPUTED)}
    flat = {
        f"{section}.{key}": value
        for section, values in table.items()
        if isinstance(values, Mapping)
        for key, value in values.items()
    }
    return {key: value for key, value in flat.items() if key not in skipped}


def _refuse_repeated(tables: Mapping[Path, Mapping[str, Any]], rows: Mapping[Path, str]) -> None:
    seen: dict[tuple[str, int], Path] = {}
    for path, row in rows.items():
        seed = tables[path].get("run", {}).get("seed", 0)
        other = seen.setdefault((row, seed), path)
        if other != path:
            raise SettingError(
                f"runs of a report must differ, got {other} and {path}, both {row}, seed {seed}"
            )
