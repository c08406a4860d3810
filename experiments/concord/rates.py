"""Learning rates for the comparisons of docs/concord.md: the same grid for every method of a run
file, judged on validation data after 15 rounds of one seed; Concord's without settling, as rates
are about training.

    python experiments/concord/rates.py [--files NAMES]     # computes what rates.csv does not have
    python experiments/concord/rates.py --show              # the best of them, by file and method

The run files of experiments/concord have these rates (`tests/test_concord_rates.py`).
"""

import csv
import io
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from concordfl import SettingError
from concordfl.cli import script
from concordfl.config import read_table
from concordfl.engine.files import write_atomically
from concordfl.study.cells import method_section
from concordfl.study.grid import Grid
from concordfl.study.tune import tune

FOLDER = Path(__file__).parent
KEPT = FOLDER / "rates.csv"
ROUNDS = 15
ALL = ("fedavg", "cfl", "fesem", "apfl", "ifca", "fedem", "fedconceptem", "concord")
SOME = ("fedavg", "ifca", "fedem", "fedconceptem", "concord")
USUAL = (0.01, 0.03, 0.1)


class Setting(NamedTuple):
    """A run file of experiments/, the methods that are compared there, and the grid."""

    file: str
    methods: tuple[str, ...]
    rates: tuple[float, ...] = USUAL
    settings: tuple[str, ...] = ()


SETTINGS = (
    Setting("concord/fmnist_mild", ALL),
    Setting("concord/fmnist_strong", ALL),
    Setting("concord/fmnist_corrupted", ALL),
    Setting("concord/fmnist_five_concepts", ("fedavg", "ifca", "fedconceptem", "concord")),
    Setting("concord/fmnist_one_concept_iid", ("fedavg", "concord")),
    Setting("concord/fmnist_one_concept_strong", ("fedavg", "concord")),
    Setting("concord/mnist_mild", SOME),
    Setting("concord/cifar_mild", SOME),
    Setting("fedconcat/fmnist_c2", ("fedavg", "fedconcat", "concord")),
    Setting("fedconcat/fmnist_c3", ("fedavg", "fedconcat", "concord")),
    Setting("fedgmm/mnist_joint", ("fedavg", "fedem", "fedgmm", "concord"), (0.02, 0.05, 0.15)),
    Setting(
        "fedgmm/synthetic",
        ("fedavg", "fedem", "fedgmm", "concord"),
        (0.1, 0.3, 1.0),
        ("data.clients=30",),
    ),
    Setting("fedvc/mnist_target", ("fedavg", "fedvc", "concord"), (0.002, 0.005, 0.015)),
    Setting("fedvc/digits_feature", ("fedavg", "fedvc", "concord"), (0.002, 0.005, 0.015)),
)


class Row(NamedTuple):
    """A line of rates.csv."""

    file: str
    method: str
    rate: float
    accuracy: float  # of participants' validation examples, in percent


def read() -> list[Row]:
    if not KEPT.exists():
        return []
    lines = csv.DictReader(io.StringIO(KEPT.read_text()))
    return [
        Row(line["file"], line["method"], float(line["rate"]), float(line["accuracy"]))
        for line in lines
    ]


def write(rows: list[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(sorted(rows))
    write_atomically(KEPT, text.getvalue())


def best(rows: list[Row]) -> dict[tuple[str, str], Row]:
    """The rate of every method in every file; of equal ones the smallest."""
    found: dict[tuple[str, str], Row] = {}
    for row in sorted(rows):
        known = found.get((row.file, row.method))
        if known is None or row.accuracy > known.accuracy:
            found[row.file, row.method] = row
    return found


def compute(setting: Setting, method: str) -> list[Row]:
    grid: Grid = {"training.lr": list(setting.rates)}
    file, settings = FOLDER.parent / f"{setting.file}.toml", setting.settings
    if method == "concord":
        settings += (f"{method_section(read_table(file), method)}.settling_steps=0",)
    result = tune(
        file,
        [method],
        grid,
        out=Path("runs/concord-rates") / setting.file,
        rounds=ROUNDS,
        rungs=1,
        assignments=settings,
    ).methods[method]
    rows = []
    for trial in result.trials:
        if trial.candidate.in_grid:
            accuracy = result.validation(trial) or 0.0  # where a run has failed
            rate = trial.candidate.values["training.lr"]
            rows.append(Row(setting.file, method, rate, round(100 * accuracy, 2)))
    return rows


def main(
    files: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    show: Annotated[bool, typer.Option("--show", help="Compute nothing.")] = False,
) -> None:
    known = [setting.file for setting in SETTINGS]
    only = files.split(",") if files else known
    if unknown := sorted(set(only) - set(known)):
        raise SettingError(f"--files must be among {', '.join(known)}, got {', '.join(unknown)}")
    for setting in () if show else SETTINGS:
        for method in setting.methods if setting.file in only else ():
            if (setting.file, method) not in best(read()):
                found = compute(setting, method)
                write(read() + found)
                print(*best(found).values(), flush=True)
    for (file, method), row in best(read()).items():
        print(f"{file:35} {method:13} {row.rate:<6} {row.accuracy:.1f}")


if __name__ == "__main__":
    script(main)
