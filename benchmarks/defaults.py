"""Do the defaults give the right answer? Every method on every setting of experiments/defaults:
with the defaults as they were (`before`), as they are (`default`), and with the learning rate that
is best on validation (`tuned`). Beside these, rates that fall during a run.

    python benchmarks/defaults.py              # computes what is missing, then prints the tables
    python benchmarks/defaults.py --show       # prints the tables from the kept figures alone

Figures are kept in experiments/defaults/results.csv, a line per run; one whose configuration has
changed since does not count and is computed again.
"""

import csv
import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from scipy.stats import spearmanr

from concordfl import cli, runner
from concordfl.algorithms import ALGORITHMS
from concordfl.config import Config, override, read_table
from concordfl.engine.files import write_atomically
from concordfl.study.cells import ConfigHasher, cells

FOLDER = Path(__file__).parents[1] / "experiments/defaults"
RESULTS = FOLDER / "results.csv"
# methods without labels have no accuracy
METHODS = tuple(name for name, kind in ALGORITHMS.items() if kind.classifies)
RATE_FACTORS = {"default": 1.0, "third": 1 / 3, "triple": 3.0}
SCHEDULES = {
    "cosine": "training.schedule={kind='cosine', rounds=20}",
    "step": "training.schedule={kind='step', every=5, gamma=0.5}",
}
# Falling rates are compared where a run takes seconds, with methods of every kind.
SCHEDULE_SETTINGS = (
    *("digits-concepts", "digits-iid", "digits-labels", "fashion-labels", "heart-disease"),
)
SCHEDULE_METHODS = (
    *("local", "fedavg", "fedavg-ft", "fedprox", "ditto", "apfl", "fedem", "fedconceptem"),
    *("fedgmm", "fedconcat"),
)
BEFORE = "before"
SEEDS = (0, 1, 2)
# Where methods lie within a point or two and runs take seconds, defaults and rates have all seeds;
# elsewhere, and in the other variants, the first alone.
SEVERAL_SEEDS = ("heart-disease", "synthetic-mixture")
# The defaults as they were, for all methods and for single ones.
OLD_DEFAULTS = (
    "run.rounds=20",
    "data.standardise=false",
    "training.lr=0.03",
    "training.momentum=0.0",
    "training.batch_size=32",
    "training.epochs=1",
)
ALWAYS_STANDARDISED = ("heart-disease",)  # its features were before
OLD_DATA = {"synthetic-mixture": "data.directions='uniform'"}
OLD_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "apfl": {"own_steps": "plain"},
    "fedconcat": {"encoder_rounds": 31, "head_rounds": 173},
    "fedconcat-id": {"encoder_rounds": 31, "head_rounds": 173},
    "fedconceptem": {"aggregate": "size"},
    "fedbn": {"statistics": "trained"},
    "feddual": {"new_epochs": 1},
    "fedem": {"aggregate": "size"},
    "fedrep": {"head_epochs": 1, "average": "size"},
    "fesem": {"average": "size"},
    "ifca": {"average": "size"},
    "pfedme": {"inner_lr": 0.01, "outer_lr": 0.005, "average": "size"},
}
# Methods that came with defaults chosen as these are.
LATER_METHODS = ("concord", "fedadagrad", "fedadam", "fednova", "fedyogi", "scaffold")


class Cell(NamedTuple):
    setting: str
    method: str
    variant: str
    seed: int = SEEDS[0]

    def config(self) -> Config:
        table = read_table(FOLDER / f"{self.setting}.toml")
        # only the last round counts
        table["run"] = {**table.get("run", {}), "executor": "serial", "evaluate_every": 1000}
        if self.variant == BEFORE:
            # what the run file itself asks for stays
            changed = [each for each in OLD_DEFAULTS if not _names(table, each)]
            if self.setting in ALWAYS_STANDARDISED:
                changed.remove("data.standardise=false")
            changed += [OLD_DATA[self.setting]] if self.setting in OLD_DATA else []
            table = override(table, changed)
            table["algorithm"] = {"name": self.method, **OLD_SETTINGS.get(self.method, {})}
        elif self.variant in SCHEDULES:
            table = override(table, [SCHEDULES[self.variant]])
        else:
            rate = Config.from_table(table).training.lr * RATE_FACTORS[self.variant]
            table = override(table, [f"training.lr={rate:.4g}"])
        return cells(table, [self.method], [self.seed])[self.method, self.seed]


