"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 50,000 + 10,000 colour images, 32x32."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form, Remote
from .formats import images_from_npz, read_cifar_binary

HOME = "https://www.cs.toronto.edu/~kriz"
FOLDER_10 = "cifar-10-batches-bin"
FOLDER_100 = "cifar-100-binary"


@dataclass(frozen=True)
class Cifar10(FileSource):
    name: ClassVar[str] = "cifar10"
    about: ClassVar[str] = "60,000 colour images, 32x32, ten classes"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"{HOME}/cifar-10-binary.tar.gz",
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            unpack=True,
        ),
    )

    def forms(self) -> Sequence[Form]:
        return (
            Form(
                (
                    *(f"{FOLDER_10}/data_batch_{n}.bin" for n in range(1, 6)),
                    f"{FOLDER_10}/test_batch.bin",
                ),
                _ten_from_binary,
            ),
            Form(
                ("cifar10_20k_5k.npz",),
                lambda folder: images_from_npz(folder / "cifar10_20k_5k.npz"),
            ),
        )


@dataclass(frozen=True)
class Cifar100(FileSource):
    name: ClassVar[str] = "cifar100"
    about: ClassVar[str] = "60,000 colour images, 32x32, 100 classes in 20 coarse ones"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"{HOME}/cifar-100-binary.tar.gz",
            "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
            unpack=True,
        ),
    )

    def forms(self) -> Sequence[Form]:
        return (Form((f"{FOLDER_100}/train.bin", f"{FOLDER_100}/test.bin"), _hundred_from_binary),)


def _ten_from_binary(folder: Path) -> Dataset:
    train, train_labels = read_cifar_binary(
        sorted((folder / FOLDER_10).glob("data_batch_*.bin")), label_bytes=1
    )
    test, test_labels = read_cifar_binary([folder / FOLDER_10 / "test_batch.bin"], label_bytes=1)
    return Dataset(
        Arrays(train, train_labels[:, 0]), Arrays(test, test_labels[:, 0]), num_classes=10
    )


def _hundred_from_binary(folder: Path) -> Dataset:
    train, train_labels = read_cifar_binary([folder / FOLDER_100 / "train.bin"], label_bytes=2)
    test, test_labels = read_cifar_binary([folder / FOLDER_100 / "test.bin"], label_bytes=2)
    coarse = np.zeros(100, dtype=int)
    coarse[train_labels[:, 1]] = train_labels[:, 0]
    return Dataset(
        Arrays(train, train_labels[:, 1]),
        Arrays(test, test_labels[:, 1]),
        num_classes=100,
        coarse=coarse,
    )
