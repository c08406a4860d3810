"""FEMNIST (LEAF, Caldas et al. 2018): handwritten characters, 28x28, 62 classes, by writer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form


@dataclass(frozen=True)
class Femnist(FileSource):
    name: ClassVar[str] = "femnist"
    about: ClassVar[str] = (
        "handwritten characters, 28x28, 62 classes; natural clients are the writers"
    )
    advice: ClassVar[str] = (
        "make it with LEAF's preprocess.sh, and put its `train` and `test` folders into one of "
        "these"
    )

    def forms(self) -> Sequence[Form]:
        return (Form(("train", "test"), _from_leaf),)


def _from_leaf(folder: Path) -> Dataset:
    train, owners = _read(folder / "train")
    test, _ = _read(folder / "test")
    return Dataset(train, test, num_classes=62, owners=owners)


def _read(folder: Path) -> tuple[Arrays, np.ndarray]:
    """LEAF's JSON: `users`, and for each of them `user_data` with x (784 numbers, white is 1) and
    y.
    """
    images, labels, owners = [], [], []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text())
            for user in content["users"]:
                data = content["user_data"][user]
                images.append(np.array(data["x"], dtype=np.float64).reshape(-1, 28, 28, 1))
                labels.append(np.array(data["y"], dtype=np.int64))
                owners += [user] * len(data["y"])
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} must be JSON as LEAF writes it: {error!r}") from None
    if not images:
        raise DataError(f"{folder} must hold JSON files as LEAF writes them, got none")
    # As in MNIST, strokes are bright on a dark ground.
    pixels = np.rint((1 - np.concatenate(images)) * 255).astype(np.uint8)
    return Arrays(pixels, np.concatenate(labels)), np.array(owners)
