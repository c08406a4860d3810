"""Methods with three models beside a bare PyTorch loop: `python benchmarks/mixture_step.py`.

FedConceptEM with K = 3 and FedGMM 3x3 on the first workload of `concordfl bench speed`: 40 clients
x 300 Fashion-MNIST images, lenet, batch 64, all clients every round, without evaluation. The bare
loop does the same passes: at every client three forwards without gradients over all images,
responsibilities from their losses, three training passes weighted by them, and the weighted sum of
the models. For FedGMM it also computes what is arithmetic of the method: log-densities of the
images' 48 coordinates (computed once, as the method's are) under three full Gaussians, and the sums
of their M-step. Not in it: label tables, states, keys, trees, bytes.

One loop in this process is the limit for `serial`, two in two processes that for `processes` with
two workers. All take turns; what counts are ratios of medians. `--cpu` takes the processor's
seconds of this process alone, for a machine that others use too; there are no worker processes
then.
"""

import argparse
import copy
import json
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from concordfl import assemble
from concordfl.bench.bare import BareLoop, BareLoops
from concordfl.bench.engine_rounds import engine_rounds
from concordfl.bench.turns import NUM_WARM_UPS, Play, Timing, ratio, take_turns
from concordfl.bench.workload import (
    MANY_IMAGES,
    Stacked,
    Workload,
    make_config,
    stack_clients,
)
from concordfl.engine.threads import one_thread

MODELS = 3
DIMENSIONS = 48
GAUSSIANS = 3
METHODS = {
    "fedconceptem": {"num_models": MODELS},
    "fedgmm": {"num_models": MODELS, "num_gaussians": GAUSSIANS},
}
PREPARING_ROUNDS = {"fedconceptem": 0, "fedgmm": 1 + GAUSSIANS + 5}  # of the start, not timed


