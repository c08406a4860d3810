"""Dataset: examples before they are given to clients, and where their files are looked for."""

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import Count, CountOrZero, DataError, Key, SettingError, Settings
from .federation import Arrays


class Dataset(NamedTuple):
    """Training examples, and an official test set from which held-out clients are made."""

    train: Arrays
    test: Arrays
    num_classes: int
    # (N,) who made each training example, for the natural partition
    owners: np.ndarray | None = None
    # (Y,) the coarse label of each class, for the partition pachinko
    coarse: np.ndarray | None = None
    classes: tuple[str, ...] = ()  # names of the classes, where they have any
    features: tuple[str, ...] = ()  # names of the features, where they have any


class Remote(NamedTuple):
    """A file at a data set's official home."""

    address: str
    checksum: str  # "sha256:..." or "md5:...", as its home publishes it
    unpack: bool = False  # a tar or zip archive


class Form(NamedTuple):
    """A form in which a data set may lie on disk: the files that show it is there, and how to read
    their folder.
    """

    files: tuple[str, ...]
    read: Callable[[Path], Dataset]


@dataclass(frozen=True)
class Source(Settings, ABC):
    """A data set by name, with its options: the `[data]` section of a run file."""

    about: ClassVar[str]
    home: ClassVar[tuple[Remote, ...]] = ()  # what `concordfl data get` fetches
    advice: ClassVar[str] = ""  # how else to get it

    # labels to leave out, of training and of test examples
    without: tuple[CountOrZero, ...] | None = None
    limit: Count | None = None  # use only so many training examples, drawn at random
    test_limit: Count | None = None
    # features (or channels) to mean 0 and deviation 1, missing ones to the mean, from sums
    standardise: bool = False

    @abstractmethod
    def read(self, key: Key) -> Dataset:
        """All of the data; `key` is for data that are generated."""

    def fingerprint(self) -> str:
        """What results depend on beyond the settings: another one means other data."""
        return ""

    def load(self, key: Key) -> Dataset:
        data = self.read(key)
        unknown = [label for label in self.without or () if label >= data.num_classes]
        if unknown:
            raise SettingError(
                f"data.without must name labels below {data.num_classes}, got {unknown[0]}"
            )
        train = _limited(self._kept(data.train), self.limit, key.child("limit"))
        test = _limited(self._kept(data.test), self.test_limit, key.child("test-limit"))
        if not len(train):
            raise SettingError(
                f"data.without must leave examples to train on, got {list(self.without or ())}"
            )
        owners = None if data.owners is None else data.owners[train]
        return data._replace(train=data.train.take(train), test=data.test.take(test), owners=owners)

    def _kept(self, arrays: Arrays) -> np.ndarray:
        return np.flatnonzero(~np.isin(arrays.y, self.without or ()))


@dataclass(frozen=True)
class FileSource(Source):
    """A data set that lies in files: `forms` are tried in order, in every place."""

    name: ClassVar[str]

    def forms(self) -> Sequence[Form]:
        raise NotImplementedError

    def read(self, key: Key) -> Dataset:
        form, folder = self.locate()
        try:
            return form.read(folder)
        except (
            OSError,
            ValueError,
            EOFError,
            KeyError,
            IndexError,
            TypeError,
            zlib.error,
        ) as error:
            raise DataError(
                f"data set {self.name!r} in {folder} must be whole, got {type(error).__name__}: "
                f"{error}"
            ) from None

    def fingerprint(self) -> str:
        """The form's file, where it is not the first: a part of a data set is not the data set."""
        try:
            form, _ = self.locate()
        except DataError:
            return ""
        return "" if form.files == self.forms()[0].files else form.files[0]

    def locate(self) -> tuple[Form, Path]:
        for place in places(self.name):
            for form in self.forms():
                if all((place / file).exists() for file in form.files):
                    return form, place
        looked = ", ".join(str(place) for place in places(self.name))
        advice = self.advice or f"`concordfl data get {self.name}`"
        raise DataError(
            f"data set {self.name!r} must be on this machine, got none of its files in {looked}: "
            f"{advice}"
        )


def places(name: str) -> list[Path]:
    """Where a data set is looked for: $CONCORDFL_DATA, the user's cache, places of the system."""
    cache = cache_folder()
    found = [Path("/usr/share/datasets") / name]
    found = found if cache is None else [cache / name, *found]
    root = os.environ.get("CONCORDFL_DATA")
    return [Path(root) / name, Path(root), *found] if root else found


def cache_folder() -> Path | None:
    """The user's cache; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concordfl"
    except RuntimeError:
        return None


def _limited(places: np.ndarray, limit: int | None, key: Key) -> np.ndarray:
    if limit is None or limit >= len(places):
        return places
    return places[np.sort(key.numpy().permutation(len(places))[:limit])]
