"""Do the defaults give the right answer? Every method on every setting of experiments/defaults:
with the defaults as they were (`before`), as they are (`default`), and with the learning rate that
is best on validation (`tuned`).

    python benchmarks/defaults.py              # computes what is missing, then prints the tables
    python benchmarks/defaults.py --show       # prints the tables from the kept figures alone

Figures are kept in experiments/defaults/results.csv, a line per run; one whose configuration has
changed since does not count and is computed again.
"""

import csv
import io
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
BEFORE = "before"
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


class Cell(NamedTuple):
    setting: str
    method: str
    variant: str

    def config(self) -> Config:
        table = read_table(FOLDER / f"{self.setting}.toml")
        # only the last round counts
        table["run"] = {**table.get("run", {}), "executor": "serial", "evaluate_every": 1000}
        if self.variant == BEFORE:
            # what the run file itself asks for stays
            changed = [each for each in OLD_DEFAULTS if not _names(table, each)]
            if self.setting in ALWAYS_STANDARDISED:
                changed.remove("data.standardise=false")
            table = override(table, changed)
            table["algorithm"] = {"name": self.method, **OLD_SETTINGS.get(self.method, {})}
        else:
            rate = Config.from_table(table).training.lr * RATE_FACTORS[self.variant]
            table = override(table, [f"training.lr={rate:.4g}"])
        return cells(table, [self.method], [0])[self.method, 0]


class Row(NamedTuple):
    """A line of the results: figures in percent, empty where there are none."""

    setting: str
    method: str
    variant: str
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
        *cell,
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
    return {Cell(row.setting, row.method, row.variant): row for row in rows}


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
            print(f"{number}/{len(missing)}", *row[:6], f"{row.seconds} s", flush=True)


# --- tables ---------------------------------------------------------------------------------------


def tuned(rows: Mapping[Cell, Row], setting: str, method: str) -> Row:
    """The rate that is best on validation; of equal ones the default."""
    candidates = [rows[Cell(setting, method, variant)] for variant in RATE_FACTORS]
    return max(candidates, key=lambda row: float(row.validation or 0))


def accuracy(row: Row) -> float:
    return float(row.test)


def mean_accuracies(
    rows: Mapping[Cell, Row], names: Sequence[str], methods: Sequence[str]
) -> dict[str, tuple[float, float, float]]:
    """Before, default and tuned, each the mean over settings, by method."""
    means = {}
    for method in methods:
        columns = zip(*(_three(rows, name, method) for name in names), strict=True)
        before, default, best = (statistics.mean(column) for column in columns)
        means[method] = (before, default, best)
    return means


def tables(rows: Mapping[Cell, Row], names: Sequence[str], methods: Sequence[str]) -> Iterator[str]:
    means = mean_accuracies(rows, names, methods)
    yield f"| method | {' | '.join(names)} | mean |"
    yield "|---" * (len(names) + 2) + "|"
    for method in methods:
        triples = (*(_three(rows, name, method) for name in names), means[method])
        parts = [" / ".join(f"{value:.1f}" for value in each) for each in triples]
        yield f"| `{method}` | {' | '.join(parts)} |"
    for column, variant in enumerate((BEFORE, "default")):
        overall = correlation(
            [three[column] for three in means.values()], [three[2] for three in means.values()]
        )
        each = {
            name: correlation(
                [_three(rows, name, method)[column] for method in methods],
                [_three(rows, name, method)[2] for method in methods],
            )
            for name in names
        }
        listed = ", ".join(f"{name} {value:.2f}" for name, value in each.items())
        yield f"- {variant} and tuned: {overall:.2f} of the means; by setting {listed}"


def _three(rows: Mapping[Cell, Row], name: str, method: str) -> tuple[float, float, float]:
    before, default = (rows[Cell(name, method, variant)] for variant in (BEFORE, "default"))
    return accuracy(before), accuracy(default), accuracy(tuned(rows, name, method))


def correlation(left: Iterable[float], right: Iterable[float]) -> float:
    """Of ranks (Spearman): are methods in the same order?"""
    return float(spearmanr(list(left), list(right)).statistic)


def main(
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
    only: Annotated[str, typer.Option(help="Settings, separated by commas; all if left out.")] = "",
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = ",".join(METHODS),
    show: Annotated[bool, typer.Option("--show", help="Compute nothing.")] = False,
) -> None:
    """Every method on every setting with its defaults, and with the learning rate tuned."""
    names, chosen = only.split(",") if only else settings(), methods.split(",")
    variants = (*RATE_FACTORS, BEFORE)
    wanted = [
        Cell(name, method, variant) for variant in variants for name in names for method in chosen
    ]
    rows = read_rows()
    if not show:
        complete(rows, wanted, workers)
    for line in tables(rows, names, chosen):
        print(line)


if __name__ == "__main__":
    cli.script(main)