class Row(NamedTuple):
    """A line of the results: figures in percent, empty where there are none."""

    setting: str
    method: str
    variant: str
    seed: str
    rate: str
    validation: str
    test: str
    newcomers: str
    seconds: str
    config_hash: str


def _names(table: Mapping[str, Any], assignment: str) -> bool:
    section, _, key = assignment.partition("=")[0].partition(".")
    return key in table.get(section, {})


def compute(cell: Cell, config_hash: str) -> Row:
    settings = cell.config()
    result = runner.run(settings)
    final, validation = result.summary["final"], result.records[-1].get("validation", {})
    return Row(
        cell.setting,
        cell.method,
        cell.variant,
        str(cell.seed),
        f"{settings.training.lr:.4g}",
        _percent(validation.get("accuracy")),
        _percent(final.get("local_accuracy")),
        _percent(final.get("global_accuracy")),
        f"{result.summary['seconds']['total']:.1f}",
        config_hash,
    )


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.1f}"


def settings() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read_rows() -> dict[Cell, Row]:
    if not RESULTS.exists():
        return {}
    with open(RESULTS, newline="") as file:
        rows = [Row(**line) for line in csv.DictReader(file)]
    return {Cell(row.setting, row.method, row.variant, int(row.seed)): row for row in rows}


def all_cells(names: Sequence[str], methods: Sequence[str]) -> list[Cell]:
    """What is to be computed, the first seed of all first."""
    first = [
        Cell(name, method, variant)
        for variant in (*RATE_FACTORS, BEFORE, *SCHEDULES)
        for name in names
        for method in methods
        if is_wanted(Cell(name, method, variant))
    ]
    further = [
        cell._replace(seed=seed)
        for cell in first
        if cell.variant in RATE_FACTORS
        for seed in seeds_of(cell)[1:]
    ]
    return first + further


def is_wanted(cell: Cell) -> bool:
    if cell.variant == BEFORE:
        return cell.method not in LATER_METHODS
    if cell.variant in SCHEDULES:
        return cell.setting in SCHEDULE_SETTINGS and cell.method in SCHEDULE_METHODS
    return True


def seeds_of(cell: Cell) -> Sequence[int]:
    several = cell.variant in RATE_FACTORS and cell.setting in SEVERAL_SEEDS
    return SEEDS if several else SEEDS[:1]


