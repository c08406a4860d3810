"""Fashion-MNIST (Xiao et al. 2017): 60,000 + 10,000 images of clothing, 28x28, ten classes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core import Key
from ..dataset import Dataset, Source, find
from ..federation import Arrays
from .idx import read_idx

FILES = tuple(f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
SYSTEM = ("/usr/share/datasets/fashion-mnist",)


@dataclass(frozen=True)
class FashionMnist(Source):
    about: ClassVar[str] = "70,000 images of clothing, 28x28, ten classes"

    def read(self, key: Key) -> Dataset:
        folder = find("fashion-mnist", FILES, "on Debian, `apt-get install dataset-fashion-mnist`", SYSTEM)
        train, test = (
            Arrays(
                read_idx(folder / f"{part}-images-idx3-ubyte.gz")[..., None],
                read_idx(folder / f"{part}-labels-idx1-ubyte.gz").astype(np.int64),
            )
            for part in ("train", "t10k")
        )
        return Dataset(train, test, num_classes=10)
