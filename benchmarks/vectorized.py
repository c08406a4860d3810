"""Clients computed together beside clients one by one: `python benchmarks/vectorized.py`.

FedGMM's synthetic data (three Gaussian components in 32 dimensions, a half-space each), linear and
MLP networks: 300 clients x 3,000 examples with batches of 128 and one epoch, and 1,000 clients x
100 with batches of 16 and two. `serial` and `vectorized` take turns, a round each; what counts is
the ratio of the medians, as machines are noisy. Two more runs of three rounds, evaluated at the
end, give the largest differences of parameters and figures. `--methods fedavg,fedem` picks methods.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from concordfl import assemble, tree
from concordfl.config import Config
from concordfl.data import Federation
from concordfl.engine.checkpoint import Progress
from concordfl.engine.choice import Choice
from concordfl.engine.executors import Executor
from concordfl.engine.experiment import Experiment
from concordfl.engine.roster import Roster

EXECUTORS = ("serial", "vectorized")
COMPARED_ROUNDS = 3
TIMED_ROUNDS = 1_000_000  # of the schedule; only some are played


class Workload(NamedTuple):
    clients: int
    examples: int
    batch_size: int
    epochs: int


WORKLOADS = (Workload(300, 3000, 128, 1), Workload(1000, 100, 16, 2))
MODELS = ("linear", "mlp")


def settings_of(workload: Workload, model: str, method: str, rounds: int) -> Config:
    embedding = {"embedding": "identity"} if method == "fedgmm" else {}
    return Config.from_table(
        {
            "run": {"rounds": rounds, "evaluate_every": rounds},
            "data": {
                "name": "synthetic-mixture",
                "clients": workload.clients,
                "examples_per_client": workload.examples,
                "standardise": False,
            },
            "scenario": {"partition": {"kind": "natural"}, "split": [0.6, 0.2, 0.2]},
            "model": {"name": model},
            "training": {
                "lr": 0.1,
                "momentum": 0.0,
                "batch_size": workload.batch_size,
                "epochs": workload.epochs,
            },
            "algorithm": {"name": method, **embedding},
        }
    )


def experiment_of(settings: Config, federation: Federation, name: str) -> Experiment:
    model = assemble.make_model(settings, federation)
    setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
    executor: Executor = Choice(name, 1, "timed").make(setup, federation, settings.run, None)
    return Experiment(setup, Roster.from_federation(federation, setup), settings.run, executor)


def rounds_of(experiment: Experiment) -> Callable[[], None]:
    """A function that plays one more training round, without evaluation and files."""
    progress, turns = experiment.start(), iter(experiment.turns)

    def play() -> None:
        turn = next(turns)
        while turn.stage.prepares:
            experiment.play(turn, progress)
            turn = next(turns)
        experiment.play(turn, progress)

    return play


def time_rounds(settings: Config, federation: Federation, repeats: int) -> dict[str, list[float]]:
    made = {name: experiment_of(settings, federation, name) for name in EXECUTORS}
    plays = {name: rounds_of(experiment) for name, experiment in made.items()}
    seconds: dict[str, list[float]] = {name: [] for name in EXECUTORS}
    for turn in range(repeats + 1):  # the first warms up, and prepares
        for name, play in plays.items():
            began = time.perf_counter()
            play()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    for experiment in made.values():
        experiment.executor.close()
    return seconds


def differences(settings: Config, federation: Federation) -> tuple[float, float]:
    """The largest ones of parameters, and of the figures in the last record."""
    found: list[tuple[Progress, Any]] = []
    for name in EXECUTORS:
        experiment = experiment_of(settings, federation, name)
        progress = experiment.run(experiment.start())
        experiment.executor.close()
        scopes = ("local", "validation", "global")
        found.append((progress, {key: experiment.records[-1].get(key, {}) for key in scopes}))
    (left, our_figures), (right, their_figures) = found
    return _largest(left.server, right.server), _largest(our_figures, their_figures)


def _largest(left: Any, right: Any) -> float:
    ours, theirs = tree.flatten(left), tree.flatten(right)
    largest = 0.0
    for name, value in ours.items():
        if isinstance(value, Tensor) and value.numel():
            largest = max(largest, float((value - theirs[name]).abs().max()))
        elif isinstance(value, float):
            largest = max(largest, abs(value - theirs[name]))
    return largest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds of each")
    parser.add_argument("--methods", default="fedavg,fedem,fedconceptem,fedgmm")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--clients", type=int, help="only the workload of so many clients")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for workload in WORKLOADS:
        if arguments.clients not in (None, workload.clients):
            continue
        for method in arguments.methods.split(","):
            for model in arguments.models.split(","):
                measure(workload, model, method, arguments.repeats)


def measure(workload: Workload, model: str, method: str, repeats: int) -> None:
    settings = settings_of(workload, model, method, TIMED_ROUNDS)
    federation = assemble.make_federation(settings)
    seconds = time_rounds(settings, federation, repeats)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    compared = settings_of(workload, model, method, COMPARED_ROUNDS)
    of_parameters, of_figures = differences(compared, federation)
    line = {
        "clients": workload.clients,
        "examples": workload.examples,
        "model": model,
        "method": method,
        **{f"{name}_ms": round(1000 * value, 1) for name, value in median.items()},
        "ratio": round(median["serial"] / median["vectorized"], 2),
        "spread_ms": {
            name: [round(1000 * min(values), 1), round(1000 * max(values), 1)]
            for name, values in seconds.items()
        },
        "largest_difference": {"parameters": of_parameters, "figures": of_figures},
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
