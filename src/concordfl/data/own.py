"""A user's own data: a folder with one file (or folder of images) per client, or one table with a
client column.

Labels may be any values, strings too; classes are their sorted distinct values over all clients.
Nothing is guessed: what does not fit is one error that names the file and the rule.
"""

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import DataError, Key
from .dataset import Dataset, Source
from .federation import Arrays

MISSING = ("", "?", "na", "nan", "null", "none")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")


class Samples(NamedTuple):
    """Examples of a client that may have no labels; `features` where they have names."""

    client: str
    x: np.ndarray
    labels: np.ndarray | None
    features: tuple[str, ...] = ()


class Own(NamedTuple):
    """One client's examples before labels are numbered; `features` where they have names."""

    client: str
    x: np.ndarray
    labels: np.ndarray
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class Folder(Source):
    """`folder = "my-clients/"`: a .npz or .csv file per client, or per client a folder of class
    folders of images.
    """

    about: ClassVar[str] = (
        "your own data: a folder with a .npz or .csv per client, or class folders of images per "
        "client"
    )

    standardise: bool = True
    folder: str = "."
    label: str = "y"  # the label's column in .csv files

    def fingerprint(self) -> str:
        root = Path(self.folder)
        return _digest(
            {
                str(path.relative_to(root)): path
                for path in sorted(root.rglob("*"))
                if path.is_file()
            }
        )

    def read(self, key: Key) -> Dataset:
        root = Path(self.folder)
        if not root.is_dir():
            raise DataError(f"data.folder must be a folder, got {self.folder!r}")
        entries = sorted(path for path in root.iterdir() if not path.name.startswith("."))
        clients = [
            path for path in entries if path.is_dir() or path.suffix.lower() in (".npz", ".csv")
        ]
        if not clients:
            raise DataError(
                f"{root} must hold a .npz file, a .csv file or a folder per client, got none"
            )
        names = [path.stem if path.is_file() else path.name for path in clients]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise DataError(
                f"{root} must hold one file or folder per client, got several called "
                f"{', '.join(twice)}"
            )
        return _dataset([read_client(path, self.label) for path in clients])


@dataclass(frozen=True)
class Table(Source):
    """`table = "all.csv"`, `client = "hospital"`, `label = "y"`: one table, a column of which says
    whose each row is.
    """

    about: ClassVar[str] = "your own data: one .csv with a column that says whose each row is"

    standardise: bool = True
    table: str = ""
    client: str = "client"
    label: str = "y"

    def fingerprint(self) -> str:
        path = Path(self.table)
        return _digest({path.name: path} if path.is_file() else {})

    def read(self, key: Key) -> Dataset:
        path = Path(self.table)
        header, rows = _read_csv(path)
        client, label = _column(path, header, self.client), _column(path, header, self.label)
        owners = np.array([row[client] for row in rows])
        parts = []
        for owner in np.unique(owners):
            own = [
                (number, row) for number, row in enumerate(rows, start=2) if row[client] == owner
            ]
            x, labels = _features(path, header, own, label, skip={client, label})
            assert labels is not None
            parts.append(Own(str(owner), x, labels, _names(header, {client, label})))
        return _dataset(parts)


def _digest(files: Mapping[str, Path]) -> str:
    """Of the files' names and contents: edited data are other data."""
    total = hashlib.sha256()
    for name, path in files.items():
        total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def read_client(path: Path, label: str = "y", skip: str | None = None) -> Own:
    """One client's labelled examples; see `read_samples`."""
    samples = read_samples(path, label, skip)
    if samples.labels is None:
        rule = f"have a column called {label!r}" if samples.features else "hold the arrays x and y"
        raise DataError(f"{path} must {rule}, got {', '.join(samples.features) or 'x alone'}")
    return Own(samples.client, samples.x, samples.labels, samples.features)


def read_samples(path: Path, label: str = "y", skip: str | None = None) -> Samples:
    """Examples from a .npz file, a .csv file or a folder of class folders of images; of the files,
    labels may be missing.

    `skip` names a column that is no feature, where there is one.
    """
    if not path.exists():
        raise DataError(f"the client's data must exist, got {path}")
    if path.is_dir():
        return Samples(*_from_images(path))
    if path.suffix.lower() == ".csv":
        header, rows = _read_csv(path)
        place = header.index(label) if label in header else None
        left_out = {header.index(name) for name in (label, skip) if name in header}
        x, labels = _features(path, header, list(enumerate(rows, start=2)), place, skip=left_out)
        return Samples(path.stem, x, labels, _names(header, left_out))
    return _from_npz(path)


def _from_npz(path: Path) -> Samples:
    from .datasets.formats import read_some_npz, with_channels

    arrays = read_some_npz(path, "x", "y")
    if "x" not in arrays:
        raise DataError(f"{path} must hold the arrays x and y, got none called x")
    x, y = arrays["x"], arrays.get("y")
    if y is not None and (y.ndim != 1 or x.ndim < 1):
        raise DataError(f"{path}: y must be one label per example, got an array of shape {y.shape}")
    if y is not None and len(x) != len(y):
        raise DataError(f"{path}: x and y must be equally long, got {len(x)} and {len(y)}")
    if y is not None and y.dtype.kind == "f" and not np.isfinite(y).all():
        raise DataError(f"{path}: labels must be finite, got NaN or infinity")
    if x.dtype.kind == "f" and np.isinf(x).any():
        raise DataError(f"{path}: features must be finite or NaN for missing, got infinity")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return Samples(path.stem, with_channels(x), y)
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(
            f"{path}: x must be uint8 images or rows of numbers, got shape {x.shape} and type "
            f"{x.dtype}"
        )
    rows = x.astype(np.float32)
    if np.isinf(rows).any():
        raise DataError(
            f"{path}: features must fit into 32-bit floats, got {np.abs(x[np.isfinite(x)]).max():g}"
        )
    return Samples(path.stem, rows, y)