def write_rows(rows: Mapping[Cell, Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(rows[cell] for cell in sorted(rows))
    write_atomically(RESULTS, text.getvalue())


def complete(rows: dict[Cell, Row], wanted: Sequence[Cell], workers: int) -> None:
    """Compute the cells that are missing, or whose configuration is another one now."""
    hasher = ConfigHasher()
    hashes = {cell: hasher(cell.config()) for cell in wanted}
    missing = [
        cell for cell in wanted if cell not in rows or rows[cell].config_hash != hashes[cell]
    ]
    with ProcessPoolExecutor(workers) as pool:
        futures = {pool.submit(compute, cell, hashes[cell]): cell for cell in missing}
        for number, future in enumerate(as_completed(futures), start=1):
            row = future.result()
            rows[futures[future]] = row
            write_rows(rows)
            print(f"{number}/{len(missing)}", *row[:7], f"{row.seconds} s", flush=True)


# --- tables ---------------------------------------------------------------------------------------


def tuned(rows: Mapping[Cell, Row], setting: str, method: str) -> str:
    """The rate that is best on validation, in the mean over seeds; of equal ones the default."""
    return max(
        RATE_FACTORS,
        key=lambda variant: mean_of("validation", rows, Cell(setting, method, variant)),
    )


def mean_of(figure: str, rows: Mapping[Cell, Row], cell: Cell) -> float:
    """The mean over seeds of a figure in percent; none counts as 0."""
    return statistics.mean(
        float(getattr(rows[cell._replace(seed=seed)], figure) or 0) for seed in seeds_of(cell)
    )


def accuracies(
    rows: Mapping[Cell, Row], name: str, method: str, variants: Sequence[str]
) -> tuple[float, ...]:
    """Test accuracy in percent with each of the variants, no number where there is none; `tuned`
    stands for the best rate.
    """
    chosen = (tuned(rows, name, method) if each == "tuned" else each for each in variants)
    wanted = (Cell(name, method, each) for each in chosen)
    return tuple(mean_of("test", rows, cell) if is_wanted(cell) else math.nan for cell in wanted)


def mean_accuracies(
    rows: Mapping[Cell, Row], names: Sequence[str], methods: Sequence[str], variants: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """The same in the mean over settings, by method."""
    return {
        method: tuple(
            statistics.mean(column)
            for column in zip(
                *(accuracies(rows, name, method, variants) for name in names), strict=True
            )
        )
        for method in methods
    }


def tables(rows: Mapping[Cell, Row], names: Sequence[str], methods: Sequence[str]) -> Iterator[str]:
    columns = (BEFORE, "default", "tuned")
    means = mean_accuracies(rows, names, methods, columns)
    yield f"| method | {' | '.join(names)} | mean |"
    yield "|---" * (len(names) + 2) + "|"
    for method in methods:
        each = (*(accuracies(rows, name, method, columns) for name in names), means[method])
        yield f"| `{method}` | {' | '.join(map(_joined, each))} |"
    for column in columns[:2]:
        listed = ", ".join(
            f"{name} {correlation(rows, [name], methods, column):.2f}" for name in names
        )
        overall = correlation(rows, names, methods, column)
        yield f"- {column} and tuned: {overall:.2f} of the means; by setting {listed}"


def schedule_table(rows: Mapping[Cell, Row]) -> Iterator[str]:
    """Falling rates beside the constant one: validation accuracy, the mean over methods."""
    columns = ("default", *SCHEDULES)
    yield f"| setting | {' | '.join(['constant', *SCHEDULES])} |"
    yield "|---" * (len(columns) + 1) + "|"
    for name in SCHEDULE_SETTINGS:
        found = [
            statistics.mean(
                float(rows[Cell(name, method, variant)].validation) for method in SCHEDULE_METHODS
            )
            for variant in columns
        ]
        yield f"| {name} | {' | '.join(f'{value:.1f}' for value in found)} |"


def _joined(values: Sequence[float]) -> str:
    return " / ".join("-" if math.isnan(value) else f"{value:.1f}" for value in values)


def correlation(
    rows: Mapping[Cell, Row], names: Sequence[str], methods: Sequence[str], variant: str
) -> float:
    """Of ranks (Spearman): are methods in the order that they have when tuned?"""
    means = mean_accuracies(rows, names, methods, (variant, "tuned"))
    return float(spearmanr(list(means.values()), nan_policy="omit").statistic)


def main(
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
    only: Annotated[str, typer.Option(help="Settings, separated by commas; all if left out.")] = "",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    show: Annotated[bool, typer.Option("--show", help="Compute nothing.")] = False,
) -> None:
    """Every method on every setting with its defaults, and with the learning rate tuned."""
    names, chosen = only.split(",") if only else settings(), methods.split(",")
    rows = read_rows()
    if not show:
        complete(rows, all_cells(names, chosen), workers)
    for line in (*tables(rows, names, chosen), "", *schedule_table(rows)):
        print(line)


if __name__ == "__main__":
    cli.script(main)
