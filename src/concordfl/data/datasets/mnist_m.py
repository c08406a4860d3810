"""MNIST-M (Ganin et al. 2016): MNIST digits blended with photographs, 32x32 in colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form
from .formats import images_from_npz, read_image

LABELS = ("mnist_m_train_labels.txt", "mnist_m_test_labels.txt")


@dataclass(frozen=True)
class MnistM(FileSource):
    name: ClassVar[str] = "mnist-m"
    about: ClassVar[str] = (
        "handwritten digits blended with photographs, 32x32 in colour, ten classes"
    )
    advice: ClassVar[str] = (
        "put the authors' mnist_m_train and mnist_m_test folders, with their label files, into one "
        "of these"
    )

    def forms(self) -> Sequence[Form]:
        return (
            Form(
                ("mnistm_10k_2k.npz",), lambda folder: images_from_npz(folder / "mnistm_10k_2k.npz")
            ),
            Form(LABELS, _from_folders),
        )


def _from_folders(folder: Path) -> Dataset:
    train, test = (_read(folder, part) for part in ("mnist_m_train", "mnist_m_test"))
    return Dataset(train, test, num_classes=10)


def _read(folder: Path, part: str) -> Arrays:
    """A text file with `name.png label` per line, and the images."""
    entries = [
        line.split()
        for line in (folder / f"{part}_labels.txt").read_text().splitlines()
        if line.strip()
    ]
    images = np.stack([read_image(folder / part / name, "RGB", (32, 32)) for name, _ in entries])
    return Arrays(images, np.array([int(label) for _, label in entries], dtype=np.int64))
