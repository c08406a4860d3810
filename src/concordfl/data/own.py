"""A user's own data: a folder with one file (or folder of images) per client, or one table with a
client column.

Labels may be any values, strings too; classes are their sorted distinct values over all clients.
Nothing is guessed: what does not fit is one error that names the file and the rule.
"""

import hashlib
import logging
from abc import abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from ..core import DataError, Key, SettingError
from .arrays import Arrays, drop_colour
from .columns import feature_names, say_unknown_categories
from .csv_table import columns_of, read_csv
from .dataset import Dataset, Source
from .files import FILE, FOLDER, kind_of, list_folder, reading
from .labels import Labels, require_alike, sort_classes
from .own_tables import (
    JoinedTables,
    groups_of,
    join_tables,
    read_like,
    read_tables,
    require_numbers,
)
from .preprocessing import Preprocessing
from .row_splits import parse_splits, parse_times
from .text import listing, printable, quote

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")
TABLE_ENDINGS = (".npz", ".csv")
LABEL_KINDS = "biufUS"  # numpy's letters for truth values, numbers and text
RESIZE_ADVICE = "resize = [HEIGHT, WIDTH] in [data] brings them to one size"
IMAGES_PER_LINE = 1000  # between two lines that say how many have been read

Pixels = Annotated[int, Ge(1), Le(10_000)]
ColumnNames = str | tuple[str, ...]
log = logging.getLogger(__name__)


class Samples(NamedTuple):
    """One client's examples as they were read: labels may be missing, features may have names."""

    client: str
    x: np.ndarray
    labels: Labels | None
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class OwnData(Source):
    """What a user's own data have in common, in one table or in several files."""

    has_clients: ClassVar[bool] = True

    standardise: bool = True
    label: ColumnNames = "y"  # the column of labels, or several of numbers
    drop: tuple[str, ...] | None = None  # columns to leave out
    # a column with a known group of every client, against which found groups are scored
    group: str | None = None
    split: str | None = None  # a column that says train, validation or test of every row
    # a column of dates or numbers: each client's earliest rows train, its latest test
    time: str | None = None
    # where a relative path begins: the run file's folder, from Python the working folder
    relative_to: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.split is not None and self.time is not None:
            raise SettingError(
                f"split and time must not both be given, got {quote(self.split)} and "
                f"{quote(self.time)}"
            )
        if not columns_of(self.label):
            raise SettingError("label must name a column or several, got none")
        seen: dict[str, str] = {}  # the setting by the column that it names
        for setting, column in self._named_columns():
            if column in seen:
                raise SettingError(
                    f"{seen[column]} must be another column than {setting}, got {quote(column)} "
                    "for both"
                )
            seen[column] = setting

    def _named_columns(self) -> list[tuple[str, str]]:
        """Settings with the columns that they name, which are no features."""
        roles = [(name, getattr(self, name)) for name in ("group", "split", "time")]
        named = [("label", column) for column in columns_of(self.label)]
        named += [(name, column) for name, column in roles if column is not None]
        return [*named, *(("drop", column) for column in self.drop or ())]

    def _required(self) -> dict[str, str]:
        """Columns that must be there, each with what a row must do in it."""
        rules = {
            self.group: "name its client's group",
            self.split: "name its split",
            self.time: "have a time",
        }
        return {column: rule for column, rule in rules.items() if column is not None}

    @property
    @abstractmethod
    def given_path(self) -> str:
        """Where the data are, as the settings have it."""

    @property
    def path(self) -> Path:
        return Path(self.relative_to or "", self.given_path)

    def is_there(self) -> bool:
        """Whether something lies where the data should be."""
        return kind_of(self.path) is not None

    def _elsewhere(self) -> str:
        """The end of a message, where a path that is not found would be in the working folder."""
        if self.is_there() or kind_of(Path(self.given_path)) is None:
            return ""
        return (
            f": a path in a run file begins at the file's folder, not at the working folder, where "
            f"there is {quote(self.given_path)}"
        )

    def _make_dataset(self, tables: JoinedTables, owners: np.ndarray, where: str) -> Dataset:
        data = _dataset(tables.x, tables.labels, owners, feature_names(tables.columns))
        cells = tables.cells
        return data._replace(
            targets=columns_of(self.label),
            columns=tables.columns,
            ignored=tuple(column for name, column in self._named_columns() if name != "label"),
            groups=groups_of(owners, cells[self.group], self.group, where) if self.group else {},
            split=parse_splits(cells[self.split], self.split, where) if self.split else None,
            time=parse_times(cells[self.time], self.time, where) if self.time else None,
            notices=tables.notices,
        )


