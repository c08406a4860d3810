"""Federation: the clients of a problem and their train, validation and test examples, in a few
large tensors.

All examples stand in one tensor, each client's splits one after the other, so that worker processes
can share them without a copy per client.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import ClientId, DataError, Examples, Scale

SPLITS = ("train", "validation", "test")
POOLED = "pooled"


class Splits(NamedTuple):
    """One client's examples."""

    train: Examples
    validation: Examples
    test: Examples


class Arrays(NamedTuple):
    """Examples on their way into a federation: x (N, ...) and y (N,)."""

    x: np.ndarray
    y: np.ndarray

    def take(self, index: np.ndarray) -> "Arrays":
        return Arrays(self.x[index], self.y[index])


@dataclass(frozen=True)
class Federation:
    """Participants, and held-out clients that only measure how well new clients are served.

    `bounds[id]` are the four places in `x` and `y` between which the client's three splits lie. A
    held-out client's train split is what it may adapt on. `groups[id]` names the true group of a
    client by the kind of difference, for instance `{"concept": "reverse"}`. `later[id]` are the
    bounds that hold from a round on, where a client's data drift.
    """

    x: Tensor
    y: Tensor
    bounds: Mapping[ClientId, tuple[int, int, int, int]]
    participants: tuple[ClientId, ...]
    held_out: tuple[ClientId, ...]
    num_classes: int
    groups: Mapping[ClientId, Mapping[str, str]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    later: Mapping[ClientId, tuple[tuple[int, tuple[int, int, int, int]], ...]] = field(
        default_factory=dict
    )
    scale: Scale | None = None  # of images that are standardised

    @classmethod
    def build(
        cls,
        participants: Mapping[ClientId, Sequence[Arrays]],
        held_out: Mapping[ClientId, Sequence[Arrays]],
        num_classes: int,
        groups: Mapping[ClientId, Mapping[str, str]] | None = None,
        notes: Mapping[str, Any] | None = None,
        later: Mapping[ClientId, Sequence[tuple[int, Sequence[Arrays]]]] | None = None,
        scale: Scale | None = None,
    ) -> "Federation":
        """From (train, validation, test) arrays per client; `later` gives those that hold from a
        round on.
        """
        _check(participants, held_out, num_classes)
        parts: list[Arrays] = []
        ends = [0]

        def place(splits: Sequence[Arrays]) -> tuple[int, int, int, int]:
            for split in splits:
                parts.append(split)
                ends.append(ends[-1] + len(split.y))
            return ends[-4], ends[-3], ends[-2], ends[-1]

        bounds = {id: place(splits) for id, splits in {**participants, **held_out}.items()}
        drift = {
            id: tuple((start, place(splits)) for start, splits in phases)
            for id, phases in (later or {}).items()
        }
        return cls(
            x=torch.from_numpy(np.ascontiguousarray(np.concatenate([part.x for part in parts]))),
            y=torch.from_numpy(np.concatenate([part.y for part in parts]).astype(np.int64)),
            bounds=bounds,
            participants=tuple(sorted(participants)),
            held_out=tuple(sorted(held_out)),
            num_classes=num_classes,
            groups=dict(groups or {}),
            notes=dict(notes or {}),
            later=drift,
            scale=scale,
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """As a network sees one example: (C, H, W) for images."""
        shape = tuple(self.x.shape[1:])
        return (shape[2], shape[0], shape[1]) if len(shape) == 3 else shape

    @property
    def population(self) -> tuple[ClientId, ...]:
        """Who is asked in training: the participants, or the one that holds all their examples."""
        return (POOLED,) if POOLED in self.bounds else self.participants

    def splits(self, id: ClientId, round: int = 0) -> Splits:
        """A client's examples as they are in the run's `round`."""
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
        """How often the client's data have drifted up to `round`."""
        return sum(start <= round for start, _ in self.later.get(id, ()))

    def size(self, id: ClientId) -> int:
        """The number of training examples."""
        start, stop = self.bounds[id][:2]
        return stop - start

    def share_memory(self) -> None:
        """Move the examples to memory that worker processes can map."""
        for tensor in (self.x, self.y):
            tensor.share_memory_()  # type: ignore[no-untyped-call]

    def with_pooled_client(self) -> "Federation":
        """The same, and a client that holds the training examples of all participants."""
        rounds = sorted({start for phases in self.later.values() for start, _ in phases})
        size = sum(self.size(id) for id in self.participants)
        parts = [self.splits(id, round).train for round in (0, *rounds) for id in self.participants]
        starts = [len(self.y) + size * place for place in range(1 + len(rounds))]
        pooled = [(start, start + size, start + size, start + size) for start in starts]
        return replace(
            self,
            x=torch.cat([self.x, *(part.x for part in parts)]),
            y=torch.cat([self.y, *(part.y for part in parts)]),
            bounds={**self.bounds, POOLED: pooled[0]},
            later={**self.later, POOLED: tuple(zip(rounds, pooled[1:], strict=True))}
            if rounds
            else self.later,
        )


def _check(
    participants: Mapping[ClientId, Sequence[Arrays]],
    held_out: Mapping[ClientId, Sequence[Arrays]],
    num_classes: int,
) -> None:
    if not participants:
        raise DataError("a federation must have at least one client, got none")
    twice = set(participants) & set(held_out)
    if twice:
        raise DataError(
            f"a client must be either a participant or held out, got both for {sorted(twice)}"
        )
    shape = next(iter(participants.values()))[0].x.shape[1:]
    for id, splits in {**participants, **held_out}.items():
        for name, split in zip(SPLITS, splits, strict=True):
            where = f"client {id!r}, {name} split"
            if len(split.x) != len(split.y):
                raise DataError(
                    f"{where}: x and y must be equally long, got {len(split.x)} and {len(split.y)}"
                )
            if split.x.shape[1:] != shape:
                raise DataError(
                    f"{where}: examples must have the shape {shape} of the first client, got "
                    f"{split.x.shape[1:]}"
                )
            if len(split.y) and (split.y.min() < 0 or split.y.max() >= num_classes):
                raise DataError(
                    f"{where}: labels must be in 0..{num_classes - 1}, got "
                    f"{split.y.min()}..{split.y.max()}"
                )
            if split.x.dtype.kind == "f" and not np.isfinite(split.x).all():
                raise DataError(f"{where}: features must be finite, got NaN or infinity")
        if id in participants and not len(splits[0].y):
            raise DataError(f"client {id!r}: must have at least one training example, got none")
