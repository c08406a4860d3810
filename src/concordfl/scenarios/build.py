"""From a data set and a scenario to a federation."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import InstanceOf

from ..core import ClientId, Count, Fraction, Key, Probability, SettingError, Settings
from ..core.settings import nearest
from ..data import Arrays, Dataset, Federation, Standard
from .partition import Assignment, Iid, Partition
from .shift import UNCHANGED, Joint, LabelMap, Shift

Parts = tuple[Arrays, Arrays, Arrays]  # train, validation, test


@dataclass(frozen=True)
class Scenario(Settings):
    """The `[scenario]` section of a run file."""

    clients: Count | None = None  # may be left out where the data themselves say whose they are
    partition: InstanceOf[Partition] = Iid()  # noqa: RUF009 - frozen
    shifts: tuple[InstanceOf[Shift], ...] = ()
    # train, validation, test of every client
    split: tuple[Probability, Probability, Probability] = (0.7, 0.1, 0.2)
    # share of the clients that take no part in training and stand for new ones
    hold_out: Fraction = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(sum(self.split) - 1) > 1e-6 or self.split[0] == 0:
            raise SettingError(
                "split must be three shares that sum to 1, the first above 0, got "
                f"{list(self.split)}"
            )


def build_federation(
    data: Dataset, scenario: Scenario, key: Key, *, standardise: bool = False
) -> Federation:
    """Participants from the training examples.

    Held-out clients, which stand for new ones, are those that the partition or `hold_out` sets
    aside; where nobody is set aside they are made from the official test set, one per concept.
    """
    assignment = _hold_out(
        scenario.partition.assign(data, scenario.clients, key.child("partition")), scenario, key
    )
    chosen = _choose_clients(sorted(assignment.places), scenario.shifts, key.child("shifts"))
    held_out, groups = set(assignment.held_out), _groups(assignment, chosen, scenario.shifts)
    clients = {
        id: _make_client(id, data, assignment.places[id], scenario, chosen[id], key)
        for id in assignment.places
    }
    tests: dict[ClientId, Parts] = {}
    if not held_out:
        tests, test_groups = _test_clients(
            data, scenario, key, {group["concept"] for group in groups.values()}
        )
        groups |= test_groups
    notes: dict[str, Any] = {"type": data.train.x.dtype.name}
    notes |= {
        name: list(values)
        for name, values in (("classes", data.classes), ("features", data.features))
        if values
    }
    scale, train = None, (clients[id][0][0] for id in sorted(clients) if id not in held_out)
    if standardise and data.train.x.dtype == np.uint8:
        standard = Standard.of_images(train)
        scale, notes["standardised"] = standard.scale(), standard.to_record()
    elif standardise:
        standard = Standard.from_clients(train)
        clients = {
            id: [_standardised(parts, standard) for parts in phases]
            for id, phases in clients.items()
        }
        tests = {id: _standardised(parts, standard) for id, parts in tests.items()}
        notes["standardised"] = standard.to_record()
    starts = _starts(scenario.shifts)
    return Federation.build(
        {id: phases[0] for id, phases in clients.items() if id not in held_out},
        {id: clients[id][0] for id in assignment.held_out} | tests,
        data.num_classes,
        groups,
        notes,
        later={
            id: list(zip(starts, phases[1:], strict=True))
            for id, phases in clients.items()
            if starts
        },
        scale=scale,
    )


def _hold_out(assignment: Assignment, scenario: Scenario, key: Key) -> Assignment:
    ids = sorted(set(assignment.places) - set(assignment.held_out))
    count = round(scenario.hold_out * len(ids))
    if count == 0:
        return assignment
    if count == len(ids):
        raise SettingError(
            f"scenario.hold_out must leave a client to train with, got {scenario.hold_out} of "
            f"{len(ids)}"
        )
    more = [ids[place] for place in key.child("hold-out").permutation(len(ids))[:count].tolist()]
    return assignment._replace(held_out=(*assignment.held_out, *sorted(more)))


def _choose_clients(
    ids: Sequence[ClientId], shifts: Sequence[Shift], key: Key
) -> dict[ClientId, list[int]]:
    """Which shifts (by their place in the list) each client gets: within a family, no client gets
    two.
    """
    chosen: dict[ClientId, list[int]] = {id: [] for id in ids}
    taken: dict[str, set[ClientId]] = defaultdict(set)
    dealt: dict[tuple[str, str | None], float] = defaultdict(float)
    for place, shift in enumerate(shifts):
        known = {
            UNCHANGED,
            *(
                _name(earlier, shifts)
                for earlier in range(place)
                if shifts[earlier].changes_concept
            ),
        }
        if shift.among is not None and shift.among not in known:
            raise SettingError(
                "among must name the concept of an earlier shift, got "
                f"{shift.among!r}{nearest(shift.among, known)}"
            )
        if shift.share_of == "examples":
            for id in ids:
                chosen[id].append(place)
            continue
        order = [
            ids[position] for position in key.child(shift.family).permutation(len(ids)).tolist()
        ]
        pool = [id for id in order if shift.among in (None, _group(chosen[id], shifts, "concept"))]
        free = [id for id in pool if id not in taken[shift.family]]
        # Cut at rounded cumulative shares, so that shares of a quarter each always fit.
        before = dealt[shift.family, shift.among]
        after = dealt[shift.family, shift.among] = before + shift.share
        count = round(after * len(pool)) - round(before * len(pool))
        if after > 1 + 1e-9 or count > len(free):
            raise SettingError(
                f"the shares of {shift.family} shifts must sum to <= 1, got {after:g}"
            )
        for id in free[:count]:
            chosen[id].append(place)
            taken[shift.family].add(id)
    return chosen


def _make_client(
    id: ClientId,
    data: Dataset,
    places: np.ndarray,
    scenario: Scenario,
    chosen: Sequence[int],
    key: Key,
) -> list[Parts]:
    """A client's splits, first as they are at the start and then from each round on in which a
    shift begins.
    """
    phases = []
    for start in (0, *_starts(scenario.shifts)):
        arrays = data.train.take(places)
        for place in chosen:
            shift = scenario.shifts[place]
            if (shift.from_round or 0) <= start:
                arrays = shift.apply(
                    arrays,
                    data.num_classes,
                    key.child("shift", place),
                    key.child("shift", place, id),
                )
        phases.append(_split(arrays, scenario.split, key.child("split", id)))
    return phases


def _starts(shifts: Sequence[Shift]) -> list[int]:
    return sorted({shift.from_round for shift in shifts if shift.from_round is not None})


def _groups(
    assignment: Assignment, chosen: Mapping[ClientId, Sequence[int]], shifts: Sequence[Shift]
) -> dict[ClientId, dict[str, str]]:
    """The true group of every client, by the kind of difference."""
    families = [*{shift.family: None for shift in shifts if shift.share_of == "clients"}, "concept"]
    groups = {
        id: {family: _group(own, shifts, family) for family in families}
        for id, own in chosen.items()
    }
    for id, group in assignment.groups.items():
        groups[id]["partition"] = group
    return groups


def _group(chosen: Sequence[int], shifts: Sequence[Shift], family: str) -> str:
    def fits(shift: Shift) -> bool:
        return shift.changes_concept if family == "concept" else shift.family == family

    own = (place for place in chosen if shifts[place].share_of == "clients" and fits(shifts[place]))
    return next((_name(place, shifts) for place in own), UNCHANGED)


def _name(place: int, shifts: Sequence[Shift]) -> str:
    """A shift's group; two that draw a permutation each are two groups."""
    shift = shifts[place]
    drawn = isinstance(shift, Joint) or (isinstance(shift, LabelMap) and shift.map == "random")
    earlier = sum(other.group == shift.group for other in shifts[:place])
    return f"{shift.group}-{earlier + 1}" if drawn and earlier else shift.group


