"""FedAvg without any library: the limit of what can be reached."""

import contextlib
import copy
import multiprocessing
import random
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection

import torch
import torch._dynamo  # by the first optimizer, seconds later, when a Ctrl-C would be lost in it
import torch.nn.functional as F
from torch import Tensor

from ..engine.executors.fork_server import interrupts_held_back, let_interrupts_in
from .workload import Stacked, Workload, network


class BareLoop:
    """FedAvg as one would write it for a single problem: nothing but PyTorch."""

    def __init__(self, workload: Workload, clients: Stacked) -> None:
        self.workload = workload
        self.module = network()
        self.clients = [
            (x.contiguous(memory_format=torch.channels_last), y)
            for x, y in zip(clients.x, clients.y, strict=True)
        ]
        self.common = copy.deepcopy(self.module.state_dict())
        self.random = random.Random(0)

    def play(self) -> None:
        """A round with clients of its own choice."""
        self.round(draw(self.workload, self.random))

    def round(self, cohort: Sequence[int]) -> None:
        """Train the clients of these numbers and average."""
        total = {name: torch.zeros_like(value) for name, value in self.common.items()}
        for number in cohort:
            x, y = self.clients[number]
            self._train(x, y)
            for name, value in self.module.state_dict().items():
                total[name] += value * len(y)
        examples = sum(len(self.clients[number][1]) for number in cohort)
        self.common = {name: value / examples for name, value in total.items()}

    def _train(self, x: Tensor, y: Tensor) -> None:
        module, size = self.module, self.workload.batch_size
        module.load_state_dict(self.common)
        optimizer = torch.optim.SGD(
            module.parameters(), lr=self.workload.lr, momentum=self.workload.momentum
        )
        order = torch.randperm(len(y))
        for start in range(0, len(y), size):
            batch = order[start : start + size]
            optimizer.zero_grad()
            torch.autograd.backward(F.cross_entropy(module(x[batch]), y[batch]))
            optimizer.step()


def _work(pipe: Connection, kind: type[BareLoop], workload: Workload, clients: Stacked) -> None:
    """A process: it plays the rounds it is told of until it is ended, or its parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    let_interrupts_in()
    torch.set_num_threads(1)
    loop = kind(workload, clients)
    with contextlib.suppress(EOFError, OSError):
        while True:
            loop.round(pipe.recv())
            pipe.send(True)


class BareLoops:
    """Bare loops in processes of their own, an equal share of the cohort each."""

    def __init__(
        self,
        workload: Workload,
        clients: Stacked,
        count: int = 2,
        kind: type[BareLoop] = BareLoop,
    ) -> None:
        self.workload = workload
        self.random = random.Random(0)
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, kind, workload, clients), daemon=True
            )
            with interrupts_held_back():
                process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def play(self) -> None:
        cohort = draw(self.workload, self.random)
        for number, pipe in enumerate(self.pipes):
            pipe.send(cohort[number :: len(self.pipes)])
        for pipe in self.pipes:
            pipe.recv()

    def close(self) -> None:
        for process in self.processes:  # which hold nothing worth waiting for
            process.kill()
        for process in self.processes:
            process.join()


def draw(workload: Workload, source: random.Random) -> list[int]:
    """The numbers of a round's clients."""
    return source.sample(range(workload.clients), workload.cohort)
