"""From a data set and a scenario to a federation."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pydantic import InstanceOf

from ..core import ClientId, Count, Fraction, Key, Probability, SettingError, Settings
from ..core.settings import nearest, received
from ..data import Arrays, ArraySplits, Dataset, Federation, Preprocessing
from ..data.standardise import Moments
from .partition import PARTITIONS, Assignment, Iid, Natural, Partition
from .shift import UNCHANGED, Joint, LabelMap, Shift

CONCEPT = "concept"  # the kind of difference that makes another P(y|x)
Split = tuple[Probability, Probability, Probability]
# a client's splits by the training round from which on they hold: 0, and those in which a shift
# begins
Phases = dict[int, ArraySplits]


@dataclass(frozen=True)
class Scenario(Settings):
    """The `[scenario]` section of a run file."""

    clients: Count | None = None  # may be left out where the data themselves say whose they are
    partition: InstanceOf[Partition] = Iid()  # noqa: RUF009 - frozen
    shifts: tuple[InstanceOf[Shift], ...] = ()
    # train, validation, test of every client
    split: Split = (0.7, 0.1, 0.2)
    # those of held-out clients, which adapt to the first; left out, they are as `split`
    hold_out_split: Split | None = None
    # share of the clients that take no part in training and stand for new ones, or their names
    hold_out: Fraction | tuple[str, ...] = 0.0
    # of the official test set: what new clients made from it may adapt on; the rest tests them
    adapt_share: Fraction = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, split in (("split", self.split), ("hold_out_split", self.hold_out_split)):
            if split is not None and (abs(sum(split) - 1) > 1e-6 or split[0] == 0):
                raise SettingError(
                    f"{name} must be three shares that sum to 1, the first above 0, got "
                    f"{list(split)}"
                )


@dataclass(frozen=True)
class NamedShift:
    """A shift of the scenario, and what it is known by."""

    index: int  # in the scenario's list; its random draws depend on it
    shift: Shift
    group: str  # the name of the true group of its clients

    def belongs_to(self, family: str) -> bool:
        """Whether it makes true groups of clients in a family of shifts, or in "concept"."""
        if self.shift.share_of != "clients":
            return False
        return self.shift.changes_concept if family == CONCEPT else self.shift.family == family

    def keys(self, key: Key, id: ClientId) -> tuple[Key, Key]:
        """For draws that are the same for all its clients, and for those of one client."""
        return key.child("shift", self.index), key.child("shift", self.index, id)

    def is_active(self, round: int) -> bool:
        return (self.shift.from_round or 0) <= round


def build_federation(
    data: Dataset, scenario: Scenario, key: Key, *, standardise: bool = False
) -> Federation:
    """Participants from the training examples.

    Held-out clients, which stand for new ones, are those that the partition or `hold_out` sets
    aside; where nobody is set aside they are made from the official test set, one per concept.
    """
    _require_classes(data, scenario)
    if data.groups and not isinstance(scenario.partition, Natural):
        raise SettingError(
            "data.group is about clients as the data have them, and must be left out with another "
            f"partition than natural, got {type(scenario.partition).__name__}"
        )
    shifts = _name_shifts(scenario.shifts)
    data = _change_pool(data, shifts, key)
    assignment = _hold_out(
        scenario.partition.assign(data, scenario.clients, key.child("partition")), scenario, key
    )
    set_aside = set(assignment.held_out)
    rows = [rows for id, rows in assignment.indices.items() if id not in set_aside]
    data = data.with_categories_of(np.concatenate(rows))
    chosen = _choose_clients(sorted(assignment.indices), shifts, key.child("shifts"))
    groups = _true_groups(assignment, chosen, shifts)
    clients: dict[ClientId, Phases] = {}
    for id, indices in assignment.indices.items():
        new_split = scenario.hold_out_split if id in set_aside else None
        split = new_split or scenario.split
        clients[id] = _make_client(id, data, indices, split, scenario.shifts, chosen[id], key)
    held_out_ids = assignment.held_out
    if not held_out_ids:
        concepts = {group[CONCEPT] for group in groups.values()}
        test_clients = _make_test_clients(data, shifts, concepts, scenario.adapt_share, key)
        test_groups = {_test_client_id(concept): {CONCEPT: concept} for concept in concepts}
        groups |= {id: group for id, group in test_groups.items() if id in test_clients}
        clients |= test_clients
        held_out_ids = tuple(test_clients)
    participants = [id for id in assignment.indices if id not in set_aside]
    train = [clients[id][0].train for id in sorted(participants)]
    preprocessing = _preprocessing(data, train, standardise=standardise)
    del train
    prepared: dict[ClientId, Phases] = {}
    for id in list(clients):  # one by one, so that there are never two copies of all
        phases = clients.pop(id).items()
        prepared[id] = {start: splits.map(preprocessing.standardise) for start, splits in phases}
    federation = Federation.build(
        {id: prepared[id][0] for id in participants},
        {id: prepared[id][0] for id in held_out_ids},
        data.num_classes,
        groups,
        preprocessing,
        later={id: list(phases.items())[1:] for id, phases in prepared.items() if len(phases) > 1},
    )
    return replace(federation, notices=(*data.notices, *_notices(data, scenario)))


def split_alone(id: ClientId, data: Dataset, scenario: Scenario, key: Key) -> ArraySplits:
    """The splits of a client that has all of `data`, as `build_federation` makes them of a client
    of the data's own.
    """
    rows = np.arange(len(data.train.y))
    return _make_client(id, data, rows, scenario.split, (), (), key)[0]


def _notices(data: Dataset, scenario: Scenario) -> Iterator[str]:
    for name in ("split", "hold_out_split"):
        split = getattr(scenario, name)
        if data.split is not None and split != getattr(Scenario, name):
            yield (
                f"scenario.{name} = {list(split)} is without effect: the column that "
                "data.split names says what every row is for"
            )


def _require_classes(data: Dataset, scenario: Scenario) -> None:
    """Refuse a partition or shift that is about classes where targets are none."""
    if data.num_classes:
        return
    if scenario.partition.needs_classes:
        able = ", ".join(name for name, kind in PARTITIONS.items() if not kind.needs_classes)
        raise SettingError(
            "scenario.partition must not be about classes where targets are none, got "
            f"{type(scenario.partition).__name__}: others are {able}"
        )
    for shift in scenario.shifts:
        if shift.needs_classes:
            raise SettingError(
                "scenario.shifts must not be about classes where targets are none, got "
                f"{type(shift).__name__}"
            )


def _hold_out(assignment: Assignment, scenario: Scenario, key: Key) -> Assignment:
    """The assignment, with more of its participants held out: a share, or those that are named."""
    ids = sorted(set(assignment.indices) - set(assignment.held_out))
    if isinstance(scenario.hold_out, tuple):
        return _hold_out_named(assignment, ids, scenario.hold_out)
    count = round(scenario.hold_out * len(ids))
    if scenario.hold_out == 0:
        return assignment
    if count == 0:
        raise SettingError(
            f"scenario.hold_out must hold out a client or 0, got {scenario.hold_out} of {len(ids)}"
        )
    if count == len(ids):
        raise SettingError(
            f"scenario.hold_out must leave a client to train with, got {scenario.hold_out} of "
            f"{len(ids)}"
        )
    order = key.child("hold-out").permutation(len(ids)).tolist()
    more = sorted(ids[index] for index in order[:count])
    return assignment._replace(held_out=(*assignment.held_out, *more))


def _hold_out_named(
    assignment: Assignment, ids: Sequence[ClientId], names: Sequence[str]
) -> Assignment:
    for name in names:
        if name not in assignment.indices:
            raise SettingError(
                f"scenario.hold_out must name clients, got {received(name)}{nearest(name, ids)}"
            )
    more = sorted(set(names) & set(ids))
    if len(more) == len(ids):
        raise SettingError(
            f"scenario.hold_out must leave a client to train with, got all {len(ids)} of them"
        )
    return assignment._replace(held_out=(*assignment.held_out, *more))


# --- standardisation ------------------------------------------------------------------------------


def _preprocessing(data: Dataset, train: Sequence[Arrays], *, standardise: bool) -> Preprocessing:
    """From sums over the participants' training examples."""
    plain = Preprocessing.plain(data.train.x, data.num_classes, data.train.y)
    has_categories = any(column.categories is not None for column in data.columns)
    read = replace(
        plain,
        classes=data.classes or plain.classes,
        features=data.features,
        targets=(data.targets or plain.targets) if plain.targets else (),
        columns=data.columns if has_categories else (),
        ignored=data.ignored,
        resize=data.resize,
    )
    is_regression = read.kind == "regression"
    return read.with_standards(
        [Moments.of_inputs(part) for part in train] if standardise else [],
        [Moments.of_targets(part) for part in train] if is_regression else [],
    )