@dataclass(frozen=True)
class Folder(OwnData):
    """`folder = "my-clients/"`: a .npz or .csv file per client, or per client a folder of class
    folders of images.
    """

    about: ClassVar[str] = (
        "your own data: a folder with a .npz or .csv per client, or class folders of images per "
        "client"
    )

    folder: str = "."
    resize: tuple[Pixels, Pixels] | None = None  # images to this height and width

    @property
    def given_path(self) -> str:
        return self.folder

    def fingerprint(self) -> str:
        root = self.path
        if kind_of(root) != FOLDER:
            return _digest({})
        with reading(root, "be a readable folder"):
            paths = sorted(path for path in root.rglob("*") if path.is_file())
        return _digest({str(path.relative_to(root)): path for path in paths})

    def read(self, key: Key) -> Dataset:
        root = self.path
        if kind_of(root) != FOLDER:
            raise DataError(
                f"data.folder must be a folder, got {quote(str(root))}{self._elsewhere()}"
            )
        paths = [
            path
            for path in list_folder(root)
            if path.suffix.lower() in TABLE_ENDINGS or kind_of(path) == FOLDER
        ]
        if not paths:
            raise DataError(
                f"{printable(root)} must hold a .npz file, a .csv file or a folder per client, got "
                "none"
            )
        names = [_client_name(path) for path in paths]
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise DataError(
                f"{printable(root)} must hold one file or folder per client, got several called "
                f"{listing(repeated)}"
            )
        if all(_is_csv(path) for path in paths):
            return self._read_tables(paths, names)
        return self._read_arrays(paths)

    def _read_tables(self, paths: Sequence[Path], names: Sequence[str]) -> Dataset:
        tables = read_tables(paths, self.label, self._required(), self.drop or ())
        for table, name in zip(tables, names, strict=True):
            if not len(table.x):
                raise DataError(f"client {quote(name)} must have at least one example, got none")
        joined = join_tables(tables, [f"client {quote(name)}" for name in names])
        owners = _repeat(names, [len(table.x) for table in tables])
        return self._make_dataset(joined, owners, printable(self.path))

    def _read_arrays(self, paths: Sequence[Path]) -> Dataset:
        for setting, column in self._named_columns():
            if setting != "label":
                raise SettingError(
                    f"data.{setting} must be about a folder of .csv files, got {quote(column)} "
                    "for other files"
                )
        reader = ImageReader(self.resize)
        data = _join([_read_labelled(path, self.label, reader) for path in paths])
        return data._replace(resize=self.resize)


@dataclass(frozen=True)
class Table(OwnData):
    """`table = "all.csv"`, `client = "hospital"`, `label = "y"`: one table, a column of which says
    whose each row is.
    """

    about: ClassVar[str] = "your own data: one .csv with a column that says whose each row is"

    table: str = ""
    client: str = "client"  # the column that says whose each row is

    @property
    def given_path(self) -> str:
        return self.table

    def _named_columns(self) -> list[tuple[str, str]]:
        return [("client", self.client), *super()._named_columns()]

    def fingerprint(self) -> str:
        path = self.path
        return _digest({path.name: path} if kind_of(path) == FILE else {})

    def read(self, key: Key) -> Dataset:
        if kind_of(self.path) != FILE:
            raise DataError(
                f"data.table must be a file, got {kind_of(self.path) or 'nothing'} at "
                f"{quote(str(self.path))}{self._elsewhere()}"
            )
        required = {self.client: "name its client", **self._required()}
        tables = read_tables([self.path], self.label, required, self.drop or ())
        where = printable(self.path)
        if not len(tables[0].x):
            raise DataError(f"{where}: there must be at least one example, got none")
        joined = join_tables(tables, [where])
        rows: dict[str, list[int]] = defaultdict(list)  # of each client
        for row, client in enumerate(joined.cells[self.client].tolist()):
            rows[client].append(row)
        clients = sorted(rows)
        order = np.concatenate([rows[client] for client in clients])
        owners = _repeat(clients, [len(rows[client]) for client in clients])
        return self._make_dataset(joined.take(order), owners, where)


