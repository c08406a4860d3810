"""Tuning: settings chosen on validation data by successive halving, with the same budget for every
method.

Every candidate is a run of the full length that is played up to the first rung; the better half
goes on to the next one, from where it stopped. A rung is a share of the run, not a shorter run:
rates that follow a schedule, and stages whose length depends on the number of rounds, are those of
the full run. Figures of test data are never looked at.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomli_w

from .. import runner
from ..assemble import make_federation, make_model
from ..config import (
    FORMAT,
    RELATIVE_TO,
    Config,
    override,
    read_table,
    with_relative_paths,
)
from ..core import ClientStepError, ConcordError, SettingError
from ..core.settings import received
from ..data import Federation
from ..data.files import kind_of, require_file
from ..engine.experiment import ignore, is_due, schedule
from ..engine.files import write_atomically
from ..engine.records import RunFolder
from ..metrics import METRICS, criterion_in
from .cells import ConfigHasher, apply_settings, cells
from .compare import Display, cell_folder, finish, require_same
from .grid import Candidate, Grid, candidates, check_grid, rate_ladder

HEADER = "# Written by `concordfl tune`"


@dataclass(frozen=True)
class Trial:
    """What a candidate came to at the last rung that it took part in."""

    candidate: Candidate
    rounds: int  # up to which it was played, or was to be where it failed
    figures: Mapping[str, float]  # on validation data, means over seeds; none where it failed
    failure: str | None = None

    @property
    def name(self) -> str:
        return self.candidate.name


@dataclass(frozen=True)
class MethodTuning:
    """How a method was tuned."""

    method: str
    metric: str  # by which it was chosen
    trials: tuple[Trial, ...]
    chosen: Trial
    before: Trial  # with the run file's own settings
    differ: bool  # whether the settings made any difference to the figures

    @property
    def rounds(self) -> int:
        """Played in all, with one seed."""
        return sum(trial.rounds for trial in self.trials)

    def validation(self, trial: Trial) -> float | None:
        return trial.figures.get(self.metric)


@dataclass(frozen=True)
class Tuning:
    """The settings that were chosen, and the run file that has them."""

    methods: Mapping[str, MethodTuning]
    rungs: tuple[int, ...]  # in rounds
    table: Mapping[str, Any]

    def __str__(self) -> str:
        return "\n".join(describe(one) for one in self.methods.values())

    def notes(self) -> list[str]:
        """What a reader of the chosen settings must know."""
        return [note for one in self.methods.values() for note in _notes_on(one)]

    def to_toml(self, command: str = "", folder: Path | None = None) -> str:
        """The run file with the chosen settings, which says how it was made; for a `folder`, at
        which its relative paths begin.
        """
        day = datetime.now(UTC).date().isoformat()
        lines = [f"{HEADER} on {day}: settings chosen on validation data.", f"# {command}"]
        lines += [f"# {describe(one)}" for one in self.methods.values()]
        head = "\n".join(_on_one_line(line) for line in lines if line != "# ")
        moved = folder is None or str(folder.absolute()) != self.table.get(RELATIVE_TO)
        table = with_relative_paths(self.table) if moved else self.table
        kept = {key: value for key, value in table.items() if key != RELATIVE_TO}
        return f"{head}\n\n{tomli_w.dumps({'format': FORMAT, **kept})}"

    def write(self, file: Path, command: str = "") -> None:
        require_writable(file)
        write_atomically(file, self.to_toml(command, file.parent))


def tune(
    source: str | Path | Mapping[str, Any],
    algorithms: Sequence[str],
    grid: Grid | None = None,
    *,
    out: str | Path,
    rounds: int | None = None,
    seeds: int = 1,
    rungs: int | None = None,
    assignments: Sequence[str] = (),
    objects: Mapping[str, Any] | None = None,
    display: Display = lambda _: nullcontext(ignore),
) -> Tuning:
    """The best settings of each method on validation data, among those of `grid` and its own.

    `source` is a run file or its sections. Without a grid, learning rates around that of the run
    file are tried. `rounds` are those of the longest runs, by default the run file's. Half of the
    settings are dropped at each of the `rungs`, by default until one or two are left. The runs are
    in folders below `out`, where the same call finds them again. `assignments` say how runs are
    computed, and are no part of the result. `objects` stand for their sections, as
    `Config.from_table` takes them.
    """
    table = read_table(Path(source)) if isinstance(source, (str, Path)) else dict(source)
    Config.from_table(table)
    _check_count("seeds", seeds)
    _check_count("rungs", 1 if rungs is None else rungs)
    if grid is not None:
        check_grid(grid)
    tried = {method: _candidates(table, method, grid) for method in _distinct(algorithms)}
    longest = [f"run.rounds={rounds}"] if rounds is not None else []
    changed = override(table, [*assignments, *longest])
    race = Race(changed, Path(out), seeds, display, objects or {})
    levels = race.levels(max(map(_grid_size, tried.values())), rungs)
    found = {method: race.run(method, each, levels) for method, each in tried.items()}
    for tuned in found.values():
        table = apply_settings(table, tuned.chosen.candidate.changes)
    return Tuning(found, levels, table)


def _candidates(table: Mapping[str, Any], method: str, grid: Grid | None) -> list[Candidate]:
    if grid is None:
        grid = rate_ladder(cells(table, [method], [0])[method, 0])
    return candidates(table, method, grid)


def _check_count(name: str, value: int) -> None:
    if type(value) is not int or value < 1:
        raise SettingError(f"{name} must be a whole number >= 1, got {received(value)}")


def _distinct(algorithms: Sequence[str]) -> list[str]:
    names = list(algorithms)
    if not names or len(set(names)) < len(names):
        raise SettingError(f"methods must be named once each, got {', '.join(names) or 'none'}")
    return names


def _grid_size(tried: Sequence[Candidate]) -> int:
    return sum(candidate.in_grid for candidate in tried)


def require_writable(file: Path) -> None:
    """Refuse to replace a file that is not a tuned run file, and a folder that is not there."""
    if not file.absolute().parent.is_dir():
        raise SettingError(f"the tuned run file must lie in a folder that exists, got {file}")
    if kind_of(file) is None:
        return
    require_file(file)
    if not file.read_bytes().startswith(HEADER.encode()):
        raise SettingError(f"the tuned run file must be new, or an earlier one, got {file}")


def _on_one_line(text: str) -> str:
    """With characters that are no comment's written out."""
    letters = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    return "".join(letters)