# --- shifts of the pool ---------------------------------------------------------------------------


def _change_pool(data: Dataset, shifts: Sequence[NamedShift], key: Key) -> Dataset:
    """The training and the test examples, of which every shift of the pool has changed a part of
    its own.
    """
    pool = [each for each in shifts if each.shift.share_of == "pool"]
    if not pool:
        return data
    total = sum(each.shift.share for each in pool)
    if total > 1 + 1e-9:
        raise SettingError(f"the shares of shifts of the pool must sum to <= 1, got {total:g}")
    train, parts = _change_parts(data.train, pool, data.num_classes, key, "pool-train")
    test, _ = _change_parts(data.test, pool, data.num_classes, key, "pool-test")
    return data._replace(train=train, test=test, parts=parts)


def _change_parts(
    arrays: Arrays, pool: Sequence[NamedShift], num_classes: int, key: Key, name: str
) -> tuple[Arrays, np.ndarray]:
    """The changed examples, and (N,) the number of the part that each is of: 0 is unchanged."""
    size = len(arrays.y)
    ends = [round(share * size) for share in np.cumsum([each.shift.share for each in pool])]
    rows_of_parts = np.split(key.child(name).numpy().permutation(size), ends)[: len(pool)]
    parts = np.zeros(size, dtype=int)
    for number, (each, rows) in enumerate(zip(pool, rows_of_parts, strict=True), start=1):
        parts[rows] = number
        if len(rows):
            keys = each.keys(key, name)
            arrays = each.shift.change_rows(arrays, np.sort(rows), num_classes, *keys)
    return arrays, parts


