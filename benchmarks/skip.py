"""What `skip_below` saves, and what it changes: `python benchmarks/skip.py`.

FedAvg, FedConceptEM with three models, and the same with `skip_below` on the mild-skew run
(experiments/fedconceptem/fmnist_mild.toml). The three take turns round by round in one process, so
that their seconds compare; seconds (of the processor, as this is one thread of a machine that may
be shared) and bytes are of the last half of the rounds, without evaluation.

    python benchmarks/skip.py --seeds 5     # computes what is missing, then prints the table
    python benchmarks/skip.py --show        # prints the table from the kept figures alone

Figures are kept in experiments/fedconceptem/skip.csv, a line per run; one whose configuration has
changed since does not count and is computed again.
"""

import argparse
import csv
import io
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from concordfl import assemble
from concordfl.config import Config, read_table
from concordfl.data import Federation
from concordfl.engine.choice import Choice
from concordfl.engine.experiment import Experiment
from concordfl.engine.files import write_atomically
from concordfl.engine.roster import Roster
from concordfl.study.cells import ConfigHasher

FOLDER = Path(__file__).parents[1] / "experiments/fedconceptem"
RESULTS = FOLDER / "skip.csv"
ROUNDS = 40  # as the run file has it
METHODS: Mapping[str, Mapping[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "fedconceptem": {"name": "fedconceptem", "num_models": 3},
    "fedconceptem, skip_below = 0.01": {
        "name": "fedconceptem",
        "num_models": 3,
        "skip_below": 0.01,
    },
}


class Row(NamedTuple):
    """A line of the results: a round's milliseconds (median) and kilobytes in the last half."""

    method: str
    rounds: str
    seed: str
    milliseconds: str
    kilobytes: str
    local_accuracy: str
    global_accuracy: str
    config_hash: str


def config(method: str, rounds: int, seed: int) -> Config:
    table = read_table(FOLDER / "fmnist_mild.toml")
    del table["compare"]
    run = {"executor": "serial", "rounds": rounds, "evaluate_every": 1000, "seed": seed}
    return Config.from_table({**table, "run": run, "algorithm": dict(METHODS[method])})


class Contestant:
    """A run that is played round by round."""

    def __init__(self, settings: Config, federation: Federation) -> None:
        model = assemble.make_model(settings, federation)
        setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
        executor = Choice("serial", 1, "timed").make(setup, federation, settings.run, None)
        roster = Roster.from_federation(federation, setup)
        self.experiment = Experiment(setup, roster, settings.run, executor)
        self.progress = self.experiment.start()
        self.milliseconds: list[float] = []
        self.bytes: list[int] = []

    def play(self) -> None:
        """One more round; the last one goes with its evaluation and is not timed."""
        turn = self.experiment.turns[self.progress.round]
        if turn.round == len(self.experiment.turns):
            self.experiment.run(self.progress)
        else:
            began = time.process_time()
            self.experiment.play(turn, self.progress)
            self.milliseconds.append(1000 * (time.process_time() - began))
        traffic = self.progress.traffic
        self.bytes.append(traffic.down + traffic.up)

    def row(self, method: str, seed: int, config_hash: str) -> Row:
        rounds, record = len(self.experiment.turns), self.experiment.records[-1]
        half = rounds // 2
        sent = (self.bytes[-1] - self.bytes[half - 1]) / (rounds - half)
        return Row(
            method,
            str(rounds),
            str(seed),
            f"{statistics.median(self.milliseconds[half:]):.0f}",
            f"{sent / 1000:.0f}",
            f"{100 * record['local']['accuracy']:.1f}",
            f"{100 * record['global']['accuracy']:.1f}",
            config_hash,
        )


def compute(rounds: int, seed: int, hashes: Mapping[str, str]) -> list[Row]:
    """The rows of all methods, which take turns."""
    settings = {method: config(method, rounds, seed) for method in METHODS}
    federation = assemble.make_federation(settings["fedavg"])
    runs = {method: Contestant(each, federation) for method, each in settings.items()}
    for _ in range(rounds):
        for run in runs.values():
            run.play()
    return [run.row(method, seed, hashes[method]) for method, run in runs.items()]


def kept() -> list[Row]:
    if not RESULTS.exists():
        return []
    with RESULTS.open(newline="") as file:
        return [Row(**line) for line in csv.DictReader(file)]


def keep(rows: Sequence[Row]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(Row._fields)
    writer.writerows(sorted(rows, key=lambda row: (int(row.rounds), int(row.seed), row.method)))
    write_atomically(RESULTS, text.getvalue().encode())


def show(rows: Sequence[Row], rounds: int) -> None:
    """Means over seeds, with deviations; costs as multiples of FedAvg's in the same turn."""
    by_seed: dict[str, dict[str, Row]] = {}
    for row in rows:
        if row.rounds == str(rounds):
            by_seed.setdefault(row.seed, {})[row.method] = row
    seeds = [each for each in by_seed.values() if each.keys() == METHODS.keys()]
    print(f"{rounds} rounds, seeds: {len(seeds)}; costs of a round in the last half")
    print("| | ms | of FedAvg's | kB | of FedAvg's | local accuracy | global accuracy |")
    print("|---|---|---|---|---|---|---|")
    for method in METHODS:
        found = [(each[method], each["fedavg"]) for each in seeds]
        cells = [
            f"{statistics.mean(float(row.milliseconds) for row, _ in found):.0f}",
            mean_and_spread([float(a.milliseconds) / float(b.milliseconds) for a, b in found], 2),
            f"{statistics.mean(float(row.kilobytes) for row, _ in found):.0f}",
            mean_and_spread([float(a.kilobytes) / float(b.kilobytes) for a, b in found], 2),
            mean_and_spread([float(row.local_accuracy) for row, _ in found], 1),
            mean_and_spread([float(row.global_accuracy) for row, _ in found], 1),
        ]
        print(f"| {method} | {' | '.join(cells)} |")


def mean_and_spread(values: Sequence[float], digits: int) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--show", action="store_true", help="compute nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    hasher, rows = ConfigHasher(), kept()
    for seed in range(0 if arguments.show else arguments.seeds):
        hashes = {method: hasher(config(method, arguments.rounds, seed)) for method in METHODS}
        if not set(hashes.values()) <= {row.config_hash for row in rows}:
            rows = [row for row in rows if row.config_hash not in hashes.values()]
            rows += compute(arguments.rounds, seed, hashes)
            keep(rows)
    show(rows, arguments.rounds)


if __name__ == "__main__":
    main()