# --- the race -------------------------------------------------------------------------------------


class Race:
    """Runs of candidates, which stop at a rung and go on from there."""

    def __init__(
        self,
        table: Mapping[str, Any],
        out: Path,
        seeds: int,
        display: Display,
        objects: Mapping[str, Any],
    ) -> None:
        self.table, self.out, self.display, self.objects = table, out, display, objects
        self.begun: set[Path] = set()  # folders of runs that go on with what this process has
        settings = Config.from_table(table, **objects)
        self.plan = settings.run
        self.seeds = range(self.plan.seed, self.plan.seed + seeds)
        self.hasher = ConfigHasher()
        self.federation: Federation = make_federation(settings)
        if not self.federation.has_validation():
            raise SettingError(
                "tuning needs validation examples at one client or more, got none: give some in "
                "scenario.split"
            )

    def levels(self, size: int, wanted: int | None) -> tuple[int, ...]:
        """The rounds of each rung: half as many as those of the next, and evaluated."""
        rounds, every = self.plan.rounds, self.plan.evaluate_every
        number = size.bit_length() if wanted is None else wanted
        found = {math.ceil(rounds / 2**level / every) * every for level in range(number)}
        return tuple(sorted({min(level, rounds) for level in found}))

    def run(self, method: str, tried: Sequence[Candidate], levels: Sequence[int]) -> MethodTuning:
        """The best of the candidates: the better half goes on from each level to the next, and the
        run file's own settings always do.
        """
        running, quota = list(tried), _grid_size(tried)
        trials: dict[str, Trial] = {}
        differ = False
        for level in levels:
            results = [self._play(method, candidate, level) for candidate in running]
            trials |= {trial.name: trial for trial in results}
            differ = differ or any(one.figures != results[0].figures for one in results)
            ranked, quota = _ranked(results), math.ceil(quota / 2)
            better = [candidate for candidate in ranked if candidate.in_grid][:quota]
            running = [one for one in tried if one in better or (one.is_own and one in ranked)]
        if not ranked:
            first = next(iter(trials.values()))
            raise ClientStepError(
                f"at least one setting of {method} must succeed, got failures with all of them, "
                f"the first with {first.name}: {first.failure}"
            )
        chosen = trials[ranked[0].name]
        own = next(trial for trial in trials.values() if trial.candidate.is_own)
        metric = criterion_in(chosen.figures) or ""
        return MethodTuning(method, metric, tuple(trials.values()), chosen, own, differ)

    def _play(self, method: str, candidate: Candidate, level: int) -> Trial:
        """A candidate, played up to a level with every seed."""
        table = apply_settings(self.table, candidate.changes)
        settings = cells(table, [method], self.seeds, **self.objects)
        end = self._round_of(settings[method, self.seeds[0]], level)
        records = []
        for (_, seed), one in settings.items():
            title = f"{method}, {candidate.name}, seed {seed}"
            try:
                records.append(self._record_at(one, end, title))
            except ClientStepError as error:
                return Trial(candidate, end, {}, str(error))
        found = [record.get("validation", {}) for record in records]
        names = [name for name in METRICS if all(one.get(name) is not None for one in found)]
        means = {name: statistics.fmean(one[name] for one in found) for name in names}
        return Trial(candidate, max(record["round"] for record in records), means)

    def _record_at(self, settings: Config, end: int, title: str) -> Mapping[str, Any]:
        """Of the last evaluated round up to `end`."""
        folder = cell_folder(self.out, settings, self.hasher(settings))
        go_on = runner.go_on if folder in self.begun else finish
        records = [] if folder in self.begun else _recorded(settings, folder, end)
        if not records:
            with self.display(title) as observe:
                records = go_on(settings, folder, on_round=observe, until=end).records
            self.begun.add(folder)
        return ([record for record in records if record["round"] <= end] or records)[-1]

    def _round_of(self, settings: Config, level: int) -> int:
        """The round of a run at which as large a share of its last stage is played as `level` is
        of all rounds, and which is evaluated. Stages before the last one are always whole.
        """
        model = make_model(settings, self.federation)
        population = len(self.federation.participants)
        turns = list(schedule(settings.algorithm, settings.run, model, population))
        stage = [turn for turn in turns if turn.stage.name == turns[-1].stage.name]
        return next(
            turn.round
            for played, turn in enumerate(stage, start=1)
            if played * self.plan.rounds >= level * len(stage)
            and (is_due(turn, settings.run) or turn is stage[-1])
        )


