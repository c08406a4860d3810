"""Where the time of a round goes: `python benchmarks/profile_methods.py`.

On the first workload of `concordfl bench speed` (40 clients x 300 Fashion-MNIST images, lenet,
batch 64, serial, without evaluation), and for the evaluation of 300 clients with a model of their
own (Ditto, 40 images each). The functions below are timed where they are defined, each without
those of another part that it calls; what none of them does is the rest. Times are the processor's,
so that other programs on the machine count for nothing.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from concordfl import assemble
from concordfl.config import Config
from concordfl.core import client, model, objective, optim, random, tree
from concordfl.engine.choice import Choice
from concordfl.engine.experiment import Experiment
from concordfl.engine.roster import Roster
from concordfl.toolbox import gaussian, mixture

SETTINGS: dict[str, Any] = {
    "run": {"rounds": 1_000_000},
    "data": {
        "name": "fashion-mnist",
        "limit": 12_000,
        "test_limit": 100,
        "standardise": False,
    },
    "scenario": {"clients": 40, "split": [1.0, 0.0, 0.0]},
    "model": {"name": "lenet"},
    "training": {"lr": 0.01, "momentum": 0.9, "batch_size": 64, "epochs": 1},
    "algorithm": {"name": "fedavg"},
}
ARITHMETIC = "forward, backward"
# By part: what is timed, as the place where it is looked up and its name there.
PARTS: dict[str, list[tuple[Any, str]]] = {
    ARITHMETIC: [
        (model.Model, "call"),
        (torch.autograd, "grad"),
        (objective.Classification, "losses"),
        (objective.Classification, "predictions"),
        (client, "weighted_loss"),
        (gaussian, "log_density"),
        (gaussian, "statistics"),
        (mixture, "responsibilities"),
        (mixture, "average"),
    ],
    "optimizer": [(optim, "torch_sgd")],
    "data": [(client.Examples, "inputs"), (random.Key, "permutation")],
    "parameters in, out": [(model, "_copy"), (model.Model, "snapshot")],
    "states, trees": [
        (tree, "pack"),
        (tree, "unpack"),
        (tree, "normal"),
        (tree, "is_finite"),
        (tree, "num_bytes"),
    ],
    "sums": [(tree, "add"), (tree, "scale"), (tree.Weighted, "mean")],
}
METHODS: dict[str, dict[str, Any]] = {
    "FedAvg": {"name": "fedavg"},
    "FedConceptEM, K = 3": {"name": "fedconceptem"},
    "FedGMM, 3 x 3": {"name": "fedgmm"},
    "FedVC": {"name": "fedvc"},
    "IFCA, K = 3": {"name": "ifca"},
    "APFL": {"name": "apfl"},
}
EVALUATION = "evaluation of 300 personal models"


class Clock:
    """The processor's seconds by part; a part inside another one is taken out of it."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self._inside: list[str] = ["rest"]
        self._since = time.process_time()

    def _switch(self) -> None:
        now = time.process_time()
        self.seconds[self._inside[-1]] += now - self._since
        self._since = now

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if self._inside[-1] == part:  # a tree inside a tree
                return function(*given, **named)
            self._switch()
            self._inside.append(part)
            try:
                return function(*given, **named)
            finally:
                self._switch()
                self._inside.pop()

        return run

    def start(self) -> None:
        self.seconds.clear()
        self._since = time.process_time()

    def stop(self) -> Counter[str]:
        self._switch()
        return Counter(self.seconds)


@contextmanager
def watched() -> Iterator[Clock]:
    """While it lasts, the functions of all parts are timed."""
    clock, before = Clock(), []
    for part, places in PARTS.items():
        for owner, name in places:
            function = getattr(owner, name)
            before.append((owner, name, function))
            setattr(owner, name, clock.timed(part, function))
    try:
        yield clock
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def experiment_of(table: dict[str, Any]) -> Experiment:
    settings = Config.from_table(table)
    federation = assemble.make_federation(settings)
    network = assemble.make_model(settings, federation)
    setup = assemble.make_setup(settings, network, assemble.make_objective(settings, federation))
    executor = Choice("serial", 1, "timed").make(setup, federation, settings.run, None)
    return Experiment(setup, Roster.from_federation(federation, setup), settings.run, executor)


def profile_rounds(algorithm: dict[str, Any], rounds: int) -> Counter[str]:
    """Of training rounds, after all that prepares and one round to warm up."""
    experiment = experiment_of({**SETTINGS, "algorithm": algorithm})
    progress = experiment.start()
    with watched() as clock:
        warm = 0
        for turn in experiment.turns:
            if warm == 1:
                clock.start()
            if warm == 1 + rounds:
                break
            experiment.play(turn, progress)
            warm += not turn.stage.prepares
        return clock.stop()


def profile_evaluation() -> Counter[str]:
    scenario = {"clients": 300, "split": [0.5, 0.0, 0.5]}
    data = {**SETTINGS["data"], "limit": 24_000}
    table = {"scenario": scenario, "data": data, "algorithm": {"name": "ditto"}}
    experiment = experiment_of({**SETTINGS, **table, "run": {"rounds": 2, "evaluate_every": 1}})
    progress = experiment.start()
    experiment.run(progress, until=1)
    with watched() as clock:
        clock.start()
        experiment._evaluate(experiment.turns[0], progress)
        return clock.stop()


def line(name: str, seconds: Counter[str], rounds: int) -> str:
    whole = sum(seconds.values())
    shares = [f"{100 * seconds[part] / whole:.1f}%" for part in (*PARTS, "rest")]
    return f"| {name} | {1000 * whole / rounds:.0f} | {' | '.join(shares)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds of each method")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| | ms | {' | '.join((*PARTS, 'rest'))} |")
    print("|---" * (len(PARTS) + 3) + "|")
    for name, algorithm in METHODS.items():
        print(line(name, profile_rounds(algorithm, arguments.rounds), arguments.rounds), flush=True)
    print(line(EVALUATION, profile_evaluation(), 1))


if __name__ == "__main__":
    main()