# --- which client gets which shift ----------------------------------------------------------------


def _name_shifts(shifts: Sequence[Shift]) -> list[NamedShift]:
    """The shifts and the names of their groups; two that draw a permutation each are two groups."""
    results: list[NamedShift] = []
    for index, shift in enumerate(shifts):
        draws = isinstance(shift, Joint) or (isinstance(shift, LabelMap) and shift.map == "random")
        earlier = sum(other.group == shift.group for other in shifts[:index])
        group = f"{shift.group}-{earlier + 1}" if draws and earlier else shift.group
        results.append(NamedShift(index, shift, group))
    return results


def _choose_clients(
    ids: Sequence[ClientId], shifts: Sequence[NamedShift], key: Key
) -> dict[ClientId, list[NamedShift]]:
    """The shifts of each client: within a family, no client gets two."""
    chosen: dict[ClientId, list[NamedShift]] = {id: [] for id in ids}
    # the sum of the shares so far, by family and by the concept that clients are chosen from
    shares: dict[tuple[str, str | None], float] = defaultdict(float)
    for each in shifts:
        shift = each.shift
        _check_among(each, shifts)
        if shift.share_of == "pool":
            receivers = []
        elif shift.share_of == "examples":
            receivers = list(ids)
        else:
            order = key.child(shift.family).permutation(len(ids)).tolist()
            pool = [
                ids[index]
                for index in order
                if shift.among in (None, _true_group(chosen[ids[index]], CONCEPT))
            ]
            before = shares[shift.family, shift.among]
            shares[shift.family, shift.among] = before + shift.share
            receivers = _draw_share(shift, pool, before, chosen)
        for id in receivers:
            chosen[id].append(each)
    return chosen


def _check_among(chosen: NamedShift, shifts: Sequence[NamedShift]) -> None:
    earlier = (each for each in shifts[: chosen.index] if each.shift.changes_concept)
    concepts = {UNCHANGED, *(each.group for each in earlier)}
    among = chosen.shift.among
    if among is not None and among not in concepts:
        raise SettingError(
            f"among must name the concept of an earlier shift, got {among!r}"
            f"{nearest(among, concepts)}"
        )


def _draw_share(
    shift: Shift,
    pool: Sequence[ClientId],
    before: float,
    chosen: Mapping[ClientId, Sequence[NamedShift]],
) -> list[ClientId]:
    """The shift's share of the pool, from clients that have no shift of its family yet; `before` is
    the sum of the shares that earlier shifts got.
    """
    after = before + shift.share
    # Cut at rounded cumulative shares, so that shares of a quarter each always fit.
    count = round(after * len(pool)) - round(before * len(pool))
    free = [id for id in pool if not _has_family(chosen[id], shift.family)]
    if after > 1 + 1e-9 or count > len(free):
        raise SettingError(f"the shares of {shift.family} shifts must sum to <= 1, got {after:g}")
    return free[:count]


