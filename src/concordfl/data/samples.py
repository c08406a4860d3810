"""One client's examples, from a file, images or memory; and those of all clients as a data set."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core import DataError
from .arrays import Arrays, drop_colour
from .columns import say_unknown_categories
from .csv_table import columns_of, read_csv
from .dataset import Dataset
from .files import FOLDER, kind_of, list_folder, reading
from .labels import Labels, require_alike, require_several, sort_classes
from .own_tables import read_like, require_numbers
from .preprocessing import Preprocessing
from .text import listing, printable, quote

IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".pgm", ".ppm", ".tif", ".tiff")
LABEL_KINDS = "biufUS"  # numpy's letters for truth values, numbers and text
RESIZE_ADVICE = "resize = [HEIGHT, WIDTH] in [data] brings them to one size"
IMAGES_PER_LINE = 1000  # between two lines that say how many have been read

ColumnNames = str | tuple[str, ...]
log = logging.getLogger(__name__)


class Samples(NamedTuple):
    """One client's examples as they were read: labels may be missing, features may have names."""

    client: str
    x: np.ndarray
    labels: Labels | None
    features: tuple[str, ...] = ()


class Form(NamedTuple):
    """What arrays must have in common to be those of one federation."""

    shape: tuple[int, ...]  # of an example as it was read
    type: str  # numpy's name
    features: tuple[str, ...]  # where they have names
    targets: int  # per example

    @classmethod
    def of(cls, x: np.ndarray, labels: Labels | None, features: tuple[str, ...]) -> "Form":
        targets = max(len(labels.columns), 1) if labels is not None else 1
        return cls(x.shape[1:], x.dtype.name, features, targets)


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
    name = client_of_file(path)
    if kind == FOLDER:
        return Samples(name, *_read_images(path, ImageReader(like.resize if like else None)))
    if not is_csv(path):
        return Samples(name, *_read_npz(path))
    ignored = () if client is None else (client,)
    if like is None or not like.features:
        table = read_csv(path, label, ignored=ignored)
        require_numbers(table)
        return Samples(name, table.x, table.labels, table.features)
    table, x = read_like(path, label, like.table_columns, (*ignored, *like.ignored))
    say_unknown_categories(like.table_columns, table)
    return Samples(name, x, table.labels, like.features)


def is_csv(path: Path) -> bool:
    return path.suffix.lower() == ".csv" and kind_of(path) != FOLDER


def read_labelled(path: Path, label: ColumnNames, images: ImageReader) -> Samples:
    if kind_of(path) == FOLDER:
        return Samples(client_of_file(path), *_read_images(path, images))
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


def client_of_file(path: Path) -> str:
    """The name of a client's file or folder."""
    name = path.name if kind_of(path) == FOLDER else path.stem
    return require_text(name, f"the client's name in {printable(path.parent)}")


def require_text(name: str, what: str) -> str:
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
    x = check_inputs(arrays["x"], path)
    return x, check_labels(arrays["y"], len(x), path) if "y" in arrays else None


def check_inputs(x: np.ndarray, path: Path | str) -> np.ndarray:
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


def check_labels(y: np.ndarray, count: int, path: Path | str) -> Labels:
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
        require_text(name, f"{where}: every label")
    return labels


def _read_images(folder: Path, reader: ImageReader) -> tuple[np.ndarray, Labels]:
    """Images (N, H, W, 3), labelled by the folder in which they lie."""
    images: list[np.ndarray] = []
    labels: list[str] = []
    for class_folder in list_folder(folder):
        if kind_of(class_folder) != FOLDER:
            continue
        name = require_text(class_folder.name, f"the class's name in {printable(folder)}")
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


def require_same_form(form: Form, first: Form, where: str, whose: str) -> None:
    if form.shape != first.shape:
        raise DataError(
            f"{where}: examples must have the shape {first.shape} of {whose}, got {form.shape}"
        )
    if form.type != first.type:
        raise DataError(
            f"{where}: examples must be of the type {first.type} of {whose}, got {form.type}"
        )
    if form.features != first.features:
        raise DataError(
            f"{where}: columns must be those of {whose} ({listing(first.features)}), got "
            f"{listing(form.features)}"
        )
    require_alike(form.targets, first.targets, where, whose)


def join_samples(parts: Sequence[Samples]) -> Dataset:
    """All clients' examples, after a look whether they are alike."""
    first = parts[0]
    form, whose = Form.of(*first[1:]), f"client {quote(first.client)}"
    for part in parts:
        require_same_form(Form.of(*part[1:]), form, f"client {quote(part.client)}", whose)
    return make_dataset(
        np.concatenate([part.x for part in parts]),
        Labels.join([part.labels for part in parts if part.labels is not None]),
        repeat_names([part.client for part in parts], [len(part.x) for part in parts]),
        first.features,
    )


def repeat_names(names: Sequence[str], counts: Sequence[int]) -> np.ndarray:
    """Each name so often; as objects, since an array of text makes every name as long as the
    longest.
    """
    return np.repeat(np.array(names, dtype=object), counts)


def make_dataset(
    x: np.ndarray, labels: Labels, owners: np.ndarray, features: tuple[str, ...]
) -> Dataset:
    classes = sort_classes(labels.names)
    require_several(classes)
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
