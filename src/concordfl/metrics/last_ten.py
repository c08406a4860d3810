"""How figures fluctuate at the end of a run: mean and standard deviation over its last rounds."""

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from .names import CRITERIA

NUM_ROUNDS = 10


def last_ten(evaluated: Sequence[Mapping[str, Any]]) -> dict[str, float] | None:
    """The mean of the headline figures over the last ten evaluated rounds, under their own names,
    their standard deviation as `..._std`, and which rounds these were; None where there are fewer.

    Each of `evaluated` has `round`, and figures such as `local_accuracy` and `global_accuracy`.
    """
    last = evaluated[-NUM_ROUNDS:]
    if len(last) < NUM_ROUNDS:
        return None
    found: dict[str, float] = {"first_round": last[0]["round"], "last_round": last[-1]["round"]}
    for scope, metric in itertools.product(("local", "global"), CRITERIA.values()):
        name = f"{scope}_{metric}"
        values = [figures.get(name) for figures in last]
        known = [value for value in values if value is not None]
        if len(known) == NUM_ROUNDS:
            found |= {name: statistics.mean(known), f"{name}_std": statistics.stdev(known)}
    return found