def _has_family(chosen: Sequence[NamedShift], family: str) -> bool:
    return any(each.shift.family == family and each.shift.share_of == "clients" for each in chosen)


def _true_groups(
    assignment: Assignment,
    chosen: Mapping[ClientId, Sequence[NamedShift]],
    shifts: Sequence[NamedShift],
) -> dict[ClientId, dict[str, str]]:
    """The true group of every client, by the kind of difference."""
    by_client = (each.shift.family for each in shifts if each.shift.share_of == "clients")
    families = tuple(dict.fromkeys((*by_client, CONCEPT)))
    alike: dict[tuple[str, ...], dict[str, str]] = {}  # one object for all clients that are
    groups = {}
    for id, own_shifts in chosen.items():
        group = {family: _true_group(own_shifts, family) for family in families}
        if id in assignment.groups:
            group["partition"] = assignment.groups[id]
        groups[id] = alike.setdefault((*group, *group.values()), group)
    return groups


def _true_group(chosen: Sequence[NamedShift], family: str) -> str:
    return next((each.group for each in chosen if each.belongs_to(family)), UNCHANGED)


# --- the examples of a client ---------------------------------------------------------------------


def _make_client(
    id: ClientId,
    data: Dataset,
    indices: np.ndarray,
    split: Split,
    shifts: Sequence[Shift],
    chosen: Sequence[NamedShift],
    key: Key,
) -> Phases:
    order, ends = _split_rows(data, indices, split, key.child("split", id))
    phases = {}
    for start in (0, *_starts(shifts)):
        active = [each for each in chosen if each.is_active(start)]
        arrays = _apply(active, data.train.take(indices), data.num_classes, key, id)
        phases[start] = _split(arrays, order, ends)
    return phases


def _apply(
    shifts: Sequence[NamedShift], arrays: Arrays, num_classes: int, key: Key, id: ClientId
) -> Arrays:
    for each in shifts:
        arrays = each.shift.apply(arrays, num_classes, *each.keys(key, id))
    return arrays


def _starts(shifts: Sequence[Shift]) -> list[int]:
    """The training rounds in which shifts begin."""
    return sorted({shift.from_round for shift in shifts if shift.from_round is not None})


def _split_rows(
    data: Dataset, indices: np.ndarray, shares: tuple[float, float, float], key: Key
) -> tuple[np.ndarray, list[int]]:
    """The order in which a client's rows go to train, validation and test, and where the first two
    end. Validation and test are rounded down, so that even a single example is there to train on.
    """
    size = len(indices)
    if data.split is not None:
        split = data.split[indices]
        ends = np.searchsorted(np.sort(split), (1, 2)).tolist()
        return np.argsort(split, kind="stable"), ends
    validation, test = int(size * shares[1] + 1e-9), int(size * shares[2] + 1e-9)
    train_end = size - validation - test
    if data.time is not None:
        order = np.argsort(data.time[indices], kind="stable")
    else:
        order = key.numpy().permutation(size)
    return order, [train_end, train_end + validation]


def _split(arrays: Arrays, order: np.ndarray, ends: Sequence[int]) -> ArraySplits:
    return ArraySplits(*(arrays.take(cut) for cut in np.split(order, ends)))


def _test_client_id(concept: str) -> ClientId:
    return f"held-out-{concept}"


def _make_test_clients(
    data: Dataset,
    shifts: Sequence[NamedShift],
    concepts: Iterable[str],
    adapt_share: float,
    key: Key,
) -> dict[ClientId, Phases]:
    """A client per concept, with the test set under its label map and under the shifts that every
    client has: a share to adapt on, the rest to be tested on.
    """
    size = len(data.test.y)
    if not size:
        return {}
    end = int(size * adapt_share + 1e-9)
    order = key.child("held-out").numpy().permutation(size)
    of_all = [each for each in shifts if each.shift.share_of == "examples"]
    clients = {}
    for concept in sorted(concepts):
        id = _test_client_id(concept)
        makers = [each for each in shifts if each.belongs_to(CONCEPT) and each.group == concept]
        phases = {}
        for start in (0, *_starts([each.shift for each in of_all])):
            # The concept is there from the beginning, whenever participants come to have it.
            own = [*makers[:1], *(each for each in of_all if each.is_active(start))]
            own.sort(key=lambda each: each.index)
            arrays = _apply(own, data.test, data.num_classes, key, id)
            phases[start] = _split(arrays, order, [end, end])
        clients[id] = phases
    return clients
