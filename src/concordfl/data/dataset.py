"""Dataset: examples before they are given to clients, and where their files are looked for."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import Count, CountOrZero, DataError, Key, SettingError, Settings
from .arrays import Arrays
from .columns import Column, feature_names, indicators
from .files import FILE, FOLDER, kind_of, reading
from .labels import class_name
from .text import listing

MAX_REMEMBERED_BYTES = 100_000_000  # of files whose data are remembered for the next run


class Dataset(NamedTuple):
    """Training examples, and an official test set from which held-out clients are made."""

    train: Arrays
    test: Arrays
    num_classes: int
    # (N,) the name of who made each training example, for the natural partition
    owners: np.ndarray | None = None
    # (Y,) the coarse label of each class, for the partition pachinko
    coarse: np.ndarray | None = None
    classes: tuple[str, ...] = ()  # names of the classes, where they have any
    targets: tuple[str, ...] = ()  # names of the targets, where they have any
    features: tuple[str, ...] = ()  # names of the features, where they have any
    columns: tuple[Column, ...] = ()  # of a table: what its columns became
    ignored: tuple[str, ...] = ()  # columns of a table that are no features
    resize: tuple[int, int] | None = None  # height and width that images were brought to
    groups: Mapping[str, str] = {}  # a known group of every owner
    # (N,) the number of the part of the pool that each training example is of, where a scenario
    # has changed some of it
    parts: np.ndarray | None = None
    split: np.ndarray | None = None  # (N,) which split each training example is for, by number
    time: np.ndarray | None = None  # (N,) when each training example was made
    notices: tuple[str, ...] = ()  # sentences on what a user should know of the data

    def with_categories_of(self, rows: np.ndarray) -> "Dataset":
        """With the categories that some of these training examples have: those of clients that are
        new later are unknown then.
        """
        categories = indicators(self.columns)
        if not categories.any():
            return self
        kept = ~categories | self.train.x[rows].any(axis=0)
        names = {name for name, keep in zip(self.features, kept.tolist(), strict=True) if keep}
        columns = tuple(column.only(names) for column in self.columns)
        train, test = (Arrays(part.x[:, kept], part.y) for part in (self.train, self.test))
        return self._replace(
            train=train, test=test, columns=columns, features=feature_names(columns)
        )


class Remote(NamedTuple):
    """A file at a data set's official home."""

    address: str
    checksum: str  # "sha256:..." or "md5:...", as its home publishes it
    unpack: bool = False  # a tar or zip archive