class ImageReader:
    """Reads images of one size, or brings them to it; says now and then how many it has read."""

    def __init__(self, resize: tuple[int, int] | None = None) -> None:
        self._resize = resize
        self._count = 0

    def read(self, path: Path) -> np.ndarray:
        """(H, W, 3) bytes."""
        from .datasets.formats import read_image

        width_first = None if self._resize is None else (self._resize[1], self._resize[0])
        image = read_image(path, "RGB", width_first)
        self._count += 1
        if self._count % IMAGES_PER_LINE == 0:
            log.info("%s images read", f"{self._count:,}")
        return image


def read_samples(
    path: Path,
    label: ColumnNames = "y",
    client: str | None = None,
    like: Preprocessing | None = None,
) -> Samples:
    """Examples from a .npz file, a .csv file or a folder of class folders of images; of the files,
    labels may be missing.

    `client` names a column that is no feature, where there is one. `like` is how a run read its
    own data: columns are then matched by name, and images brought to the same size.
    """
    kind = kind_of(path)
    if kind is None:
        raise DataError(f"the client's data must exist, got {printable(path)}")
    name = _client_name(path)
    if kind == FOLDER:
        return Samples(name, *_read_images(path, ImageReader(like.resize if like else None)))
    if not _is_csv(path):
        return Samples(name, *_read_npz(path))
    ignored = () if client is None else (client,)
    if like is None or not like.features:
        table = read_csv(path, label, ignored=ignored)
        require_numbers(table)
        return Samples(name, table.x, table.labels, table.features)
    table, x = read_like(path, label, like.table_columns, (*ignored, *like.ignored))
    say_unknown_categories(like.table_columns, table)
    return Samples(name, x, table.labels, like.features)


def _is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and kind_of(path) != FOLDER


def _read_labelled(path: Path, label: ColumnNames, images: ImageReader) -> Samples:
    if kind_of(path) == FOLDER:
        return Samples(_client_name(path), *_read_images(path, images))
    samples = read_samples(path, label)
    if samples.labels is None:
        rule = (
            f"have a column called {listing(map(quote, columns_of(label)))}"
            if samples.features
            else "hold the arrays x and y"
        )
        columns = listing(samples.features) or "x alone"
        raise DataError(f"{printable(path)} must {rule}, got {columns}")
    if not len(samples.labels):
        raise DataError(f"client {quote(samples.client)} must have at least one example, got none")
    return samples


def _client_name(path: Path) -> str:
    """The name of a client's file or folder."""
    name = path.name if kind_of(path) == FOLDER else path.stem
    return _require_text(name, f"the client's name in {printable(path.parent)}")


