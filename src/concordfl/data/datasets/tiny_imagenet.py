"""Tiny-ImageNet: 100,000 + 10,000 colour images, 64x64, 200 classes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form, Remote
from .formats import read_image

ROOT = "tiny-imagenet-200"


@dataclass(frozen=True)
class TinyImagenet(FileSource):
    name: ClassVar[str] = "tiny-imagenet"
    about: ClassVar[str] = "110,000 colour images, 64x64, 200 classes"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"http://cs231n.stanford.edu/{ROOT}.zip",
            "sha256:6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            unpack=True,
        ),
    )

    def forms(self) -> Sequence[Form]:
        return (
            Form((f"{ROOT}/wnids.txt", f"{ROOT}/train", f"{ROOT}/val/val_annotations.txt"), _read),
        )


def _read(folder: Path) -> Dataset:
    root = folder / ROOT
    names = (root / "wnids.txt").read_text().split()
    numbers = {name: number for number, name in enumerate(names)}
    train = [
        (path, numbers[name])
        for name in names
        for path in sorted((root / "train" / name / "images").glob("*.JPEG"))
    ]
    test = []
    for line in (root / "val/val_annotations.txt").read_text().splitlines():
        file, name, *_ = line.split("\t")
        if name not in numbers:
            raise DataError(
                f"{root}/val/val_annotations.txt must name classes of wnids.txt, got {name!r}"
            )
        test.append((root / "val/images" / file, numbers[name]))
    return Dataset(_load(train), _load(test), num_classes=len(names), classes=tuple(names))


def _load(entries: Sequence[tuple[Path, int]]) -> Arrays:
    images = np.stack([read_image(path, "RGB", (64, 64)) for path, _ in entries])
    return Arrays(images, np.array([label for _, label in entries], dtype=np.int64))
