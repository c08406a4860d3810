"""Federation: the clients of a problem and their train, validation and test examples, in a few
large tensors.

All examples stand in one tensor, each client's splits one after the other, so that worker processes
can share them without a copy per client.
"""

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ClientId, DataError, Examples, Scale
from ..core.objective import Kind
from .arrays import Arrays, network_shape, target_rows
from .bounds import Bounds, BoundsTable
from .preprocessing import Preprocessing, target_type
from .row_splits import SPLIT_NAMES
from .text import quote

POOLED = "pooled"
QUANTILES = (0, 0.25, 0.5, 0.75, 1)  # of numbers that are predicted, as reports show them


class Splits(NamedTuple):
    """One client's examples."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Federation:
    """Participants, and held-out clients that only measure how well new clients are served.

    `bounds[id]` are the indices in `x` and `y` between which the client's three splits lie. A
    held-out client's train split is what it may adapt on. `groups[id]` names the true group of a
    client by the kind of difference, for instance `{"concept": "reverse"}`. `later[id]` are the
    bounds that hold from a training round on, where a client's data drift. `pooled_id` is the
    client that holds all participants' training examples, where there is one.
    """

    x: Tensor
    y: Tensor
    bounds: Mapping[ClientId, Bounds]
    participants: tuple[ClientId, ...]
    held_out: tuple[ClientId, ...]
    num_classes: int
    preprocessing: Preprocessing
    groups: Mapping[ClientId, Mapping[str, str]] = field(default_factory=dict)
    later: Mapping[ClientId, tuple[tuple[int, Bounds], ...]] = field(default_factory=dict)
    scale: Scale | None = None  # of images that are standardised
    pooled_id: ClientId | None = None
    notices: tuple[str, ...] = ()  # sentences on what a user should know of the data

    @classmethod
    def build(
        cls,
        participants: Mapping[ClientId, Sequence[Arrays]],
        held_out: Mapping[ClientId, Sequence[Arrays]],
        num_classes: int,
        groups: Mapping[ClientId, Mapping[str, str]] | None = None,
        preprocessing: Preprocessing | None = None,
        later: Mapping[ClientId, Sequence[tuple[int, Sequence[Arrays]]]] | None = None,
    ) -> "Federation":
        """From (train, validation, test) arrays per client; `later` gives those that hold from a
        training round on.
        """
        _check_clients(participants, held_out)
        parts: list[Arrays] = []
        end = 0

        def append(splits: Sequence[Arrays]) -> Bounds:
            nonlocal end
            first, second, third = (len(split.y) for split in splits)
            start = end
            end = start + first + second + third
            parts.extend(splits)
            return start, start + first, start + first + second, end

        bounds = {id: append(splits) for id, splits in {**participants, **held_out}.items()}
        drift = {
            id: tuple((start, append(splits)) for start, splits in phases)
            for id, phases in (later or {}).items()
        }
        for id, phases in drift.items():
            for start, (first, second, *_) in phases:
                if first == second and id in participants:
                    raise DataError(
                        f"client {quote(id)}: must have at least one training example from "
                        f"training round {start} on, got none"
                    )
        joined = Arrays.join(parts)
        if preprocessing is None:
            preprocessing = Preprocessing.plain(joined.x, num_classes, joined.y)
        _check_values(joined, preprocessing.kind, num_classes, bounds, drift)
        return cls(
            x=torch.from_numpy(np.ascontiguousarray(joined.x)),
            y=torch.from_numpy(joined.y.astype(target_type(preprocessing.kind))),
            bounds=BoundsTable(bounds),
            participants=tuple(sorted(participants)),
            held_out=tuple(sorted(held_out)),
            num_classes=num_classes,
            preprocessing=preprocessing,
            groups=dict(groups or {}),
            later=drift,
            scale=preprocessing.scale,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """As a network sees one example: (C, H, W) for images."""
        return network_shape(self.x.shape[1:])

    @property
    def kind(self) -> Kind:
        """What targets are: classes, numbers or several labels."""
        return self.preprocessing.kind

    @property
    def population(self) -> tuple[ClientId, ...]:
        """Who is asked in training: the participants, or the one that holds all their examples."""
        return self.participants if self.pooled_id is None else (self.pooled_id,)

    def splits(self, id: ClientId, round: int = 0) -> Splits:
        """A client's examples as they are in training round `round`."""
        phase = self.phase(id, round)
        bounds = self.later[id][phase - 1][1] if phase else self.bounds[id]
        cuts = itertools.pairwise(bounds)
        return Splits(
            *(
                Examples(self.x[start:stop], self.y[start:stop], scale=self.scale)
                for start, stop in cuts
            )
        )

    def phase(self, id: ClientId, round: int) -> int:
        """How often the client's data have drifted up to training round `round`."""
        return sum(start <= round for start, _ in self.later.get(id, ()))

    def size(self, id: ClientId) -> int:
        """The number of training examples."""
        start, stop = self.bounds[id][:2]
        return stop - start

    def without_test(self) -> tuple[ClientId, ...]:
        """Participants that have no test examples: figures are about the others alone."""
        return tuple(id for id in self.participants if self.bounds[id][2] == self.bounds[id][3])

    def has_validation(self) -> bool:
        """Whether any participant has validation examples."""
        return any(self.bounds[id][1] < self.bounds[id][2] for id in self.participants)

    def share_memory(self) -> None:
        """Move the examples to memory that worker processes can map."""
        for tensor in (self.x, self.y):
            tensor.share_memory_()  # type: ignore[no-untyped-call]

    def balanced_weights(self) -> tuple[float, ...]:
        """Of every class, by the participants' training examples."""
        ranges = np.array([self.bounds[id][:2] for id in self.participants])
        return balanced_weights(_label_counts(self.y.numpy(), ranges, self.num_classes))

    def with_pooled_client(self) -> "Federation":
        """The same, and a client that holds the training examples of all participants.

        It is called POOLED, on which its random draws depend, unless another client is.
        """
        id = next(name for name in _pooled_names() if name not in self.bounds)
        rounds = sorted({start for phases in self.later.values() for start, _ in phases})
        phases = [
            [self.splits(id, round).train for id in self.participants] for round in (0, *rounds)
        ]
        parts = list(itertools.chain.from_iterable(phases))
        sizes = (sum(len(part) for part in phase) for phase in phases)
        ends = itertools.accumulate(sizes, initial=len(self.y))
        bounds = [(start, stop, stop, stop) for start, stop in itertools.pairwise(ends)]
        return replace(
            self,
            x=torch.cat([self.x, *(part.x for part in parts)]),
            y=torch.cat([self.y, *(part.y for part in parts)]),
            bounds={**self.bounds, id: bounds[0]},
            later={**self.later, id: tuple(zip(rounds, bounds[1:], strict=True))}
            if rounds
            else self.later,
            pooled_id=id,
        )

    def only(self, id: ClientId) -> "Federation":
        """One participant and nobody else: what a node of this client has."""
        if id not in self.participants:
            raise DataError(f"client must be one of the run's, got {quote(id)}")
        phases = self.later.get(id, ())
        bounds = [self.bounds[id], *(each for _, each in phases)]
        ends = itertools.accumulate((stop - start for start, *_, stop in bounds), initial=0)
        moved = [_moved(each, start) for each, start in zip(bounds, ends, strict=False)]
        later = tuple((round, each) for (round, _), each in zip(phases, moved[1:], strict=True))
        rows = torch.cat([torch.arange(start, stop) for start, *_, stop in bounds])
        return replace(
            self,
            x=self.x[rows],
            y=self.y[rows],
            bounds={id: moved[0]},
            participants=(id,),
            held_out=(),
            groups={},
            later={id: later} if later else {},
            pooled_id=None,
            notices=(),
        )

    def fingerprint(self) -> str:
        """sha256 of all that a run's result depends on: another one means other data."""
        total = hashlib.sha256()
        for tensor in (self.x, self.y, *(self.scale or ())):
            values = tensor.contiguous().numpy()
            total.update(f"{values.dtype.str} {values.shape}\n".encode())
            total.update(values.reshape(-1).view(np.uint8).data)
        clients = {
            "bounds": sorted(self.bounds.items()),
            "later": sorted(self.later.items()),
            "participants": self.participants,
            "held_out": self.held_out,
            "pooled_id": self.pooled_id,
            "num_classes": self.num_classes,
            "classes": self.preprocessing.classes,
            "groups": sorted((id, sorted(groups.items())) for id, groups in self.groups.items()),
        }
        if self.kind != "classification":
            clients["targets"] = self._target_record()
        total.update(json.dumps(clients).encode())
        return total.hexdigest()

    def describe(self) -> dict[str, Any]:
        """The clients as a report shows them, before any drift: plain values for a JSON file.

        `labels` counts each class, or each of several labels, in a client's training examples; of
        numbers, `quantiles` has 0, a quarter, a half, three quarters and 1 for every target.
        """
        ids = (*self.participants, *self.held_out)
        bounds = np.array([self.bounds[id] for id in ids])
        sizes = np.diff(bounds, axis=1).tolist()
        targets = self._describe_targets(bounds[:, :2])
        return {
            "num_classes": self.num_classes,
            "input_shape": list(self.input_shape),
            "clients": [
                {
                    "id": id,
                    "held_out": number >= len(self.participants),
                    **dict(zip(SPLIT_NAMES, sizes[number], strict=True)),
                    **targets[number],
                    "groups": dict(self.groups.get(id, {})),
                }
                for number, id in enumerate(ids)
            ],
        }

    def _target_record(self) -> dict[str, Any]:
        """What targets that are no classes are, as the run's summary has it."""
        record = self.preprocessing.to_record()
        names = ("objective", "targets", "targets_standardised")
        return {name: record[name] for name in names if name in record}

    def _describe_targets(self, ranges: np.ndarray) -> list[dict[str, Any]]:
        """Of the training examples of every client."""
        y = self.y.numpy()
        if self.kind == "classification":
            return [{"labels": row} for row in _label_counts(y, ranges, self.num_classes).tolist()]
        if self.kind == "multi-label":
            return [{"labels": count_labels(y[start:stop], self.kind, 0)} for start, stop in ranges]
        return [{"quantiles": self.quantiles(y[start:stop])} for start, stop in ranges]

    def quantiles(self, y: np.ndarray) -> dict[str, list[float]]:
        """Of every target, in its own unit."""
        rows = target_rows(y).astype(np.float64)
        if (standard := self.preprocessing.target_standard) is not None:
            rows = rows * standard.deviation + standard.mean
        found = np.quantile(rows, QUANTILES, axis=0) if len(rows) else np.zeros((0, rows.shape[1]))
        return dict(zip(self.preprocessing.targets, found.T.tolist(), strict=True))


