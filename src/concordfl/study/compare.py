"""Comparisons: the same run with several methods and seeds. Finished cells are reused, an
interrupted one is taken up again.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from .. import assemble, runner
from ..by_name import algorithm_name, require_method
from ..config import Config, own_code, read_table
from ..core import ANY_KIND, SettingError
from ..core.settings import nearest, received
from ..data.memory import Memory
from ..data.own import OwnData
from ..engine.observers import OnRound
from ..engine.records import RunFolder
from ..report import curves, export_table, html, tables, text, verdict
from ..result import Result
from . import kept_results
from .cells import Cells, ConfigHasher, differing_settings, hashed_settings
from .kept_results import Figures, KeptResults, Line, figures_of

# A table of sixty cells that take longer than this is longer than anybody wants to wait for.
WORTH_KEEPING_SECONDS = 10.0

Display = Callable[[str], AbstractContextManager[OnRound]]  # by the title of a cell


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several methods on the same federation, each with one or more seeds.

    `comparison["fedavg", 0]` is the result of a method with a seed, `comparison["fedavg"]` those of
    all seeds.
    """

    figures: dict[str, list[Figures]]  # by row, in the order of seeds
    kept: tuple[Line, ...]  # the kept results among them
    seeds: tuple[int, ...]
    # by row and seed: of all cells that are not kept results
    results: Mapping[tuple[str, int], Result] = field(default_factory=dict, repr=False)

    def __getitem__(self, key: str | tuple[str, int]) -> Any:
        row, seed = key if isinstance(key, tuple) else (key, None)
        if row not in self.figures:
            known = nearest(str(row), self.figures)
            raise SettingError(f"a method must be one that was compared, got {row!r}{known}")
        found = {one: result for (name, one), result in self.results.items() if name == row}
        if seed is None:
            return found
        if seed not in found:
            raise SettingError(
                f"a seed must be one of {', '.join(map(str, found))}, got {received(seed)}"
            )
        return found[seed]

    def best(self) -> str:
        """The method that is best for participants, in the mean over seeds; see `verdict` for
        whether that is more than chance.
        """
        criterion = verdict.criterion_of(self.figures)
        rows = [] if criterion is None else verdict.ranking(self.figures, criterion)
        if not rows:
            raise SettingError("the best must be of methods that predict, got none that does")
        return rows[0]

    def to_frame(self) -> Any:
        """All figures as a pandas DataFrame: a row per method and seed."""
        try:
            import pandas
        except ImportError:
            raise SettingError("to_frame needs pandas, got none: pip install pandas") from None
        return pandas.DataFrame(list(export_table.tidy(self.figures, self.seeds)))

    def plot(self) -> Any:
        """A matplotlib Figure: how good the methods are against bytes sent."""
        return curves.draw(self._title, self.figures)

    def report(self, file: str | Path) -> Path:
        """Write an .html file that shows all of it: who is like whom, who gains and who loses."""
        from . import reports  # which is about comparisons

        reports.check_file(Path(file))
        reports.write(self._title, reports.of_comparison(self), Path(file))
        return Path(file)

    @property
    def _title(self) -> str:
        return f"{len(self.seeds)} seed{'s' * (len(self.seeds) > 1)}"

    def _parts(self) -> tuple[list[Table], list[str]]:
        parts = list(tables.comparison_parts(self._title, self.figures))
        return [part for part in parts if isinstance(part, Table)], [
            part for part in parts if isinstance(part, str)
        ]

    def __str__(self) -> str:
        """The tables and sentences that `concordfl compare` prints."""
        return text.render(*self._parts())

    def _repr_html_(self) -> str:
        return html.render(*self._parts())

    @property
    def num_cells(self) -> int:
        return sum(len(row) for row in self.figures.values())

    @property
    def warnings(self) -> list[dict[str, str]]:
        """What would mislead a reader of the figures."""
        return verdict.warnings(self.figures)

    @property
    def verdict(self) -> str | None:
        """Which method is best for participants, and who loses by it."""
        return verdict.verdict(self.figures)


