"""Partitions: who gets which examples. Each is named for what it really does, as "Dirichlet" means
several things.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import ClientId, Count, CountOrZero, DataError, Key, Positive, Settings
from ..data import Dataset

MAX_DRAWS = 1000  # before a partition is given up


class Assignment(NamedTuple):
    """The indices of each client's training examples, its true group where the partition makes
    groups, and who is held out.
    """

    indices: dict[ClientId, np.ndarray]
    groups: dict[ClientId, str] = {}  # noqa: RUF012 - never changed
    held_out: tuple[ClientId, ...] = ()


@dataclass(frozen=True)
class Partition(Settings, ABC):
    about: ClassVar[str]
    needs_clients: ClassVar[bool] = True  # whether the number of clients must be given
    needs_classes: ClassVar[bool] = True  # whether who gets an example depends on its class

    @abstractmethod
    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        """Which training examples go to whom; no example goes to two clients."""


@dataclass(frozen=True)
class Iid(Partition):
    """Equal shares of a random order."""

    about: ClassVar[str] = "equal random shares"
    needs_classes: ClassVar[bool] = False

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        count = _check_count(data, clients)
        return _name_clients(np.array_split(key.numpy().permutation(len(data.train.y)), count))


@dataclass(frozen=True)
class DirichletByClient(Partition):
    """Each client's class mix is drawn from Dir(alpha, ..., alpha); equal sizes."""

    about: ClassVar[str] = "each client's class mix ~ Dir(alpha, ..., alpha), equal sizes"

    alpha: Positive = 0.5

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        def mix(remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return rng.dirichlet(np.full(len(remaining), self.alpha))

        return _draw_by_mix(data, _check_count(data, clients), mix, key)


@dataclass(frozen=True)
class Lda(Partition):
    """Each client's class mix is drawn from Dir(alpha * p), p the proportions of what is left;
    equal sizes.

    What FedConceptEM's experiments call LDA: as p sums to 1, alpha = 1 over ten classes means about
    0.1 per class.
    """

    about: ClassVar[str] = (
        "each client's class mix ~ Dir(alpha * remaining class proportions), equal sizes"
    )

    alpha: Positive = 1.0

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        def mix(remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            left = remaining > 0
            drawn = np.zeros(len(remaining))
            drawn[left] = rng.dirichlet(self.alpha * remaining[left] / remaining.sum())
            return drawn

        return _draw_by_mix(data, _check_count(data, clients), mix, key)


@dataclass(frozen=True)
class Natural(Partition):
    """As the data came: by writer, hospital, domain, or as they were generated."""

    about: ClassVar[str] = "by writer, hospital, domain, or as generated"
    needs_clients: ClassVar[bool] = False
    needs_classes: ClassVar[bool] = False

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        if data.owners is None:
            raise DataError(
                "the partition 'natural' needs data that say whose each example is, got data that "
                "do not"
            )
        indices = _group_by_owner(data.owners)
        if clients is None:
            return Assignment(indices, dict(data.groups))
        if clients > len(indices):
            raise DataError(
                f"scenario.clients must be <= {len(indices)}, the owners in these data, got "
                f"{clients}"
            )
        ids = list(indices)
        drawn = key.numpy().permutation(len(ids))[:clients].tolist()
        chosen = {ids[number]: indices[ids[number]] for number in sorted(drawn)}
        return Assignment(chosen, {id: data.groups[id] for id in chosen if id in data.groups})


@dataclass(frozen=True)
class DirichletByClass(Partition):
    """NIID-Bench: each class is dealt out by Dir(alpha) over clients; who has N/n already gets no
    more of it.
    """

    about: ClassVar[str] = (
        "each class dealt over clients by Dir(alpha), at most about N/n each (NIID-Bench)"
    )

    alpha: Positive = 0.5
    smallest: Count = 10  # redrawn until every client has so many

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        count = _check_count(data, clients, self.smallest)
        fair = len(data.train.y) / count

        def draw(rng: np.random.Generator) -> list[np.ndarray]:
            parts: list[list[int]] = [[] for _ in range(count)]
            for label in range(data.num_classes):
                indices = rng.permutation(np.flatnonzero(data.train.y == label))
                shares = rng.dirichlet(np.full(count, self.alpha)) * [
                    len(part) < fair for part in parts
                ]
                cuts = (np.cumsum(shares / shares.sum()) * len(indices)).astype(int)[:-1]
                for part, more in zip(parts, np.split(indices, cuts), strict=True):
                    part.extend(more.tolist())
            return [np.array(part, dtype=int) for part in parts]

        return _name_clients(_redraw(draw, self.smallest, key))


@dataclass(frozen=True)
class MixtureWeights(Partition):
    """FedEM and FedGMM: every class is a multinomial over clients, with weights from Dir(alpha)."""

    about: ClassVar[str] = (
        "each class a multinomial over clients with weights ~ Dir(alpha) (FedEM, FedGMM)"
    )

    alpha: Positive = 0.4
    smallest: Count = 2  # redrawn until every client has so many

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        count = _check_count(data, clients, self.smallest)
        kinds = _group_by_number(data.train.y, data.num_classes)
        return _deal_by_weights(kinds, count, self.alpha, self.smallest, key)


@dataclass(frozen=True)
class PartWeights(Partition):
    """FedGMM's joint shift: every part of the pool, as it was or changed by a shift, is a
    multinomial over clients, with weights from Dir(alpha). So clients differ in how much they have
    of each part.
    """

    about: ClassVar[str] = (
        "each part of the pool, unchanged or shifted, a multinomial over clients with weights ~ "
        "Dir(alpha) (FedGMM)"
    )
    needs_classes: ClassVar[bool] = False

    alpha: Positive = 0.4
    by_class: bool = False  # every class of a part has weights of its own
    smallest: Count = 2  # redrawn until every client has so many

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        if data.parts is None:
            raise DataError(
                "the partition 'part-weights' needs a shift with share_of = \"pool\", got none"
            )
        if self.by_class and not data.num_classes:
            raise DataError(
                "scenario.partition.by_class must be false where targets are no classes, got true"
            )
        count = _check_count(data, clients, self.smallest)
        numbers = data.parts * data.num_classes + data.train.y if self.by_class else data.parts
        kinds = _group_by_number(numbers, int(numbers.max()) + 1)
        return _deal_by_weights(kinds, count, self.alpha, self.smallest, key)


@dataclass(frozen=True)
class LabelsPerClient(Partition):
    """#C=k: client i holds label i mod C and k-1 further ones, or those that are given for it;
    a label's examples are split equally among its holders.
    """

    about: ClassVar[str] = "each client holds exactly `labels` labels (#C=k), or those given for it"

    labels: Count | tuple[tuple[CountOrZero, ...], ...] = 2  # k, or a list of labels per client

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        rng = key.numpy()
        held = self._held(data, _check_count(data, clients), rng)
        parts: list[list[int]] = [[] for _ in held]
        for label in range(data.num_classes):
            holders = [client for client, own in enumerate(held) if label in own]
            indices = rng.permutation(np.flatnonzero(data.train.y == label))
            shares = np.array_split(indices, max(len(holders), 1))
            for client, share in zip(holders, shares, strict=False):
                parts[client].extend(share.tolist())
        return _name_clients([np.array(part, dtype=int) for part in parts])

    def _held(self, data: Dataset, count: int, rng: np.random.Generator) -> list[Sequence[int]]:
        """The labels of every client."""
        classes = range(data.num_classes)
        if isinstance(self.labels, tuple):
            known = all(label in classes for own in self.labels for label in own)
            if len(self.labels) != count or not known:
                raise DataError(
                    f"scenario.partition.labels must be a list of labels below {len(classes)} for "
                    f"each of {count} clients, got {[list(own) for own in self.labels]}"
                )
            return list(self.labels)
        if self.labels > len(classes):
            raise DataError(
                f"scenario.partition.labels must be <= {len(classes)}, the classes, got "
                f"{self.labels}"
            )
        held: list[Sequence[int]] = []
        for client in range(count):
            first = client % len(classes)
            others = [label for label in classes if label != first]
            held.append((first, *rng.choice(others, size=self.labels - 1, replace=False).tolist()))
        return held


@dataclass(frozen=True)
class Quantity(Partition):
    """Every client has `smallest` examples; the rest is dealt by Dir(alpha). Labels at random."""

    about: ClassVar[str] = "sizes ~ Dir(alpha) above a smallest one, labels at random"
    needs_classes: ClassVar[bool] = False

    alpha: Positive = 0.5
    smallest: Count = 10

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        count, rng = _check_count(data, clients, self.smallest), key.numpy()
        rest = len(data.train.y) - count * self.smallest
        shares = np.cumsum(rng.dirichlet(np.full(count, self.alpha)))[:-1]
        cuts = (shares * rest).astype(int) + self.smallest * np.arange(1, count)
        return _name_clients(np.split(rng.permutation(len(data.train.y)), cuts))


@dataclass(frozen=True)
class Pachinko(Partition):
    """FedEM's CIFAR-100: a client's mix of coarse labels ~ Dir(coarse_alpha), of fine labels within
    each ~ Dir(fine_alpha).
    """

    about: ClassVar[str] = (
        "coarse labels ~ Dir(coarse_alpha), fine labels within ~ Dir(fine_alpha), equal sizes"
    )

    coarse_alpha: Positive = 0.4
    fine_alpha: Positive = 10.0

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        if data.coarse is None:
            raise DataError(
                "the partition 'pachinko' needs data with coarse labels, such as cifar100, got "
                "data without"
            )
        coarse = data.coarse

        def mix(remaining: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            weights = np.zeros(len(remaining))
            for group, share in enumerate(
                rng.dirichlet(np.full(coarse.max() + 1, self.coarse_alpha))
            ):
                inside = coarse == group
                weights[inside] = share * rng.dirichlet(np.full(int(inside.sum()), self.fine_alpha))
            return weights

        return _draw_by_mix(data, _check_count(data, clients), mix, key)


@dataclass(frozen=True)
class Groups(Partition):
    """Clients in groups, each group with a class mix of its own; the clients of the last groups are
    held out (FedVC).
    """

    about: ClassVar[str] = (
        "clients in groups with a class mix each ~ Dir(alpha); the last groups are held out (FedVC)"
    )

    groups: Count = 5
    held_out_groups: CountOrZero = 2
    alpha: Positive = 0.5

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        count = _check_count(data, clients)
        if self.held_out_groups >= self.groups or self.groups > count:
            bounds = f"> held_out_groups ({self.held_out_groups}) and <= clients ({count})"
            rule = f"scenario.partition.groups must be {bounds}"
            raise DataError(f"{rule}, got {self.groups}")
        mixes = (
            key.child("mixes")
            .numpy()
            .dirichlet(np.full(data.num_classes, self.alpha), size=self.groups)
        )
        group_of = np.sort(np.arange(count) % self.groups)
        indices = _name_clients(_draw_exactly(data, mixes[group_of], key)).indices
        groups = {id: f"group-{group + 1}" for id, group in zip(indices, group_of, strict=True)}
        first_held_out = self.groups - self.held_out_groups
        held_out = tuple(
            id for id, group in zip(indices, group_of, strict=True) if group >= first_held_out
        )
        return Assignment(indices, groups, held_out)


@dataclass(frozen=True)
class Domains(Partition):
    """Several clients per domain, some of them held out, and held-out clients with all domains
    mixed (FedVC, Digit-5).
    """

    about: ClassVar[str] = (
        "clients per domain with even classes, some held out, and mixed held-out clients (FedVC)"
    )
    needs_clients: ClassVar[bool] = False

    per_domain: Count = 5
    held_out_per_domain: CountOrZero = 1
    mixed: CountOrZero = 5

    def assign(self, data: Dataset, clients: int | None, key: Key) -> Assignment:
        if data.owners is None:
            raise DataError(
                "the partition 'domains' needs data of several domains, such as digit-domains, got "
                "one"
            )
        rng = key.numpy()
        indices: dict[ClientId, np.ndarray] = {}
        groups: dict[ClientId, str] = {}
        held_out: list[ClientId] = []
        pools: list[list[np.ndarray]] = [[] for _ in range(self.mixed)]
        for domain, of_domain in _group_by_owner(data.owners).items():
            count = self.per_domain + self.held_out_per_domain
            # One share more per domain is dealt to the mixed clients.
            shares = _even_shares(of_domain, data.train.y, count + (self.mixed > 0), rng)
            for number in range(count):
                id = f"{domain}-{number}"
                indices[id], groups[id] = shares[number], domain
                if number >= self.per_domain:
                    held_out.append(id)
            for pool, more in zip(
                pools, _even_shares(shares[-1], data.train.y, self.mixed, rng), strict=False
            ):
                pool.append(more)
        for number, pool in enumerate(pools):
            id = f"mixed-{number}"
            indices[id], groups[id] = np.concatenate(pool), "mixed"
            held_out.append(id)
        return Assignment(indices, groups, tuple(held_out))


PARTITIONS: dict[str, type[Partition]] = {
    "dirichlet-by-class": DirichletByClass,
    "dirichlet-by-client": DirichletByClient,
    "domains": Domains,
    "groups": Groups,
    "iid": Iid,
    "labels-per-client": LabelsPerClient,
    "lda": Lda,
    "mixture-weights": MixtureWeights,
    "natural": Natural,
    "pachinko": Pachinko,
    "part-weights": PartWeights,
    "quantity": Quantity,
}


def _check_count(data: Dataset, clients: int | None, smallest: int = 1) -> int:
    if clients is None:
        raise DataError("scenario.clients must be given for this partition, got none")
    if clients * smallest > len(data.train.y):
        each = "" if smallest == 1 else f" by {smallest}, the smallest client"
        raise DataError(
            f"scenario.clients must be <= {len(data.train.y) // smallest}, the number of examples"
            f" ({len(data.train.y)}){each and ' divided'}{each}, got {clients}"
        )
    return clients


def _name_clients(parts: Sequence[np.ndarray]) -> Assignment:
    width = len(str(len(parts) - 1))
    return Assignment(
        {f"client-{number:0{width}d}": np.sort(part) for number, part in enumerate(parts)}
    )


def _group_by_owner(owners: np.ndarray) -> dict[ClientId, np.ndarray]:
    """The indices of every owner's examples, in the order of the owners' names."""
    numbers: dict[str, int] = {}
    of_example = [numbers.setdefault(owner, len(numbers)) for owner in owners.tolist()]
    groups = _group_by_number(np.array(of_example, dtype=int), len(numbers))
    return {str(owner): groups[numbers[owner]] for owner in sorted(numbers)}


def _group_by_number(numbers: np.ndarray, count: int) -> list[np.ndarray]:
    """For each of 0..count-1 the indices at which it stands, without a pass over all per group."""
    sizes = np.bincount(numbers, minlength=count)
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(sizes)[:-1])


def _redraw(
    draw: Callable[[np.random.Generator], list[np.ndarray]], smallest: int, key: Key
) -> list[np.ndarray]:
    """The first draw in which every client has `smallest` examples."""
    for attempt in range(MAX_DRAWS):
        parts = draw(key.child(attempt).numpy())
        if min(len(part) for part in parts) >= smallest:
            return parts
    raise DataError(
        f"every client must get at least {smallest} examples, got fewer in each of {MAX_DRAWS} "
        "draws: take fewer clients, a larger alpha or a lower scenario.partition.smallest"
    )


def _deal_by_weights(
    kinds: Sequence[np.ndarray], count: int, alpha: float, smallest: int, key: Key
) -> Assignment:
    """Every kind of examples is a multinomial over clients with weights from Dir(alpha)."""

    def draw(rng: np.random.Generator) -> list[np.ndarray]:
        owner = np.empty(sum(map(len, kinds)), dtype=int)
        for indices in kinds:
            owner[indices] = rng.choice(
                count, size=len(indices), p=rng.dirichlet(np.full(count, alpha))
            )
        return _group_by_number(owner, count)

    return _name_clients(_redraw(draw, smallest, key))


def _even_shares(
    indices: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """`count` equal shares of `indices`, each class spread evenly over them."""
    if count == 0:
        return []
    by_class = np.concatenate(
        [rng.permutation(indices[labels[indices] == label]) for label in np.unique(labels[indices])]
    )
    return [by_class[start::count] for start in range(count)]


def _draw_exactly(data: Dataset, mixes: np.ndarray, key: Key) -> list[np.ndarray]:
    """As many examples for each client, by its row of `mixes`, as there are before a class runs
    out; the rest is left over.
    """
    sizes = np.bincount(data.train.y, minlength=data.num_classes)
    wanted = mixes.sum(axis=0)
    size = int((sizes[wanted > 0] / wanted[wanted > 0]).min())
    if size < 1:
        raise DataError(
            "every group's class mix must be met by the examples there are, got too few: take "
            "fewer clients"
        )
    rng = key.numpy()
    pools = [
        iter(rng.permutation(np.flatnonzero(data.train.y == label)))
        for label in range(data.num_classes)
    ]
    counts = np.maximum(np.floor(size * mixes).astype(int), 0)
    counts[np.arange(len(mixes)), mixes.argmax(axis=1)] += (
        counts.sum(axis=1) == 0
    )  # nobody is left without
    return [
        np.array(
            [index for pool, n in zip(pools, row, strict=True) for index in islice(pool, int(n))],
            dtype=int,
        )
        for row in counts
    ]


def _draw_by_mix(
    data: Dataset,
    clients: int,
    mix: Callable[[np.ndarray, np.random.Generator], np.ndarray],
    key: Key,
) -> Assignment:
    """Equal sizes, drawn without replacement by a class mix of each client's own; where a class
    runs out, by the rest.
    """
    rng = key.numpy()
    pools = [
        rng.permutation(np.flatnonzero(data.train.y == label)) for label in range(data.num_classes)
    ]
    used = np.zeros(data.num_classes, dtype=int)
    sizes = np.array([len(pool) for pool in pools])
    parts = []
    for share in np.array_split(np.arange(len(data.train.y)), clients):
        weights, counts = mix(sizes - used, rng), np.zeros(data.num_classes, dtype=int)
        while (missing := len(share) - counts.sum()) > 0:
            left = sizes - used - counts
            weights = np.where(left > 0, weights, 0.0)
            if weights.sum() <= 0:  # the mix holds only classes that have run out
                weights = left.astype(float)
            counts += np.minimum(rng.multinomial(missing, weights / weights.sum()), left)
        parts.append(
            np.concatenate(
                [pool[at : at + n] for pool, at, n in zip(pools, used, counts, strict=True)]
            )
        )
        used += counts
    return _name_clients(parts)
