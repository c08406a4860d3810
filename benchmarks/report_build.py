"""How long a report of many runs takes, and its weight: `python benchmarks/report_build.py`.

Ten runs (five methods, two seeds) of 300 clients and 200 rounds are made first. They are evaluated
once, as their figures do not matter here, and every other round gets a copy of these figures.
`--clients` and `--rounds` make it another size.
"""

import argparse
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import concordfl as cf
from concordfl.engine.records import RunFolder
from concordfl.study import reports

METHODS = ["local", "fedavg", "ifca", "fedem", "fedconceptem"]
BOUND_SECONDS, BOUND_BYTES = 20.0, 12e6


@contextmanager
def timed(what):
    began = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - began:.1f} s")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs, page = Path(folder) / "runs", Path(folder) / "report.html"
        with timed("making the runs"):
            make_runs(runs, options.clients, options.rounds)
        began = time.perf_counter()
        with timed("reading them"):
            gathered = reports.of_folders([runs])
        with timed("writing the report"):
            reports.write("benchmark", gathered.runs, page)
        seconds, weight = time.perf_counter() - began, page.stat().st_size
        print(f"in all {seconds:.1f} s (at most {BOUND_SECONDS:.0f})", end=", ")
        print(f"{weight / 1e6:.2f} MB (at most {BOUND_BYTES / 1e6:.0f})")


def make_runs(folder, clients, rounds):
    cf.compare(
        algorithms=METHODS,
        seeds=2,
        rounds=rounds,
        out=folder,
        data={"name": "synthetic-mixture", "clients": clients, "examples_per_client": 40},
        model="linear",
        run={"evaluate_every": rounds, "cohort": 10, "checkpoint_seconds": 600},
    )
    for path in folder.iterdir():
        evaluate_every_round(path)


def evaluate_every_round(path):
    with RunFolder.open(path) as folder:
        summary, (record,) = folder.read_summary(), folder.read_records()
        rows = folder.read_client_rows(record["round"])
        folder.cut_records()
        for round in range(1, record["round"] + 1):
            folder.append_record({**record, "round": round})
            folder.write_clients(round, rows)
        folder.write_summary(summary)


if __name__ == "__main__":
    main()
