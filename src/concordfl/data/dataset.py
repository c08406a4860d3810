"""Dataset: examples before they are given to clients, and where their files are looked for."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import Count, DataError, Key, Settings
from .federation import Arrays


class Dataset(NamedTuple):
    """Training examples, and an official test set from which held-out clients are made."""

    train: Arrays
    test: Arrays
    num_classes: int
    owners: np.ndarray | None = None  # (N,) who made each training example, for the natural partition


@dataclass(frozen=True)
class Source(Settings, ABC):
    """A data set by name, with its options: the `[data]` section of a run file."""

    about: ClassVar[str]

    limit: Count | None = None  # use only so many training examples, drawn at random
    test_limit: Count | None = None

    @abstractmethod
    def read(self, key: Key) -> Dataset:
        """All of the data; `key` is for data that are generated."""

    def load(self, key: Key) -> Dataset:
        data = self.read(key)
        train = _limited(len(data.train.y), self.limit, key.child("limit"))
        test = _limited(len(data.test.y), self.test_limit, key.child("test-limit"))
        owners = None if data.owners is None else data.owners[train]
        return data._replace(train=data.train.take(train), test=data.test.take(test), owners=owners)


def _limited(size: int, limit: int | None, key: Key) -> np.ndarray:
    if limit is None or limit >= size:
        return np.arange(size)
    return np.sort(key.numpy().permutation(size)[:limit])


def find(name: str, files: tuple[str, ...], advice: str, system: tuple[str, ...] = ()) -> Path:
    """The folder that holds all of `files`: in $CONCORDFL_DATA, the user's cache, or a place of the system."""
    places = [Path(place) for place in system]
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "concordfl"
    for root in (os.environ.get("CONCORDFL_DATA"), cache):
        if root:
            places = [Path(root) / name, Path(root), *places]
    for place in places:
        if all((place / file).is_file() for file in files):
            return place
    looked = ", ".join(str(place) for place in places)
    raise DataError(f"data set {name!r} must be on this machine, got none of its files in {looked}: {advice}")