def _require_text(name: str, what: str) -> str:
    """A file's name may be any bytes; as the name of a client or class it must be text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise DataError(f"{what} must be UTF-8 text, got {quote(name)}") from None
    if not name.strip():
        raise DataError(f"{what} must not be blank, got {quote(name)}")
    return name


def _read_npz(path: Path) -> tuple[np.ndarray, Labels | None]:
    from .datasets.formats import read_some_npz

    arrays = read_some_npz(path, "x", "y")
    if "x" not in arrays:
        raise DataError(f"{printable(path)} must hold the arrays x and y, got none called x")
    x = _check_inputs(arrays["x"], path)
    return x, _check_labels(arrays["y"], len(x), path) if "y" in arrays else None


def _check_inputs(x: np.ndarray, path: Path | str) -> np.ndarray:
    """Images as bytes with channels, or rows of 32-bit floats."""
    from .datasets.formats import with_channels

    where = printable(path)
    if x.dtype.kind not in "fiub" or x.ndim < 2 or 0 in x.shape[1:]:
        raise DataError(
            f"{where}: x must be uint8 images or rows of numbers, got shape {x.shape} and type "
            f"{quote(str(x.dtype))}"
        )
    if x.dtype.kind == "f" and np.isinf(x).any():
        raise DataError(f"{where}: features must be finite or NaN for missing, got infinity")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return with_channels(x)
    with np.errstate(over="ignore"):
        rows = x.astype(np.float32)
    if np.isinf(rows).any():
        largest = np.abs(x[np.isinf(rows)]).max()
        raise DataError(f"{where}: features must fit into 32-bit floats, got {largest:g}")
    return rows


def _check_labels(y: np.ndarray, count: int, path: Path | str) -> Labels:
    where = printable(path)
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim not in (1, 2) or 0 in y.shape[1:]:
        raise DataError(
            f"{where}: y must be one label per example, or a row of numbers, got an array of shape "
            f"{y.shape}"
        )
    if len(y) != count:
        raise DataError(f"{where}: x and y must be equally long, got {count} and {len(y)}")
    if y.ndim == 2 and y.dtype.kind not in "biuf":
        raise DataError(f"{where}: rows of targets must be numbers, got {quote(str(y.dtype))}")
    if y.dtype.kind not in LABEL_KINDS:
        raise DataError(f"{where}: labels must be numbers or text, got {quote(str(y.dtype))}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise DataError(f"{where}: labels must be finite, got NaN or infinity")
    if y.ndim == 2:
        return Labels.of_rows(y)
    with reading(path, "have labels that are UTF-8 text"):
        labels = Labels.of_array(y)
    for name in labels.names:
        _require_text(name, f"{where}: every label")
    return labels


def _read_images(folder: Path, reader: ImageReader) -> tuple[np.ndarray, Labels]:
    """Images (N, H, W, 3), labelled by the folder in which they lie."""
    images: list[np.ndarray] = []
    labels: list[str] = []
    for class_folder in list_folder(folder):
        if kind_of(class_folder) != FOLDER:
            continue
        name = _require_text(class_folder.name, f"the class's name in {printable(folder)}")
        for path in list_folder(class_folder):
            if path.suffix.lower() not in IMAGE_ENDINGS:
                continue
            images.append(reader.read(path))
            labels.append(name)
            if images[-1].shape != images[0].shape:
                raise DataError(
                    f"{printable(path)}: images must all be {images[0].shape[:2]} pixels, got "
                    f"{images[-1].shape[:2]}: {RESIZE_ADVICE}"
                )
    if not images:
        raise DataError(
            f"client {quote(folder.name)}: {printable(folder)} must hold class folders with images "
            f"({', '.join(IMAGE_ENDINGS)}), got none"
        )
    return np.stack(images), Labels.of(labels)


def _join(parts: Sequence[Samples]) -> Dataset:
    """All clients' examples, after a look whether they are alike."""
    first = parts[0]
    for part in parts:
        where = f"client {quote(part.client)}"
        if part.x.shape[1:] != first.x.shape[1:]:
            raise DataError(
                f"{where}: examples must have the shape {first.x.shape[1:]} of client "
                f"{quote(first.client)}, got {part.x.shape[1:]}"
            )
        if part.x.dtype != first.x.dtype:
            raise DataError(
                f"{where}: examples must be of the type {first.x.dtype} of client "
                f"{quote(first.client)}, got {part.x.dtype}"
            )
        if part.features != first.features:
            raise DataError(
                f"{where}: columns must be those of client {quote(first.client)} "
                f"({listing(first.features)}), got {listing(part.features)}"
            )
        if part.labels is not None and first.labels is not None:
            require_alike(part.labels, first.labels, where, f"client {quote(first.client)}")
    return _dataset(
        np.concatenate([part.x for part in parts]),
        Labels.join([part.labels for part in parts if part.labels is not None]),
        _repeat([part.client for part in parts], [len(part.x) for part in parts]),
        first.features,
    )


def _repeat(names: Sequence[str], counts: Sequence[int]) -> np.ndarray:
    """Each name so often; as objects, since an array of text makes every name as long as the
    longest.
    """
    return np.repeat(np.array(names, dtype=object), counts)


def _dataset(
    x: np.ndarray, labels: Labels, owners: np.ndarray, features: tuple[str, ...]
) -> Dataset:
    classes = sort_classes(labels.names)
    if len(classes) < 2:
        raise DataError(f"labels must take at least two values, got {listing(classes)}")
    y = labels.number({name: number for number, name in enumerate(classes)})
    x = drop_colour(x)
    nobody = Arrays(x[:0], y[:0])
    return Dataset(
        Arrays(x, y),
        nobody,
        len(classes),
        owners,
        classes=classes,
        targets=labels.columns,
        features=features,
    )


def _digest(files: Mapping[str, Path]) -> str:
    """Of the files' names and contents: edited data are other data."""
    total = hashlib.sha256()
    for name, path in files.items():
        with reading(path, "be a readable file"), open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