class Form(NamedTuple):
    """A form in which a data set may lie on disk: the files by which it is known, and how to read
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
    # whether the data come in clients of their own, which are then the clients of a run
    has_clients: ClassVar[bool] = False

    # labels to leave out, as the data have them, of training and of test examples
    without: tuple[CountOrZero | str, ...] | None = None
    limit: Count | None = None  # use only so many training examples, drawn at random
    test_limit: Count | None = None
    # the official test examples are dealt out with the training examples, and split as they are
    pool_test: bool = False
    # how often every training example is there, each copy to be dealt to a client by itself
    copies: Count = 1
    # features (or channels) to mean 0 and deviation 1, missing ones to the mean, from sums
    standardise: bool = True

    @abstractmethod
    def read(self, key: Key) -> Dataset:
        """All of the data; `key` is for data that are generated."""

    def fingerprint(self) -> str:
        """What results depend on beyond the settings: another one means other data."""
        return ""

    def load(self, key: Key) -> Dataset:
        data = self._pooled(self.read(key)) if self.pool_test else self.read(key)
        if self.test_limit is not None and not len(data.test.y):
            raise SettingError(
                f"data.test_limit needs data with a test set of their own, got {self.test_limit} "
                "for data without"
            )
        left_out = self._left_out(data)
        train = _limit(_others(data.train, left_out), self.limit, key.child("limit"))
        test = _limit(_others(data.test, left_out), self.test_limit, key.child("test-limit"))
        if not len(train):
            raise SettingError(
                f"data.without must leave examples to train on, got {list(self.without or ())}"
            )
        if self.copies > 1:
            data = self._with_notice_of_copies(data)
            train = np.tile(train, self.copies)
        return data._replace(
            train=data.train.take(train),
            test=data.test.take(test),
            owners=_take(data.owners, train),
            split=_take(data.split, train),
            time=_take(data.time, train),
        )

    def _pooled(self, data: Dataset) -> Dataset:
        """With the test examples among the training examples."""
        if not len(data.test.y):
            raise SettingError("data.pool_test needs data with a test set of their own, got none")
        if self.has_clients:
            raise SettingError(
                "data.pool_test must be false for data that come in clients, got true"
            )
        joined, nothing = Arrays.join([data.train, data.test]), data.test.take(np.arange(0))
        return data._replace(train=joined, test=nothing, owners=None)

    def _with_notice_of_copies(self, data: Dataset) -> Dataset:
        if data.owners is not None:
            raise SettingError(
                "data.copies is for data that are dealt to clients, and must be 1 where the data "
                f"themselves say whose they are, got {self.copies}"
            )
        notice = (
            f"data.copies = {self.copies}: copies of one example are dealt to clients one by one, "
            "so a participant's test data hold examples that others, or it itself, have trained "
            "on; participants' figures are too good for that, newcomers' from the official test "
            "set are not"
        )
        return data._replace(notices=(*data.notices, notice))

    def _left_out(self, data: Dataset) -> list[int]:
        """The numbers of the classes that `without` names."""
        classes = data.classes or tuple(str(number) for number in range(data.num_classes))
        names = [class_name(label) for label in self.without or ()]
        unknown = [name for name in names if name not in classes]
        if unknown:
            raise SettingError(
                f"data.without must name labels of the data ({listing(classes)}), got {unknown[0]}"
            )
        return [classes.index(name) for name in names]


@dataclass(frozen=True)
class FileSource(Source):
    """A data set that lies in files: `forms` are tried in order, in every folder."""

    name: ClassVar[str]

    def forms(self) -> Sequence[Form]:
        raise NotImplementedError

    def read(self, key: Key) -> Dataset:
        form, folder = self.locate()
        files = [folder / file for file in form.files]
        with reading(folder, f"hold the whole data set {self.name!r}"):
            facts = [file.stat() for file in files]
            whole_files = all(kind_of(file) == FILE for file in files)
            if not whole_files or sum(each.st_size for each in facts) > MAX_REMEMBERED_BYTES:
                return form.read(folder)
            stamps = tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in facts)
            return _read_once(type(self), form.files, folder, stamps)

    def fingerprint(self) -> str:
        """The form's file, where it is not the first: a part of a data set is not the data set."""
        try:
            form, _ = self.locate()
        except DataError:
            return ""
        return "" if form.files == self.forms()[0].files else form.files[0]

    def locate(self) -> tuple[Form, Path]:
        folders = data_folders(self.name)
        for folder in folders:
            for form in self.forms():
                if all(kind_of(folder / file) in (FILE, FOLDER) for file in form.files):
                    return form, folder
        advice = self.advice or f"`concordfl data get {self.name}`"
        raise DataError(
            f"data set {self.name!r} must be on this machine, got none of its files in "
            f"{', '.join(map(str, folders))}: {advice}"
        )


@lru_cache(maxsize=2)
def _read_once(
    source: type[FileSource],
    files: tuple[str, ...],
    folder: Path,
    _stamps: tuple[tuple[int, ...], ...],  # other stamps are other files
) -> Dataset:
    """A data set, read once for several runs of a comparison; nobody changes its arrays."""
    (form,) = (form for form in source().forms() if form.files == files)
    return form.read(folder)


def data_folders(name: str) -> list[Path]:
    """Where a data set is looked for: in $CONCORDFL_DATA, the user's cache, the system's folder."""
    cache, system = cache_folder(), Path("/usr/share/datasets") / name
    folders = [system] if cache is None else [cache / name, system]
    root = os.environ.get("CONCORDFL_DATA")
    return [Path(root) / name, Path(root), *folders] if root else folders


def cache_folder() -> Path | None:
    """The user's cache; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "concordfl"
    except RuntimeError:
        return None


def _take(values: np.ndarray | None, indices: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[indices]


def _others(arrays: Arrays, left_out: list[int]) -> np.ndarray:
    """The indices of the examples whose labels are not left out."""
    if not left_out:
        return np.arange(len(arrays.y))
    return np.flatnonzero(~np.isin(arrays.y, left_out))


def _limit(indices: np.ndarray, limit: int | None, key: Key) -> np.ndarray:
    if limit is None or limit >= len(indices):
        return indices
    return indices[np.sort(key.numpy().permutation(len(indices))[:limit])]
