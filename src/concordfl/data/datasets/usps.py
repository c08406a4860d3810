"""USPS (Hull 1994): 7,291 + 2,007 handwritten digits, 16x16."""

import bz2
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form, Remote
from .formats import images_from_npz

HOME = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"


@dataclass(frozen=True)
class Usps(FileSource):
    name: ClassVar[str] = "usps"
    about: ClassVar[str] = "9,298 handwritten digits, 16x16, ten classes"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(f"{HOME}/usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197"),
        Remote(f"{HOME}/usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118"),
    )

    def forms(self) -> Sequence[Form]:
        return (
            Form(("usps.npz",), lambda folder: images_from_npz(folder / "usps.npz")),
            Form(("usps.bz2", "usps.t.bz2"), _from_libsvm),
        )


def _from_libsvm(folder: Path) -> Dataset:
    return Dataset(_read(folder / "usps.bz2"), _read(folder / "usps.t.bz2"), num_classes=10)


def _read(path: Path) -> Arrays:
    """Lines of `label index:value ...`, labels from 1, values in [-1, 1]."""
    images, labels = [], []
    for number, line in enumerate(bz2.decompress(path.read_bytes()).decode().splitlines(), start=1):
        label, *entries = line.split()
        pixels = np.full(256, -1.0)
        try:
            for entry in entries:
                index, value = entry.split(":")
                pixels[int(index) - 1] = float(value)
            labels.append(int(float(label)) - 1)
        except (ValueError, IndexError):
            raise DataError(
                f"{path} must hold lines of `label index:value ...`, got {line[:40]!r} in line "
                f"{number}"
            ) from None
        images.append(np.rint((pixels + 1) / 2 * 255))
    return Arrays(
        np.array(images, dtype=np.uint8).reshape(-1, 16, 16, 1), np.array(labels, dtype=np.int64)
    )
