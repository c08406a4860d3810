"""Ray's workers beside worker processes: `python benchmarks/ray_executor.py`.

The workload of step_time.py, FedAvg, whose clients keep nothing, and Ditto, whose clients keep a
whole network each. For each method the executors, two workers each, take turns in one run; what
counts are ratios, as machines are noisy.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from concordfl import assemble
from concordfl.config import Config
from concordfl.data import Federation
from step_time import SETTINGS, engine_rounds

EXECUTORS = ("processes", "ray")
METHODS = ("fedavg", "ditto")


def time_rounds(plays: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every timed round, by executor; the first two rounds warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for turn in range(rounds + 2):
        for name, play in plays.items():
            began = time.perf_counter()
            play()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def measure(settings: Config, federation: Federation, rounds: int) -> dict[str, list[float]]:
    made = {name: engine_rounds(settings, federation, name) for name in EXECUTORS}
    try:
        return time_rounds({name: play for name, (play, _) in made.items()}, rounds)
    finally:
        for _, executor in made.values():
            executor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="timed rounds of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    federation = assemble.make_federation(Config.from_table(SETTINGS))
    ratios: dict[str, Any] = {}
    for method in METHODS:
        settings = Config.from_table({**SETTINGS, "algorithm": {"name": method}})
        seconds = measure(settings, federation, arguments.rounds)
        median = {name: statistics.median(values) for name, values in seconds.items()}
        for name, value in median.items():
            fastest = 1000 * min(seconds[name])
            print(f"{method:8s} {name:10s} {1000 * value:7.1f} ms a round (fastest {fastest:.1f})")
        ratios[f"{method}: ray / processes"] = round(median["processes"] / median["ray"], 3)
    print(json.dumps(ratios))


if __name__ == "__main__":
    main()