def _split(arrays: Arrays, shares: tuple[float, float, float], key: Key) -> Parts:
    """Validation and test are rounded down, so that even a single example is there to train on."""
    size = len(arrays.y)
    validation, test = int(size * shares[1] + 1e-9), int(size * shares[2] + 1e-9)
    order = key.numpy().permutation(size)
    train_end = size - validation - test
    cuts = np.split(order, [train_end, train_end + validation])
    return arrays.take(cuts[0]), arrays.take(cuts[1]), arrays.take(cuts[2])


def _standardised(parts: Parts, standard: Standard) -> Parts:
    train, validation, test = (standard.apply(part) for part in parts)
    return train, validation, test


def _test_clients(
    data: Dataset, scenario: Scenario, key: Key, concepts: set[str]
) -> tuple[dict[ClientId, Parts], dict[ClientId, dict[str, str]]]:
    """A client per concept, with the test set under its label map: one half to adapt on, one to be
    tested on.
    """
    if not len(data.test.y):
        return {}, {}
    order = key.child("held-out").numpy().permutation(len(data.test.y))
    halves = np.split(order, [len(order) // 2])
    clients, groups = {}, {}
    for concept in sorted(concepts):
        id = f"held-out-{concept}"
        made = [
            (place, shift)
            for place, shift in enumerate(scenario.shifts)
            if _makes(place, scenario.shifts, concept)
        ]
        adapt, test = (data.test.take(half) for half in halves)
        for place, shift in made[:1]:
            keys = key.child("shift", place), key.child("shift", place, id)
            adapt, test = (shift.change(part, data.num_classes, *keys) for part in (adapt, test))
        clients[id], groups[id] = (adapt, test.take(np.arange(0)), test), {"concept": concept}
    return clients, groups


def _makes(place: int, shifts: Sequence[Shift], concept: str) -> bool:
    shift = shifts[place]
    return shift.changes_concept and shift.share_of == "clients" and _name(place, shifts) == concept
