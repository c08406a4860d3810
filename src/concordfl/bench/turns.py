"""Timing of what takes turns."""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..engine.choice import available_cores

NUM_WARM_UPS = 2
MAX_IDLE_LOAD = 0.3  # of a core's time that others may take before figures are in doubt

Play = Callable[[], None]
Report = Callable[[str], None]  # what has been done, step by step


def silent(_: str) -> None:
    """The report of whoever is not watched."""


class Timing(NamedTuple):
    """Seconds of every repeat."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def low(self) -> float:
        return min(self.seconds)

    @property
    def high(self) -> float:
        return max(self.seconds)

    @property
    def deviation(self) -> float:
        """Half of the range, as a picture shows it."""
        return (self.high - self.low) / 2


def take_turns(
    plays: Mapping[str, Play],
    repeats: int,
    report: Report = silent,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Seconds of each of `plays`, one after the other and again; the first turns warm up."""
    seconds: dict[str, list[float]] = {name: [] for name in plays}
    for turn in range(NUM_WARM_UPS + repeats):
        for name, play in plays.items():
            began = clock()
            play()
            if turn >= NUM_WARM_UPS:
                seconds[name].append(clock() - began)
            report(name)
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> float:
    """How many times their throughput ours is, from the seconds of both: the median over turns, as
    both were timed one after the other and a slow minute is in both.
    """
    return statistics.median(other / own for other, own in zip(theirs, ours, strict=True))


def busy_warning() -> str | None:
    """A sentence if the machine has other work."""
    if not hasattr(os, "getloadavg"):
        return None
    load = os.getloadavg()[0]
    if load <= MAX_IDLE_LOAD * available_cores():
        return None
    return (
        f"this machine is busy (load {load:.1f} on {available_cores()} cores): benchmarks should "
        "run alone, so judge ratios, not seconds"
    )
