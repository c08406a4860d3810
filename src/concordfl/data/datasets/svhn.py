"""SVHN (Netzer et al. 2011): 73,257 + 26,032 house numbers cut to digits, 32x32 in colour."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form, Remote

HOME = "http://ufldl.stanford.edu/housenumbers"
FILES = ("train_32x32.mat", "test_32x32.mat")


@dataclass(frozen=True)
class Svhn(FileSource):
    name: ClassVar[str] = "svhn"
    about: ClassVar[str] = "99,289 digits of house numbers, 32x32 in colour, ten classes"
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"{HOME}/{FILES[0]}",
            "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
        ),
        Remote(
            f"{HOME}/{FILES[1]}",
            "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        ),
    )

    def forms(self) -> Sequence[Form]:
        return (
            Form(
                FILES,
                lambda folder: Dataset(
                    _read(folder / FILES[0]), _read(folder / FILES[1]), num_classes=10
                ),
            ),
        )


def _read(path: Path) -> Arrays:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        file = loadmat(path)
        images, labels = file["X"], file["y"]
    except (OSError, ValueError, KeyError, MatReadError) as error:
        raise DataError(f"{path} must be a MATLAB file with X and y: {error}") from None
    # Images come as (32, 32, 3, N); the digit 0 has the label 10.
    return Arrays(
        np.ascontiguousarray(images.transpose(3, 0, 1, 2)), labels.reshape(-1).astype(np.int64) % 10
    )