def _moved(bounds: Bounds, start: int) -> Bounds:
    """The same lengths from `start` on."""
    by = start - bounds[0]
    first, second, third, end = bounds
    return first + by, second + by, third + by, end + by


def balanced_weights(counts: np.ndarray) -> tuple[float, ...]:
    """Of every class, n / (Y n_y) with the summed counts (clients, classes), so that all classes
    weigh the same in training; a class that nobody has counts as one example.
    """
    total = counts.sum(axis=0)
    weights = total.sum() / (len(total) * np.maximum(total, 1))
    return tuple(weights.tolist())


def _pooled_names() -> Iterator[ClientId]:
    yield POOLED
    yield from (f"{POOLED}-{number}" for number in itertools.count(2))


def _label_counts(y: np.ndarray, ranges: np.ndarray, num_classes: int) -> np.ndarray:
    """(clients, classes) how often each label occurs in each of the ranges (clients, 2) of y."""
    lengths = ranges[:, 1] - ranges[:, 0]
    client = np.repeat(np.arange(len(ranges)), lengths)
    # The indices of all ranges, one range after the other.
    first = np.cumsum(lengths) - lengths
    index = np.arange(lengths.sum()) + np.repeat(ranges[:, 0] - first, lengths)
    cells = client * num_classes + y[index]
    return np.bincount(cells, minlength=len(ranges) * num_classes).reshape(-1, num_classes)


