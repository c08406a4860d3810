"""A user's own data: a folder with one file (or folder of images) per client, or one table with a
client column.

Labels may be any values, strings too; classes are their sorted distinct values over all clients.
Nothing is guessed: what does not fit is one error that names the file and the rule.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

from ..core import DataError, Key, SettingError
from .arrays import Arrays, drop_colour
from .csv_table import read_csv
from .dataset import Dataset, Source
from .files import FILE, FOLDER, kind_of, list_folder, reading
from .labels import Labels, sort_classes
from .text import listing, printable, quote

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")
TABLE_ENDINGS = (".npz", ".csv")
LABEL_KINDS = "biufUS"  # numpy's letters for truth values, numbers and text


class Samples(NamedTuple):
    """One client's examples as they were read: labels may be missing, features may have names."""

    client: str
    x: np.ndarray
    labels: Labels | None
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
    has_clients: ClassVar[bool] = True

    standardise: bool = True
    folder: str = "."
    label: str = "y"  # the label's column in .csv files

    def fingerprint(self) -> str:
        root = Path(self.folder)
        if kind_of(root) != FOLDER:
            return _digest({})
        with reading(root, "be a readable folder"):
            paths = sorted(path for path in root.rglob("*") if path.is_file())
        return _digest({str(path.relative_to(root)): path for path in paths})

    def read(self, key: Key) -> Dataset:
        root = Path(self.folder)
        if kind_of(root) != FOLDER:
            raise DataError(f"data.folder must be a folder, got {quote(self.folder)}")
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
        repeated = [name for name, count in Counter(map(_client_name, paths)).items() if count > 1]
        if repeated:
            raise DataError(
                f"{printable(root)} must hold one file or folder per client, got several called "
                f"{listing(repeated)}"
            )
        return _join([_read_labelled(path, self.label) for path in paths])


@dataclass(frozen=True)
class Table(Source):
    """`table = "all.csv"`, `client = "hospital"`, `label = "y"`: one table, a column of which says
    whose each row is.
    """

    about: ClassVar[str] = "your own data: one .csv with a column that says whose each row is"
    has_clients: ClassVar[bool] = True

    standardise: bool = True
    table: str = ""
    client: str = "client"
    label: str = "y"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.client == self.label:
            raise SettingError(
                f"client must be another column than label, got {quote(self.client)} for both"
            )

    def fingerprint(self) -> str:
        path = Path(self.table)
        return _digest({path.name: path} if kind_of(path) == FILE else {})

    def read(self, key: Key) -> Dataset:
        table = read_csv(
            Path(self.table), self.label, self.client, required=(self.client, self.label)
        )
        rows: dict[str, list[int]] = defaultdict(list)  # of each client
        for row, client in enumerate(table.clients):
            rows[client].append(row)
        if table.labels is None or not rows:
            raise DataError(
                f"{printable(self.table)}: there must be at least one example, got none"
            )
        clients = sorted(rows)
        order = np.concatenate([rows[client] for client in clients])
        owners = _repeat(clients, [len(rows[client]) for client in clients])
        labels = Labels(table.labels.names, table.labels.index[order])
        return _dataset(table.x[order], labels, owners, table.features)


def read_samples(path: Path, label: str = "y", client: str | None = None) -> Samples:
    """Examples from a .npz file, a .csv file or a folder of class folders of images; of the files,
    labels may be missing.

    `client` names a column that is no feature, where there is one.
    """
    kind = kind_of(path)
    if kind is None:
        raise DataError(f"the client's data must exist, got {printable(path)}")
    name = _client_name(path)
    if kind == FOLDER:
        return Samples(name, *_read_images(path))
    if path.suffix.lower() == ".csv":
        table = read_csv(path, label, client)
        return Samples(name, table.x, table.labels, table.features)
    return Samples(name, *_read_npz(path))


def _read_labelled(path: Path, label: str) -> Samples:
    samples = read_samples(path, label)
    if samples.labels is None:
        rule = (
            f"have a column called {quote(label)}"
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
    if y.ndim != 1:
        raise DataError(
            f"{where}: y must be one label per example, got an array of shape {y.shape}"
        )
    if len(y) != count:
        raise DataError(f"{where}: x and y must be equally long, got {count} and {len(y)}")
    if y.dtype.kind not in LABEL_KINDS:
        raise DataError(f"{where}: labels must be numbers or text, got {quote(str(y.dtype))}")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise DataError(f"{where}: labels must be finite, got NaN or infinity")
    with reading(path, "have labels that are UTF-8 text"):
        labels = Labels.of_array(y)
    for name in labels.names:
        _require_text(name, f"{where}: every label")
    return labels


def _read_images(folder: Path) -> tuple[np.ndarray, Labels]:
    """Images (N, H, W, 3), labelled by the folder in which they lie."""
    from .datasets.formats import read_image

    images: list[np.ndarray] = []
    labels: list[str] = []
    for class_folder in list_folder(folder):
        if kind_of(class_folder) != FOLDER:
            continue
        name = _require_text(class_folder.name, f"the class's name in {printable(folder)}")
        for path in list_folder(class_folder):
            if path.suffix.lower() not in IMAGE_ENDINGS:
                continue
            images.append(read_image(path, "RGB"))
            labels.append(name)
            if images[-1].shape != images[0].shape:
                raise DataError(
                    f"{printable(path)}: images must all be {images[0].shape[:2]} pixels, got "
                    f"{images[-1].shape[:2]}"
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
    return Dataset(Arrays(x, y), nobody, len(classes), owners, classes=classes, features=features)


def _digest(files: Mapping[str, Path]) -> str:
    """Of the files' names and contents: edited data are other data."""
    total = hashlib.sha256()
    for name, path in files.items():
        with reading(path, "be a readable file"), open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{name}\0{content}\n".encode(errors="surrogateescape"))
    return total.hexdigest()