def _recorded(settings: Config, folder: Path, end: int) -> list[dict[str, Any]]:
    """The records of a run that an earlier command has played up to `end`; else none."""
    if not (folder / "config.toml").exists():
        return []
    require_same(settings, folder)
    with suppress(ConcordError):  # half a line of a killed run, which going on puts right
        records = RunFolder.open(folder).read_records()
        if records and records[-1]["round"] >= end:
            return records
    return []


def _ranked(trials: Sequence[Trial]) -> list[Candidate]:
    """Those that did not fail, the best first; among equal ones that with the least loss, then the
    run file's own settings, then the order of the grid.
    """
    whole = [trial for trial in trials if criterion_in(trial.figures) is not None]

    def rank(trial: Trial) -> tuple[float, float, bool]:
        name = criterion_in(trial.figures) or ""
        value = trial.figures[name]
        best_first = -value if METRICS[name].higher_is_better else value
        loss = trial.figures.get("loss", math.inf)
        return _or_last(best_first), _or_last(loss), not trial.candidate.is_own

    return [trial.candidate for trial in sorted(whole, key=rank)]


def _or_last(value: float) -> float:
    """What is no number ranks behind all numbers, and cannot be compared with them."""
    return math.inf if math.isnan(value) else value


# --- what is said of it ---------------------------------------------------------------------------


def describe(tuned: MethodTuning) -> str:
    """`fedavg: lr = 0.1, validation accuracy 0.812 before, 0.934 after`."""
    before, after = (_figure(tuned, trial) for trial in (tuned.before, tuned.chosen))
    title = METRICS[tuned.metric].title
    return f"{tuned.method}: {tuned.chosen.name}; validation {title} {before} before, {after} after"


def _figure(tuned: MethodTuning, trial: Trial) -> str:
    value = tuned.validation(trial)
    return "none" if value is None else f"{value:.4g}"


def _notes_on(tuned: MethodTuning) -> list[str]:
    failed = [trial for trial in tuned.trials if trial.failure is not None]
    notes = [f"{tuned.method}, {trial.name}, failed: {trial.failure}" for trial in failed]
    if not tuned.differ:
        return [*notes, f"{tuned.method}: no setting of the grid made any difference"]
    for path, value in tuned.chosen.candidate.values.items():
        tried = [trial.candidate.values[path] for trial in tuned.trials if trial.candidate.in_grid]
        numbers = [one for one in tried if isinstance(one, (int, float))]
        if len(numbers) == len(tried) and value in (min(numbers), max(numbers)):
            end = "smallest" if value == min(numbers) else "largest"
            notes.append(
                f"{tuned.method}: {path} = {value} is the {end} of the grid, further out it may be "
                "better"
            )
    return notes
