"""Standardisation as a federation would do it: from sums over clients, no example leaves its
client.
"""

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from ..core import DataError, Scale
from .arrays import Arrays, target_rows
from .text import quote


class Moments(NamedTuple):
    """What a client would send: per feature the number of values that are there, their sum and
    their sum of squares.
    """

    present: np.ndarray
    total: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> "Moments":
        present = np.isfinite(values)
        x = np.where(present, values, 0).astype(np.float64)
        return cls(present.sum(axis=0), x.sum(axis=0), (x**2).sum(axis=0))

    @classmethod
    def of_inputs(cls, arrays: Arrays) -> "Moments":
        """Of rows of numbers; of images over the pixels of each channel, as numbers in [0, 1]."""
        if arrays.x.dtype == np.uint8:
            return cls.of(arrays.x.reshape(-1, arrays.x.shape[-1]) / 255.0)
        return cls.of(arrays.x)

    @classmethod
    def of_targets(cls, arrays: Arrays) -> "Moments":
        """Of every target, one or several."""
        return cls.of(target_rows(arrays.y))

    def hidden(self, features: np.ndarray) -> "Moments":
        """Without the sums of some `features` (F,), which nobody needs."""
        return self._replace(
            total=np.where(features, 0.0, self.total), squares=np.where(features, 0.0, self.squares)
        )

    def __add__(self, other: Any) -> "Moments":
        return Moments(*(a + b for a, b in zip(self, other, strict=True)))


class Standard(NamedTuple):
    """Mean and deviation of every feature over all clients' training examples."""

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def from_clients(cls, parts: Iterable[Moments], names: Sequence[str] = ()) -> "Standard":
        """From what every client sends, added in this order; `names` are the features', for
        messages.
        """
        moments = functools.reduce(operator.add, parts)
        if not moments.present.all():
            first = int(moments.present.argmin())
            feature = quote(names[first]) if names else first
            raise DataError(
                "every feature must have a value in somebody's training examples, got none for "
                f"feature {feature}"
            )
        mean = moments.total / moments.present
        variance = np.maximum(moments.squares / moments.present - mean**2, 0)
        # A feature that never varies carries nothing; 1 keeps it at 0.
        return cls(mean, np.where(variance > 1e-12 * (1 + mean**2), np.sqrt(variance), 1.0))

    def apply_to_targets(self, y: np.ndarray) -> np.ndarray:
        """Targets (N,) or (N, D) of mean 0 and deviation 1."""
        standardised: np.ndarray = (target_rows(y) - self.mean) / self.deviation
        return standardised.reshape(y.shape).astype(np.float32)

    def apply(self, arrays: Arrays) -> Arrays:
        x = (np.where(np.isfinite(arrays.x), arrays.x, self.mean) - self.mean) / self.deviation
        return Arrays(x.astype(np.float32), arrays.y)

    def scale(self) -> Scale:
        """As images' channels are standardised: wherever they are used, so that they can be kept as
        bytes.
        """
        mean, deviation = (torch.from_numpy(part).float().reshape(-1, 1, 1) for part in self)
        return Scale(mean, deviation)

    def to_record(self) -> dict[str, list[float]]:
        return {"mean": self.mean.tolist(), "deviation": self.deviation.tolist()}

    @classmethod
    def from_record(cls, record: Any) -> "Standard":
        """What `to_record` gave; anything else is refused."""
        try:
            mean, deviation = (
                np.array(record[name], dtype=np.float64) for name in ("mean", "deviation")
            )
        except (TypeError, ValueError, KeyError, IndexError):
            mean = deviation = np.array(np.nan)
        if (
            mean.shape != deviation.shape
            or not np.isfinite([mean, deviation]).all()
            or not (deviation > 0).all()
        ):
            raise DataError(
                "preprocessing.standardised must give a finite mean and a deviation > 0 per "
                f"feature, got {quote(str(record))}"
            )
        return cls(mean, deviation)