class BareMixture(BareLoop):
    """Three models trained by responsibility, as one would write it for a single problem."""

    def __init__(self, workload: Workload, clients: Stacked) -> None:
        super().__init__(workload, clients)
        self.models = [copy.deepcopy(self.common) for _ in range(MODELS)]
        for number, model in enumerate(self.models):
            torch.manual_seed(number)
            for value in model.values():
                value.add_(0.01 * torch.randn_like(value))
        self.omega = [torch.full((MODELS,), 1 / MODELS).double() for _ in self.clients]

    def round(self, cohort: Sequence[int]) -> None:
        totals = [
            {name: torch.zeros_like(value) for name, value in self.common.items()}
            for _ in self.models
        ]
        masses = torch.zeros(MODELS, dtype=torch.float64)
        for number in cohort:
            x, y = self.clients[number]
            gamma = self.expect(number, x, y)
            self.omega[number] = gamma.mean(0)
            masses += gamma.sum(0)
            for k, model in enumerate(self.models):
                self.train_weighted(model, x, y, gamma[:, k])
                mass = float(gamma[:, k].sum())
                for name, value in self.module.state_dict().items():
                    totals[k][name] += value * mass
        self.models = [
            {name: value / float(mass) for name, value in total.items()}
            for total, mass in zip(totals, masses, strict=True)
        ]

    def expect(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        return (self.omega[number].log() - self.losses(x, y)).softmax(1)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        found = []
        self.module.eval()
        with torch.no_grad():
            for model in self.models:
                self.module.load_state_dict(model)
                found.append(F.cross_entropy(self.module(x), y, reduction="none"))
        self.module.train()
        return torch.stack(found, 1).double()

    def train_weighted(
        self, start: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor
    ) -> None:
        self.module.load_state_dict(start)
        optimizer = torch.optim.SGD(
            self.module.parameters(), lr=self.workload.lr, momentum=self.workload.momentum
        )
        order, weight, size = torch.randperm(len(y)), weight.float(), self.workload.batch_size
        for begin in range(0, len(y), size):
            batch = order[begin : begin + size]
            optimizer.zero_grad()
            losses = F.cross_entropy(self.module(x[batch]), y[batch], reduction="none")
            ((losses * weight[batch]).sum() / len(batch)).backward()
            optimizer.step()


class BareJoint(BareMixture):
    """The same with three full Gaussians over 48 coordinates."""

    def __init__(self, workload: Workload, clients: Stacked) -> None:
        super().__init__(workload, clients)
        everything = clients.x.flatten(2).flatten(0, 1).double()
        axes = torch.linalg.svd(everything - everything.mean(0), full_matrices=False).Vh
        self.points = [x.flatten(1).double() @ axes[:DIMENSIONS].T for x in clients.x]
        pooled = torch.cat(self.points)
        self.means = pooled[torch.randperm(len(pooled))[:GAUSSIANS]]
        self.roots = torch.linalg.cholesky(torch.cov(pooled.T)).expand(GAUSSIANS, -1, -1)
        self.pi = [torch.full((GAUSSIANS, MODELS), 1 / 9).double() for _ in self.clients]
        self.start_sums()

    def start_sums(self) -> None:
        self.mass = torch.zeros(GAUSSIANS, dtype=torch.float64)
        self.first = torch.zeros(GAUSSIANS, DIMENSIONS, dtype=torch.float64)
        self.second = torch.zeros(GAUSSIANS, DIMENSIONS, DIMENSIONS, dtype=torch.float64)

    def round(self, cohort: Sequence[int]) -> None:
        self.start_sums()
        super().round(cohort)
        self.means = self.first / self.mass[:, None]
        outer = self.means[:, :, None] * self.means[:, None]
        spread = self.second / self.mass[:, None, None] - outer
        self.roots = torch.linalg.cholesky(spread + 1e-3 * torch.eye(DIMENSIONS).double())

    def expect(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        points = self.points[number]
        centred = points - self.means[:, None]  # (M1, N, D)
        solved = torch.linalg.solve_triangular(self.roots, centred.mT, upper=False)
        determinant = self.roots.diagonal(dim1=1, dim2=2).log().sum(1)
        density = -0.5 * solved.square().sum(1) - determinant[:, None]  # (M1, N)
        joint = density.T[:, :, None] - self.losses(x, y)[:, None] + self.pi[number].log()
        q = joint.flatten(1).softmax(1).view_as(joint)
        self.pi[number] = q.mean(0)
        weight = q.sum(2)
        self.mass += weight.sum(0)
        self.first += weight.T @ points
        self.second += torch.stack([(points * weight[:, [m]]).T @ points for m in range(GAUSSIANS)])
        return q.sum(1)


LOOPS: dict[str, type[BareLoop]] = {"fedconceptem": BareMixture, "fedgmm": BareJoint}


def measure(method: str, rounds: int) -> dict[str, Timing]:
    """Seconds of a round of all contestants, which take turns."""
    clients, kind = stack_clients(MANY_IMAGES), LOOPS[method]
    with one_thread(), ExitStack() as stack:
        two = stack.enter_context(closing(BareLoops(MANY_IMAGES, clients, kind=kind)))
        plays = {
            "bare loop": kind(MANY_IMAGES, clients).play,
            "serial": prepared_rounds(stack, method, rounds, "serial"),
            "two bare loops": two.play,
            "processes, 2 workers": prepared_rounds(stack, method, rounds, "processes"),
        }
        return take_turns(plays, rounds)


def measure_processor_time(method: str, rounds: int) -> dict[str, Timing]:
    """The processor's seconds of what runs in this process alone."""
    with one_thread(), ExitStack() as stack:
        plays = {
            "bare loop": LOOPS[method](MANY_IMAGES, stack_clients(MANY_IMAGES)).play,
            "serial": prepared_rounds(stack, method, rounds, "serial"),
        }
        return take_turns(plays, rounds, clock=time.process_time)


def prepared_rounds(stack: ExitStack, method: str, rounds: int, executor: str) -> Play:
    """The engine's training rounds: those that prepare them are over."""
    preparing = PREPARING_ROUNDS[method]
    settings = make_config(MANY_IMAGES, rounds + NUM_WARM_UPS, method)
    settings = replace(settings, algorithm=replace(settings.algorithm, **METHODS[method]))
    federation = assemble.make_federation(settings)
    engine = stack.enter_context(engine_rounds(settings, federation, executor))
    for _ in range(preparing):
        engine.play()
    return engine.play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=11, help="timed rounds of each")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--cpu", action="store_true", help="the processor's seconds, serial alone")
    arguments = parser.parse_args()
    for method in arguments.methods.split(","):
        timings = (measure_processor_time if arguments.cpu else measure)(method, arguments.rounds)
        print(method)
        for name, timing in timings.items():
            figures = f"{1000 * timing.median:7.1f} ms a round (fastest {1000 * timing.low:.1f})"
            print(f"  {name:22s} {figures}")
        seconds = {name: timing.seconds for name, timing in timings.items()}
        ratios = {"serial / bare": ratio(seconds["bare loop"], seconds["serial"])}
        if not arguments.cpu:
            both = ratio(seconds["two bare loops"], seconds["processes, 2 workers"])
            ratios["processes / two bare"] = both
        print(" ", json.dumps({name: round(value, 3) for name, value in ratios.items()}))


if __name__ == "__main__":
    main()
