"""Step time beside a bare PyTorch loop: `python benchmarks/step_time.py`.

FedAvg, 40 clients x 300 Fashion-MNIST images, lenet, batch 64, all clients every round, without
evaluation. A bare channels-last loop in this process is the limit for `serial`; two such loops in
two processes, half of the clients each, are the limit for `processes` with two workers. All four
take turns in one run, and what counts are ratios, as machines are noisy.
"""

import argparse
import copy
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from concordfl import assemble
from concordfl.config import Config
from concordfl.data import Federation
from concordfl.engine.choice import Choice
from concordfl.engine.executors import Executor
from concordfl.engine.experiment import Experiment
from concordfl.engine.roster import Roster
from concordfl.models import make_builder

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


class BareLoop:
    """FedAvg as one would write it for a single problem: nothing but PyTorch."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]], seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.module = make_builder("lenet", (1, 28, 28), 10, {})().to(
            memory_format=torch.channels_last
        )
        self.clients = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in clients]
        self.common = copy.deepcopy(self.module.state_dict())

    def round(self) -> None:
        total = {name: torch.zeros_like(value) for name, value in self.common.items()}
        for x, y in self.clients:
            self.train(x, y)
            for name, value in self.module.state_dict().items():
                total[name] += value * len(y)
        examples = sum(len(y) for _, y in self.clients)
        self.common = {name: value / examples for name, value in total.items()}

    def train(self, x: Tensor, y: Tensor) -> None:
        module: nn.Module = self.module
        module.load_state_dict(self.common)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
        order = torch.randperm(len(y))
        for start in range(0, len(y), 64):
            batch = order[start : start + 64]
            optimizer.zero_grad()
            F.cross_entropy(module(x[batch]), y[batch]).backward()
            optimizer.step()


def bare_worker(pipe: Connection, clients: list[tuple[Tensor, Tensor]]) -> None:
    torch.set_num_threads(1)
    loop = BareLoop(clients)
    while pipe.recv():
        loop.round()
        pipe.send(True)


class TwoBareLoops:
    """Two bare loops in two processes, half of the clients each."""

    def __init__(self, clients: list[tuple[Tensor, Tensor]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for half in (clients[::2], clients[1::2]):
            ours, theirs = context.Pipe()
            process = context.Process(target=bare_worker, args=(theirs, half), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def round(self) -> None:
        for pipe in self.pipes:
            pipe.send(True)
        for pipe in self.pipes:
            pipe.recv()

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(False)
        for process in self.processes:
            process.join()


def engine_rounds(
    settings: Config, federation: Federation, executor_name: str
) -> tuple[Callable[[], None], Executor]:
    """A function that plays one more round of the real engine, without evaluation and files."""
    model = assemble.make_model(settings, federation)
    setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
    executor = Choice(executor_name, 2, "timed").make(setup, federation, settings.run, None)
    roster = Roster.from_federation(federation, setup)
    experiment = Experiment(setup, roster, settings.run, executor)
    progress = experiment.start()
    turns = iter(experiment.turns)
    return lambda: experiment.play(next(turns), progress), executor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="timed rounds of each")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    settings = Config.from_table(SETTINGS)
    federation = assemble.make_federation(settings)
    clients = [
        (part.inputs(), part.y.clone())
        for part in (federation.splits(id).train for id in federation.participants)
    ]
    serial_round, _ = engine_rounds(settings, federation, "serial")
    processes_round, processes = engine_rounds(settings, federation, "processes")
    two_bare = TwoBareLoops(clients)
    contestants = {
        "bare loop": BareLoop(clients).round,
        "serial": serial_round,
        "two bare loops": two_bare.round,
        "processes, 2 workers": processes_round,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(arguments.rounds + 2):  # the first two warm up
        for name, play in contestants.items():
            began = time.perf_counter()
            play()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - began)
    two_bare.close()
    processes.close()
    median = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in median.items():
        print(
            f"{name:22s} {1000 * value:7.1f} ms a round (fastest {1000 * min(seconds[name]):.1f})"
        )
    ratios = {
        "serial / bare": median["bare loop"] / median["serial"],
        "processes / two bare": median["two bare loops"] / median["processes, 2 workers"],
    }
    print(json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