def count_labels(y: np.ndarray, kind: Kind, num_classes: int) -> list[int] | None:
    """How often each class, or each of several labels, occurs; None of numbers."""
    counts: list[int] | None = None
    if kind == "classification":
        counts = np.bincount(y, minlength=num_classes).tolist()
    elif kind == "multi-label":
        counts = y.sum(0).astype(int).tolist()
    return counts


def _check_clients(
    participants: Mapping[ClientId, Sequence[Arrays]], held_out: Mapping[ClientId, Sequence[Arrays]]
) -> None:
    """Whether every client has what it needs, in one shape."""
    if not participants:
        raise DataError("a federation must have at least one client, got none")
    twice = set(participants) & set(held_out)
    if twice:
        raise DataError(
            f"a client must be either a participant or held out, got both for {sorted(twice)}"
        )
    shape = next(iter(participants.values()))[0].x.shape[1:]
    for id, splits in itertools.chain(participants.items(), held_out.items()):
        for name, split in zip(SPLIT_NAMES, splits, strict=True):
            if len(split.x) != len(split.y):
                raise DataError(
                    f"{_where(id, name)}: x and y must be equally long, got {len(split.x)} and "
                    f"{len(split.y)}"
                )
            if split.x.shape[1:] != shape:
                raise DataError(
                    f"{_where(id, name)}: examples must have the shape {shape} of the first "
                    f"client, got {split.x.shape[1:]}"
                )
        if id in participants and not len(splits[0].y):
            raise DataError(
                f"client {quote(id)}: must have at least one training example, got none"
            )


