"""Shifts: how each client's data differ from what they were given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ..core import Key, SettingError, Settings, Share
from ..data import Arrays


@dataclass(frozen=True)
class Shift(Settings, ABC):
    """A change to the data of a share of the clients. Clients with shifts of one family do not overlap."""

    about: ClassVar[str]
    family: ClassVar[str]  # what differs: "concept", "feature" or "label"

    share: Share = 0.25

    @property
    @abstractmethod
    def group(self) -> str:
        """The name of the true group of clients with this shift."""

    @abstractmethod
    def apply(self, arrays: Arrays, num_classes: int, key: Key) -> Arrays:
        """The changed examples; `key` is the same for all clients with this shift."""


@dataclass(frozen=True)
class LabelMap(Shift):
    """Another concept: the same inputs have other labels."""

    about: ClassVar[str] = "labels are renamed: reverse (C-1-y), shift (y+1 mod C), random, or a given list"
    family: ClassVar[str] = "concept"

    map: Literal["reverse", "shift", "random"] | tuple[int, ...] = "reverse"

    @property
    def group(self) -> str:
        return self.map if isinstance(self.map, str) else "map-" + "-".join(str(label) for label in self.map)

    def apply(self, arrays: Arrays, num_classes: int, key: Key) -> Arrays:
        return Arrays(arrays.x, self._table(num_classes, key)[arrays.y])

    def _table(self, num_classes: int, key: Key) -> np.ndarray:
        labels = np.arange(num_classes)
        if self.map == "reverse":
            return num_classes - 1 - labels
        if self.map == "shift":
            return (labels + 1) % num_classes
        if self.map == "random":
            return key.child("label-map").numpy().permutation(num_classes)
        if len(self.map) != num_classes or not set(self.map) <= set(range(num_classes)):
            raise SettingError(f"map must list {num_classes} labels in 0..{num_classes - 1}, got {list(self.map)}")
        return np.array(self.map)


SHIFTS: dict[str, type[Shift]] = {"label-map": LabelMap}
