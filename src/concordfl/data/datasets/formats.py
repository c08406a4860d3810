"""File formats that several data sets share."""

import gzip
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset
from ..files import reading, require_file
from ..text import printable


def read_npz(path: Path, *names: str) -> list[np.ndarray]:
    """Arrays by name from an .npz file; nothing in it is executed."""
    arrays = read_some_npz(path, *names)
    missing = [name for name in names if name not in arrays]
    if missing:
        raise DataError(
            f"{printable(path)} must hold the arrays {', '.join(names)}, got none called "
            f"{', '.join(missing)}"
        )
    return [arrays[name] for name in names]


def read_some_npz(path: Path, *names: str) -> dict[str, np.ndarray]:
    """Those of the named arrays that an .npz file holds."""
    require_file(path)
    with (
        reading(path, "be a readable .npz file"),
        open(path, "rb") as file,
        np.load(file, allow_pickle=False) as arrays,
    ):
        # an entry that does not begin as an array is handed over as bytes
        return {name: np.asanyarray(arrays[name]) for name in names if name in arrays.files}


def images_from_npz(path: Path, num_classes: int = 10) -> Dataset:
    """x_train, y_train, x_test, y_test with uint8 images (N, H, W) or (N, H, W, C)."""
    x_train, y_train, x_test, y_test = read_npz(path, "x_train", "y_train", "x_test", "y_test")
    return Dataset(
        Arrays(with_channels(x_train), y_train.astype(np.int64)),
        Arrays(with_channels(x_test), y_test.astype(np.int64)),
        num_classes,
    )


def with_channels(images: np.ndarray) -> np.ndarray:
    return images[..., None] if images.ndim == 3 else images


def read_idx(path: Path) -> np.ndarray:
    """A uint8 array from an idx file (MNIST and its relatives), gzipped or not."""
    with reading(path, "be a readable idx file"):
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(
            f"{path} must be an idx file of unsigned bytes, got a header of {data[:4].hex()}"
        )
    rank = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=rank, offset=4).astype(int)
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank)
    if len(values) != shape.prod():
        raise DataError(
            f"{path} must hold {shape.prod()} bytes of data as its header says, got {len(values)}"
        )
    return values.reshape(shape)


IDX_FILES = tuple(
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)


def images_from_idx(folder: Path) -> Dataset:
    train, test = (
        Arrays(
            read_idx(folder / f"{part}-images-idx3-ubyte.gz")[..., None],
            read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64),
        )
        for part in ("train", "t10k")
    )
    return Dataset(train, test, num_classes=10)


def read_cifar_binary(paths: Iterable[Path], label_bytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 32, 32, 3) and labels (N, label_bytes) of the binary version of CIFAR."""
    records = []
    for path in paths:
        data = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if len(data) % (label_bytes + 3072):
            raise DataError(
                f"{path} must hold records of {label_bytes + 3072} bytes, got {len(data)} bytes"
            )
        records.append(data.reshape(-1, label_bytes + 3072))
    table = np.concatenate(records)
    images = table[:, label_bytes:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), table[:, :label_bytes].astype(np.int64)


def read_image(path: Path, mode: str, size: tuple[int, int] | None = None) -> np.ndarray:
    """(H, W, C) uint8 from an image file."""
    from PIL import Image

    require_file(path)
    with reading(path, "be an image"), warnings.catch_warnings():
        # A small file that claims to be a giant image would fill the memory.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(path) as image:
            picture = image.convert(mode)
    if size is not None and picture.size != size:
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[..., None] if pixels.ndim == 2 else pixels