def _check_values(
    arrays: Arrays,
    kind: Kind,
    num_classes: int,
    bounds: Mapping[ClientId, Bounds],
    later: Mapping[ClientId, Sequence[tuple[int, Bounds]]],
) -> None:
    """All clients' values at once; only where one is wrong is its client looked for."""
    rule, right = _check_targets(arrays.y, kind, num_classes)
    if not right.all():
        index = int(right.argmin())
        got = arrays.y[index].tolist()
        raise DataError(f"{_find(index, bounds, later)}: {rule}, got {got}")
    if arrays.x.dtype.kind == "f":
        finite = np.isfinite(arrays.x).reshape(len(arrays.x), -1).all(axis=1)
        if not finite.all():
            where = _find(int(finite.argmin()), bounds, later)
            raise DataError(f"{where}: features must be finite, got NaN or infinity")


def _check_targets(y: np.ndarray, kind: Kind, num_classes: int) -> tuple[str, np.ndarray]:
    """The rule for targets of a kind, and (N,) whether each target keeps it."""
    if kind == "classification":
        return f"labels must be in 0..{num_classes - 1}", (y >= 0) & (y < num_classes)
    rows = target_rows(y)
    if kind == "multi-label":
        return "labels must be 0 or 1 each", np.all(np.isin(rows, (0, 1)), axis=1)
    return "targets must be finite", np.all(np.isfinite(rows), axis=1)


def _find(
    index: int,
    bounds: Mapping[ClientId, Bounds],
    later: Mapping[ClientId, Sequence[tuple[int, Bounds]]],
) -> str:
    """Whose example it is that stands at `index`, in words."""
    drifts = ((id, each) for id, phases in later.items() for _, each in phases)
    all_bounds: Iterable[tuple[ClientId, Bounds]] = itertools.chain(bounds.items(), drifts)
    for id, each in all_bounds:
        for name, (start, stop) in zip(SPLIT_NAMES, itertools.pairwise(each), strict=True):
            if start <= index < stop:
                return _where(id, name)
    raise IndexError(index)


def _where(id: ClientId, split: str) -> str:
    return f"client {quote(id)}, {split} split"
