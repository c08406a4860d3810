"""How long the runs of an item will take on this machine, before any of them is begun."""

import json

from ..assemble import make_federation, make_model, make_objective, make_setup
from ..config import Config
from ..core import Algorithm
from ..engine.choice import MIN_SECONDS_FOR_WORKERS, available_cores, estimate_seconds
from ..study.cells import hashed_settings

# What a method's cost is relative to, where it is not a number: `K` models or inner steps.
TIMES = ("num_models", "inner_steps")


class Estimator:
    """Seconds of runs, by a few training steps on a client of each federation."""

    def __init__(self) -> None:
        self._plain: dict[str, float] = {}  # by federation, network and training

    def __call__(self, settings: Config) -> float:
        table = hashed_settings(settings)
        parts = {name: table[name] for name in ("data", "scenario", "model", "training", "run")}
        key = json.dumps(parts | {"run": parts["run"] | {"seed": 0}}, sort_keys=True)
        if key not in self._plain:
            self._plain[key] = _plain_seconds(settings)
        return self._plain[key] * times_fedavg(settings.algorithm)


def _plain_seconds(settings: Config) -> float:
    """As if every client trained one network per round."""
    federation = make_federation(settings)
    model = make_model(settings, federation)
    setup = make_setup(settings, model, make_objective(settings, federation))
    seconds = estimate_seconds(setup, federation, settings.run)
    workers = settings.run.workers or available_cores()
    in_turn = settings.run.executor == "serial" or seconds < MIN_SECONDS_FOR_WORKERS
    return seconds if in_turn else seconds / workers


def times_fedavg(algorithm: Algorithm) -> float:
    """How many times a round of FedAvg a round of its first stage takes."""
    return times_fedavg_by_stage(algorithm)[0]


def times_fedavg_by_stage(algorithm: Algorithm) -> list[float]:
    """By what it says of itself: "about 1.5", "K", "about 1.4 K", or "1, then 0" of two stages."""
    return [_times(part, algorithm) for part in algorithm.about.cost.split(", then ")]


def _times(claim: str, algorithm: Algorithm) -> float:
    """A number, the value of the setting that a letter stands for, or both multiplied."""
    number, _, letter = claim.removeprefix("about ").partition(" ")
    if not number.replace(".", "").isdigit():
        number, letter = "1", number
    count = next((getattr(algorithm, name) for name in TIMES if hasattr(algorithm, name)), 1)
    return float(number) * (count if letter else 1)
