"""The 1,797 handwritten 8x8 digits that come with scikit-learn: the default, needs nothing."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError, Key
from ..arrays import Arrays
from ..dataset import Dataset, Source

TEST_EVERY = 5  # each fifth example of a class is for the test; there is no official test set


@dataclass(frozen=True)
class Digits(Source):
    about: ClassVar[str] = "1,797 handwritten digits, 8x8, ten classes (scikit-learn)"

    def read(self, key: Key) -> Dataset:
        table = np.loadtxt(_file(), delimiter=",", dtype=np.float32)
        # Pixel values 0..16 become 0..255 as in other image sets.
        x = np.rint(table[:, :-1] * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
        y = table[:, -1].astype(np.int64)
        test = np.zeros(len(y), dtype=bool)
        for label in range(10):
            test[np.flatnonzero(y == label)[::TEST_EVERY]] = True
        return Dataset(Arrays(x[~test], y[~test]), Arrays(x[test], y[test]), num_classes=10)


def _file() -> Path:
    """Read from scikit-learn's folder without importing scikit-learn, which takes longer than a
    round on these data.
    """
    spec = importlib.util.find_spec("sklearn")
    file = (
        Path((spec.submodule_search_locations or ["."])[0] if spec else ".")
        / "datasets/data/digits.csv.gz"
    )
    if not file.is_file():
        raise DataError(
            "data set 'digits' comes with scikit-learn, which must be installed, got none: pip "
            "install scikit-learn"
        )
    return file