def compare(
    cells: Cells,
    out: Path | None,
    display: Display,
    kept: KeptResults | None = None,
    *,
    hasher: ConfigHasher | None = None,
    keep_beside: Path | None = None,
    keep_from: float | None = None,
) -> Comparison:
    """The figures of every cell: from `kept`, or from a run of its own in a folder below `out`;
    without one, in memory.

    Results that took long, or longer than `keep_from` seconds, are added to those beside the run
    file `keep_beside`.
    """
    for settings in cells.values():
        require_method(settings.algorithm)
    worth_keeping = WORTH_KEEPING_SECONDS if keep_from is None else keep_from
    hasher = hasher or ConfigHasher()
    known = {} if kept is None else kept.results
    table = None if keep_beside is None else read_table(keep_beside)
    differing = {  # before any work: a result that cannot be kept is refused
        key: differing_settings(table, settings, _method(settings), hasher)
        for key, settings in cells.items()
        if table is not None and can_be_kept(settings)
    }
    _require_support(cells)
    figures: dict[str, list[Figures]] = {}
    lines: list[Line] = []
    results: dict[tuple[str, int], Result] = {}
    for (row, seed), settings in cells.items():
        name = hasher(settings)
        if name in known:
            lines.append(known[name])
            figures.setdefault(row, []).append(known[name]["figures"])
            continue
        folder = None if out is None else cell_folder(out, settings, name)
        with display(f"{row}, seed {seed}") as observe:
            result = finish(settings, folder, observe)
        results[row, seed] = result
        found = figures_of(result.summary, result.records, result.clients())
        figures.setdefault(row, []).append(found)
        slow = found["seconds"]["total"] > worth_keeping
        if keep_beside is not None and folder is not None and slow and can_be_kept(settings):
            line: Line = {
                "format": kept_results.FORMAT,
                "method": _method(settings),
                "settings": differing[row, seed],
                "seed": seed,
                "config_hash": name,
                "revision": result.summary["versions"].get("revision"),
                "date": _day_of(folder / "summary.json"),
                "figures": found,
            }
            kept_results.keep(keep_beside, line)
    seeds = dict.fromkeys(seed for _, seed in cells)
    return Comparison(figures, tuple(lines), tuple(seeds), results)


def cell_folder(out: Path, settings: Config, config_hash: str) -> Path:
    """Where below `out` the run of a cell lies."""
    return out / f"{_method(settings)}-seed{settings.run.seed}-{config_hash}"


def finish(
    settings: Config,
    folder: Path | None,
    on_round: OnRound = (),
    *,
    until: int | None = None,
) -> Result:
    """The run in `folder`, begun or taken up again, and played to its end or `until` a round."""
    if folder is not None and (folder / "config.toml").exists():
        require_same(settings, folder)
        return runner.resume(folder, until=until, on_round=on_round, trust=True)
    return runner.run(settings, out=folder, until=until, on_round=on_round)


def require_same(settings: Config, folder: Path) -> None:
    """Refuse a cell whose configuration is not the one asked for.

    It would give another result, and might name somebody else's code.
    """
    table = read_table(RunFolder.open(folder).path / "config.toml")
    # Code is looked at before any of it is imported.
    known_code = own_code(table).items() <= settings.own_code().items()
    if not known_code or hashed_settings(Config.from_table(table)) != hashed_settings(settings):
        raise SettingError(
            f"{folder} must hold the run that is compared, got one with other settings: remove it "
            "or give another --out"
        )


def require_history(cells: Cells, kept: KeptResults | None, hasher: ConfigHasher) -> None:
    """Refuse before any work if a kept result does not tell how it came about."""
    if kept is None:
        return
    for (row, seed), settings in cells.items():
        line = kept.results.get(hasher(settings))
        if line is not None and line["figures"]["history"] is None:
            raise SettingError(
                f"a curve needs results with a history, got {row}, seed {seed}, in {kept.file} "
                "without: --fresh computes all anew"
            )


def can_be_kept(settings: Config) -> bool:
    """Not with code that is not ours: whoever reads the result later may not have it, and nothing
    is imported to read results.
    """
    return not settings.own_code()


def _require_support(cells: Cells) -> None:
    """Refuse a method for what it cannot learn before others have been run. Only a user's own data
    must be read for it: known data sets are of classes.
    """
    seen = set()
    for settings in cells.values():
        task = (settings.data, settings.objective, type(settings.algorithm))
        own = isinstance(settings.data, (OwnData, Memory))
        if own and settings.algorithm.supports != ANY_KIND and task not in seen:
            assemble.load_data(settings)
            seen.add(task)


def _method(settings: Config) -> str:
    return algorithm_name(settings.algorithm)


def _day_of(file: Path) -> str:
    return datetime.fromtimestamp(file.stat().st_mtime, UTC).date().isoformat()