def _from_images(folder: Path) -> Own:
    from .datasets.formats import read_image

    images: list[np.ndarray] = []
    labels: list[str] = []
    for class_folder in sorted(path for path in folder.iterdir() if path.is_dir()):
        for path in sorted(
            path for path in class_folder.iterdir() if path.suffix.lower() in IMAGES
        ):
            images.append(read_image(path, "RGB"))
            labels.append(class_folder.name)
            if images[-1].shape != images[0].shape:
                raise DataError(
                    f"{path}: images must all be {images[0].shape[:2]} pixels, got "
                    f"{images[-1].shape[:2]}"
                )
    if not images:
        raise DataError(
            f"client {folder.name!r}: {folder} must hold class folders with images "
            f"({', '.join(IMAGES)}), got none"
        )
    return Own(folder.name, np.stack(images), np.array(labels))


def _read_csv(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [row for row in csv.reader(file) if any(value.strip() for value in row)]
    except FileNotFoundError:
        raise DataError(f"the table must exist, got {path}") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} must be a readable .csv file: {error}") from None
    if not rows:
        raise DataError(f"{path} must have a header line, got an empty file")
    header = [name.strip() for name in rows[0]]
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise DataError(
                f"{path}, line {number}: must have {len(header)} values as the header, got "
                f"{len(row)}"
            )
    return header, [[value.strip() for value in row] for row in rows[1:]]


def _column(path: Path, header: Sequence[str], name: str) -> int:
    if name not in header:
        raise DataError(f"{path} must have a column called {name!r}, got {', '.join(header)}")
    return list(header).index(name)


def _names(header: Sequence[str], skip: Iterable[int]) -> tuple[str, ...]:
    return tuple(name for place, name in enumerate(header) if place not in set(skip))


def _features(
    path: Path,
    header: Sequence[str],
    rows: Sequence[tuple[int, Sequence[str]]],
    label: int | None,
    skip: set[int],
) -> tuple[np.ndarray, np.ndarray | None]:
    """The features of some rows, and their labels where there is a column of them."""
    columns = [place for place in range(len(header)) if place not in skip]
    x = np.empty((len(rows), len(columns)), dtype=np.float32)
    for at, (number, row) in enumerate(rows):
        if label is not None and row[label].lower() in MISSING:
            raise DataError(
                f"{path}, line {number}: every row must have a label in column {header[label]!r}, "
                f"got {row[label]!r}"
            )
        for to, place in enumerate(columns):
            x[at, to] = _number(path, number, header[place], row[place])
    return x, None if label is None else np.array([row[label] for _, row in rows], dtype=str)


def _number(path: Path, line: int, column: str, text: str) -> float:
    if text.lower() in MISSING:
        return np.nan
    try:
        number = float(text)
    except ValueError:
        number = np.inf
    if abs(number) > float(np.finfo(np.float32).max):
        raise DataError(
            f"{path}, line {line}: column {column!r} must be a number or missing, got {text!r}"
        )
    return number


def _dataset(parts: Sequence[Own]) -> Dataset:
    if not parts:
        raise DataError("there must be at least one example, got none")
    for part in parts:
        if not len(part.labels):
            raise DataError(f"client {part.client!r} must have at least one example, got none")
        if part.x.shape[1:] != parts[0].x.shape[1:] or part.x.dtype != parts[0].x.dtype:
            raise DataError(
                f"client {part.client!r}: examples must have the shape {parts[0].x.shape[1:]} of "
                "client "
                f"{parts[0].client!r}, got {part.x.shape[1:]}"
            )
        if part.features != parts[0].features:
            raise DataError(
                f"client {part.client!r}: columns must be those of client {parts[0].client!r} "
                f"({', '.join(parts[0].features)}), got {', '.join(part.features)}"
            )
    classes, y = np.unique(
        _plain(np.concatenate([part.labels for part in parts])), return_inverse=True
    )
    if len(classes) < 2:
        raise DataError(f"labels must take at least two values, got {classes.tolist()}")
    x = without_colour(np.concatenate([part.x for part in parts]))
    owners = np.concatenate([np.full(len(part.labels), part.client) for part in parts])
    nobody = Arrays(x[:0], np.zeros(0, dtype=np.int64))
    names = tuple(class_name(value) for value in classes.tolist())
    return Dataset(
        Arrays(x, y.astype(np.int64)),
        nobody,
        len(classes),
        owners,
        classes=names,
        features=parts[0].features,
    )


def class_name(value: object) -> str:
    """A label as it is recorded: 1, 1.0 and "1" are the same class."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return str(value)
    return str(int(number)) if number.is_integer() else repr(number)


def without_colour(images: np.ndarray) -> np.ndarray:
    """One channel where all images are grey."""
    if images.ndim != 4 or images.shape[3] != 3:
        return images
    grey = (images[..., 0] == images[..., 1]).all() and (images[..., 0] == images[..., 2]).all()
    return images[..., :1] if grey else images


def _plain(labels: np.ndarray) -> np.ndarray:
    """Numbers where all labels are numbers, so that 10 comes after 9; "1" and "1.0" are then the
    same class.
    """
    try:
        return labels.astype(np.float64) if labels.dtype.kind in "US" else labels
    except ValueError:
        return labels
