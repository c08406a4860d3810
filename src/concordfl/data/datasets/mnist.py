"""MNIST (LeCun et al. 1998): 60,000 + 10,000 handwritten digits, 28x28.

The writers are known where QMNIST's `mnist_writers.npz` is at hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..dataset import Dataset, FileSource, Form, Remote
from .formats import IDX_FILES, images_from_idx, images_from_npz, read_npz

HOME = "https://storage.googleapis.com/cvdf-datasets/mnist"


@dataclass(frozen=True)
class Mnist(FileSource):
    name: ClassVar[str] = "mnist"
    about: ClassVar[str] = (
        "70,000 handwritten digits, 28x28, ten classes; natural clients are the writers"
    )
    home: ClassVar[tuple[Remote, ...]] = (
        Remote(
            f"{HOME}/{IDX_FILES[0]}",
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[1]}",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[2]}",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        Remote(
            f"{HOME}/{IDX_FILES[3]}",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    )

    def forms(self) -> Sequence[Form]:
        return (Form(("mnist.npz",), _from_npz), Form(IDX_FILES, images_from_idx))


def _from_npz(folder: Path) -> Dataset:
    data = images_from_npz(folder / "mnist.npz")
    if not (folder / "mnist_writers.npz").is_file():
        return data
    (writers,) = read_npz(folder / "mnist_writers.npz", "writer_train")
    return data._replace(owners=np.char.add("writer-", np.char.zfill(writers.astype(str), 4)))
