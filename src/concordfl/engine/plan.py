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
    # participants that are evaluated, always the same: a number or a share; left out, all are
    evaluate_clients: Count | Share | None = None
    # picks the round reported beside the last one
    select_on: Literal["validation", "training"] = "validation"
    # evaluations of the last stage that trains without a better figure on `select_on` that end the
    # run; left out, all rounds are played
    patience: Count | None = None
    # epochs for which new clients tune a shared model, where the method allows it
    tune_new: RepeatsOrZero = 0
    dropout: Fraction = 0.0  # chance that a client does not answer an order
    min_replies: Count = 1  # fewer replies to an order void the round
    # whether a client whose step fails ends the run, or only misses the round
    on_error: Literal["stop", "skip"] = "stop"
    # makes privacy noise repeatable; left out, it comes from a secret kept with clients' states
    noise_seed: Seed | None = None
    executor: Literal["auto", "serial", "vectorized", "processes", "ray"] = "auto"
    workers: WorkerCount | None = None  # for processes and ray; by default one per core
    # of a Ray cluster that this machine is part of, HOST:PORT or "auto"; left out, ray starts one
    ray_address: str | None = None
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    client_states: Literal["memory", "disk"] = "memory"
    # at most so much work is lost; 0 writes one after every round
    checkpoint_seconds: NonNegative = 60.0
    keep_checkpoints: Count = 2

    def cohort_size(self, population: int) -> int:
        """How many clients take part in a round."""
        size = _number_of("cohort", self.cohort, population)
        if self.min_replies > size:
            raise SettingError(
                f"run.min_replies must be <= {size}, the clients of a round, got {self.min_replies}"
            )
        return size

    def evaluation_size(self, population: int) -> int:
        """How many participants are evaluated."""
        if self.evaluate_clients is None:
            return population
        return _number_of("evaluate_clients", self.evaluate_clients, population)


def _number_of(name: str, value: int | float, population: int) -> int:
    if isinstance(value, float):
        return max(1, round(value * population))
    if value > population:
        raise SettingError(
            f"run.{name} must be <= {population}, the number of clients, got {value}"
        )
    return value
