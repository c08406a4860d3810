"""Optimizers as (init, update) pairs and learning-rate schedules as functions of the round.

The arithmetic is PyTorch's own functional form (`torch.optim.sgd.sgd`, `torch.optim.adam.adam`);
what is ours is that the optimizer's state is a value that `update` is handed and hands back.
Parameters are overwritten in place, for speed.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import torch
from annotated_types import Ge, Lt
from pydantic import InstanceOf
from torch import Tensor
from torch.optim.adam import adam as torch_adam
from torch.optim.sgd import sgd as torch_sgd

from .settings import Count, NonNegative, Positive, Repeats, Settings, Share


class Optimizer(NamedTuple):
    """`init(params) -> state` and `update(params, grads, state, lr) -> state`."""

    init: Callable[[list[Tensor]], Any]
    update: Callable[[list[Tensor], list[Tensor], Any, float], Any]


def sgd(momentum: float = 0.0, weight_decay: float = 0.0) -> Optimizer:
    def init(params: list[Tensor]) -> list[Tensor | None]:
        return [None] * len(params)

    @torch.no_grad()
    def update(
        params: list[Tensor], grads: list[Tensor], state: list[Tensor | None], lr: float
    ) -> list[Tensor | None]:
        torch_sgd(
            params,
            grads,
            state,
            momentum=momentum,
            weight_decay=weight_decay,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            foreach=False,
        )
        return state

    return Optimizer(init, update)


class AdamState(NamedTuple):
    first: list[Tensor]
    second: list[Tensor]
    steps: list[Tensor]


def adam(
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.0
) -> Optimizer:
    def init(params: list[Tensor]) -> AdamState:
        def zeros() -> list[Tensor]:
            return [torch.zeros_like(param) for param in params]

        return AdamState(zeros(), zeros(), [torch.zeros(()) for _ in params])

    @torch.no_grad()
    def update(params: list[Tensor], grads: list[Tensor], state: AdamState, lr: float) -> AdamState:
        torch_adam(
            params,
            grads,
            state.first,
            state.second,
            [],
            state.steps,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=lr,
            weight_decay=weight_decay,
            eps=eps,
            maximize=False,
            foreach=False,
        )
        return state

    return Optimizer(init, update)


# --- schedules ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant(Settings):
    """The same learning rate in every round."""

    def factor(self, round: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Step(Settings):
    """Multiplied by `gamma` every `every` rounds."""

    every: Count = 10
    gamma: Positive = 0.8

    def factor(self, round: int) -> float:
        return float(self.gamma ** (round // self.every))


@dataclass(frozen=True)
class MultiStep(Settings):
    """Multiplied by `gamma` at each of the rounds in `milestones`."""

    milestones: tuple[Count, ...] = ()
    gamma: Positive = 0.1

    def factor(self, round: int) -> float:
        return float(self.gamma ** sum(round >= milestone for milestone in self.milestones))


@dataclass(frozen=True)
class Cosine(Settings):
    """Down along half a cosine, in `rounds` rounds, to a share `final` of the rate."""

    rounds: Count = 20
    # where it stays: later rounds, and tuning after the last one, still train
    final: Share = 0.01

    def factor(self, round: int) -> float:
        done = min(round / self.rounds, 1.0)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2


Schedule = Constant | Step | MultiStep | Cosine
SCHEDULES: dict[str, type[Schedule]] = {
    "constant": Constant,
    "step": Step,
    "multi-step": MultiStep,
    "cosine": Cosine,
}


@dataclass(frozen=True)
class Training(Settings):
    """How every client trains: the `[training]` section of a run file."""

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: Positive = 0.02
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9  # of sgd: adam has moments of its own
    weight_decay: NonNegative = 0.0
    batch_size: Count = 16
    epochs: Repeats = 2
    schedule: (
        InstanceOf[Constant] | InstanceOf[Step] | InstanceOf[MultiStep] | InstanceOf[Cosine]
    ) = Constant()

    def make_optimizer(self) -> Optimizer:
        if self.optimizer == "sgd":
            return sgd(self.momentum, self.weight_decay)
        return adam(weight_decay=self.weight_decay)

    def rate(self, round: int) -> float:
        """The learning rate in a stage's own round, counted from 0."""
        return self.lr * self.schedule.factor(round)

    def plain_steps(self, steps: int) -> float:
        """How many steps of plain SGD move as far as `steps` with the momentum, along a constant
        gradient: Σ_k (1 - μ^k) / (1 - μ), which is ‖a‖₁ in FedNova.
        """
        rest = 1 - self.momentum
        return (steps - self.momentum * (1 - self.momentum**steps) / rest) / rest
