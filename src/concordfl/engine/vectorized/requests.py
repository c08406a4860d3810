"""What clients ask for that can be computed for many of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core import Examples, Params
from ...core.client import Client


class Alone:
    """The answer to a request that nobody shares: the client computes it by itself."""


ALONE = Alone()


@dataclass(frozen=True)
class FitRequest:
    """`Client.fit` on the client's own loss."""

    client: Client
    params: Params
    data: Examples
    weight: Tensor | None
    steps: int
    epochs: int
    only: frozenset[str]
    purpose: str

    @property
    def kind(self) -> Any:
        """Requests of one kind are computed together."""
        x, y = self.data.x, self.data.y
        weighted = self.weight is not None
        return "fit", self.only, weighted, self.client.round, x.dtype, x.shape[1:], y.dtype


@dataclass(frozen=True)
class LogitsRequest:
    """`Client.logits` of the same examples at the parameters of one or several models."""

    client: Client
    models: Sequence[Params]
    data: Examples

    @property
    def kind(self) -> Any:
        x = self.data.x
        return "logits", len(self.models), x.dtype, x.shape[1:]


Request = FitRequest | LogitsRequest


@dataclass(frozen=True)
class Joined:
    """The examples of several clients as those of one, and where each client's begin."""

    examples: Examples
    starts: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Examples]) -> "Joined":
        """Without a copy where all are parts of one tensor, as a federation's are."""
        base_x, base_y = parts[0].x._base, parts[0].y._base
        if (
            base_x is not None
            and base_y is not None
            and len(base_x) == len(base_y)
            and all(_is_slice(part, base_x, base_y) for part in parts)
        ):
            starts = tuple(_first_row(part.x) for part in parts)
            return cls(Examples(base_x, base_y, scale=parts[0].scale), starts)
        ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
        whole = Examples(
            torch.cat([part.x for part in parts]),
            torch.cat([part.y for part in parts]),
            scale=parts[0].scale,
        )
        return cls(whole, (0, *ends[:-1]))


def _is_slice(part: Examples, base_x: Tensor, base_y: Tensor) -> bool:
    """Whether a part is some rows of these tensors, one after the other."""
    return (
        part.x._base is base_x
        and part.y._base is base_y
        and part.x.stride() == base_x.stride()
        and part.y.stride() == base_y.stride()
        and part.x.shape[1:] == base_x.shape[1:]
        and part.y.shape[1:] == base_y.shape[1:]
        and base_x.storage_offset() == base_y.storage_offset() == 0
        and _first_row(part.x) == _first_row(part.y)
    )


def _first_row(part: Tensor) -> int:
    stride = part.stride(0)
    return int(part.storage_offset()) // stride if stride else 0
