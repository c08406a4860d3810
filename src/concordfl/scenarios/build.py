"""From a data set and a scenario to a federation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import InstanceOf

from ..core import ClientId, Count, Key, Probability, SettingError, Settings
from ..data import Arrays, Dataset, Federation
from .partition import Iid, Partition
from .shift import Shift

UNCHANGED = "original"


@dataclass(frozen=True)
class Scenario(Settings):
    """The `[scenario]` section of a run file."""

    clients: Count | None = None  # may be left out for the natural partition
    partition: InstanceOf[Partition] = Iid()  # noqa: RUF009 - frozen
    shifts: tuple[InstanceOf[Shift], ...] = ()
    split: tuple[Probability, Probability, Probability] = (0.7, 0.1, 0.2)  # train, validation, test of every client

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(sum(self.split) - 1) > 1e-6 or self.split[0] == 0:
            raise SettingError(f"split must be three shares that sum to 1, the first above 0, got {list(self.split)}")


def build_federation(data: Dataset, scenario: Scenario, key: Key) -> Federation:
    """Participants from the training examples; held-out clients, one per concept, from the official test set."""
    places = scenario.partition.assign(data, scenario.clients, key.child("partition"))
    shifts_of = _choose_clients(sorted(places), scenario.shifts, key.child("shifts"))
    participants = {}
    for id, place in places.items():
        arrays = _shifted(data.train.take(place), shifts_of[id], scenario.shifts, data.num_classes, key)
        participants[id] = _split(arrays, scenario.split, key.child("split", id))
    families = {shift.family for shift in scenario.shifts} | {"concept"}
    groups = {id: {family: _group(chosen, scenario.shifts, family) for family in families} for id, chosen in shifts_of.items()}
    held_out, held_out_groups = _held_out(data, scenario, key, {group["concept"] for group in groups.values()})
    return Federation.build(participants, held_out, data.num_classes, groups | held_out_groups)


def _choose_clients(ids: Sequence[ClientId], shifts: Sequence[Shift], key: Key) -> Mapping[ClientId, list[int]]:
    """Which shifts (by their place in the list) each client gets: within a family, no client gets two."""
    chosen: dict[ClientId, list[int]] = {id: [] for id in ids}
    taken: dict[str, int] = defaultdict(int)
    for place, shift in enumerate(shifts):
        order = key.child(shift.family).permutation(len(ids)).tolist()
        count, start = round(shift.share * len(ids)), taken[shift.family]
        if start + count > len(ids):
            total = sum(other.share for other in shifts if other.family == shift.family)
            raise SettingError(f"the shares of {shift.family} shifts must sum to <= 1, got {total:g}")
        for position in order[start : start + count]:
            chosen[ids[position]].append(place)
        taken[shift.family] += count
    return chosen


def _shifted(arrays: Arrays, chosen: Sequence[int], shifts: Sequence[Shift], num_classes: int, key: Key) -> Arrays:
    for place in chosen:
        arrays = shifts[place].apply(arrays, num_classes, key.child("shift", place))
    return arrays


def _group(chosen: Sequence[int], shifts: Sequence[Shift], family: str) -> str:
    return next((shifts[place].group for place in chosen if shifts[place].family == family), UNCHANGED)


def _split(arrays: Arrays, shares: tuple[float, float, float], key: Key) -> tuple[Arrays, Arrays, Arrays]:
    """Validation and test are rounded down, so that even a single example is there to train on."""
    size = len(arrays.y)
    validation, test = int(size * shares[1] + 1e-9), int(size * shares[2] + 1e-9)
    order = key.numpy().permutation(size)
    train_end = size - validation - test
    cuts = np.split(order, [train_end, train_end + validation])
    return arrays.take(cuts[0]), arrays.take(cuts[1]), arrays.take(cuts[2])


def _held_out(
    data: Dataset, scenario: Scenario, key: Key, concepts: set[str]
) -> tuple[dict[ClientId, tuple[Arrays, Arrays, Arrays]], dict[ClientId, dict[str, str]]]:
    """A non-participating client per concept, with the test set under its label map: one half to adapt on, one to test."""
    if not len(data.test.y):
        return {}, {}
    order = key.child("held-out").numpy().permutation(len(data.test.y))
    halves = np.split(order, [len(order) // 2])
    clients, groups = {}, {}
    for concept in sorted(concepts):
        chosen = [place for place, shift in enumerate(scenario.shifts) if (shift.family, shift.group) == ("concept", concept)]
        adapt, test = (_shifted(data.test.take(half), chosen[:1], scenario.shifts, data.num_classes, key) for half in halves)
        id = f"held-out-{concept}"
        clients[id], groups[id] = (adapt, test.take(np.arange(0)), test), {"concept": concept}
    return clients, groups
