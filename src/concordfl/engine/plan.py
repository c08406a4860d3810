"""Plan: how a run goes, apart from data, model and method. The `[run]` section of a run file."""

from dataclasses import dataclass
from typing import Literal

from ..core import (
    Count,
    Fraction,
    NonNegative,
    Repeats,
    RepeatsOrZero,
    Seed,
    SettingError,
    Settings,
    Share,
    WorkerCount,
)


@dataclass(frozen=True)
class Plan(Settings):
    rounds: Repeats = 20
    seed: Seed = 0
    # clients per round: a whole number, or a share written with a point
    cohort: Count | Share = 1.0
    evaluate_every: Count = 5  # rounds; the last round is always evaluated
    # picks the round reported beside the last one
    select_on: Literal["validation", "training"] = "validation"
    # epochs that new clients tune a shared model for (fedavg, fedprox, moon, fedrs, fedlc, fedbn)
    tune_new: RepeatsOrZero = 0
    dropout: Fraction = 0.0  # chance that a client does not answer a request
    executor: Literal["auto", "serial", "processes"] = "auto"
    workers: WorkerCount | None = None  # for processes; by default one per core
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    client_states: Literal["memory", "disk"] = "memory"
    # at most so much work is lost; 0 writes one after every round
    checkpoint_seconds: NonNegative = 60.0
    keep_checkpoints: Count = 2

    def cohort_size(self, population: int) -> int:
        if isinstance(self.cohort, float):
            return max(1, round(self.cohort * population))
        if self.cohort > population:
            raise SettingError(
                f"run.cohort must be <= {population}, the number of clients, got {self.cohort}"
            )
        return self.cohort
