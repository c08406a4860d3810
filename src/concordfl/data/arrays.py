"""Examples as numpy arrays, on their way into a federation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np


class Arrays(NamedTuple):
    """Examples x (N, ...) and their targets y: classes (N,), numbers (N,) or (N, D), or several
    labels that are 0 or 1 (N, L).
    """

    x: np.ndarray
    y: np.ndarray

    def take(self, index: np.ndarray) -> "Arrays":
        return Arrays(self.x[index], self.y[index])

    @classmethod
    def join(cls, parts: Sequence["Arrays"]) -> "Arrays":
        return cls(
            np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
        )


class ArraySplits(NamedTuple):
    """One client's examples, by what they are for."""

    train: Arrays
    validation: Arrays
    test: Arrays

    def map(self, change: Callable[[Arrays], Arrays]) -> "ArraySplits":
        return ArraySplits(*(change(part) for part in self))


def target_rows(y: np.ndarray) -> np.ndarray:
    """(N, D) targets, also where there is one per example."""
    return y[:, None] if y.ndim == 1 else y


def network_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """An example's shape as a network sees it: (C, H, W) for images, which we keep as (H, W, C)."""
    return (shape[2], shape[0], shape[1]) if len(shape) == 3 else tuple(shape)


def are_grey(x: np.ndarray) -> bool:
    """Whether all examples are images in colours that are grey."""
    if x.ndim != 4 or x.shape[3] != 3:
        return False
    return bool((x[..., 0] == x[..., 1]).all() and (x[..., 0] == x[..., 2]).all())


def drop_colour(x: np.ndarray) -> np.ndarray:
    """One channel where all images are grey."""
    return x[..., :1] if are_grey(x) else x
