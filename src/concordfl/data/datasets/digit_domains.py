"""Digits of several domains, all 32x32 in colour: FedVC's Digit-5 with the domains that are at
hand.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core import Count, Key, SettingError
from ..arrays import Arrays
from ..dataset import Dataset, Source
from .digits import Digits
from .formats import read_npz
from .mnist import Mnist
from .mnist_m import MnistM
from .svhn import Svhn
from .usps import Usps

DOMAINS: dict[str, type[Source]] = {
    "digits": Digits,
    "mnist": Mnist,
    "mnist-m": MnistM,
    "svhn": Svhn,
    "usps": Usps,
}


@dataclass(frozen=True)
class DigitDomains(Source):
    about: ClassVar[str] = (
        "digits of several domains (mnist, mnist-m, usps, digits; svhn where it is at hand), 32x32 "
        "in colour"
    )

    domains: tuple[str, ...] = ("mnist", "mnist-m", "usps", "digits")
    per_domain: Count = 1400  # training examples taken of each

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.domains:
            raise SettingError("domains must name at least one domain, got none")
        for domain in self.domains:
            if domain not in DOMAINS:
                raise SettingError(f"domains must be among {', '.join(DOMAINS)}, got {domain!r}")

    def read(self, key: Key) -> Dataset:
        parts = {}
        for name in self.domains:
            data = DOMAINS[name]().read(key)
            if name == "mnist" and "mnist-m" in self.domains:
                data = _without_twins(data)
            chosen = key.child(name).numpy().permutation(len(data.train.y))[: self.per_domain]
            parts[name] = data._replace(train=data.train.take(np.sort(chosen)))
        train = [_in_colour(part.train) for part in parts.values()]
        test = [_in_colour(part.test) for part in parts.values()]
        owners = np.concatenate([np.full(len(part.train.y), name) for name, part in parts.items()])
        return Dataset(Arrays.join(train), Arrays.join(test), num_classes=10, owners=owners)


def _without_twins(mnist: Dataset) -> Dataset:
    """MNIST without the digits from which MNIST-M was made, where that is known: none is trained on
    and tested on.
    """
    form, folder = MnistM().locate()
    if form.files != ("mnistm_10k_2k.npz",):
        return mnist
    train, test = read_npz(folder / form.files[0], "idx_train", "idx_test")
    keep = [
        np.setdiff1d(np.arange(len(part.y)), twins)
        for part, twins in ((mnist.train, train), (mnist.test, test))
    ]
    return mnist._replace(train=mnist.train.take(keep[0]), test=mnist.test.take(keep[1]))


def _in_colour(arrays: Arrays) -> Arrays:
    from PIL import Image

    def resize(image: np.ndarray) -> np.ndarray:
        picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("RGB")
        return np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR))

    if not len(arrays.y):
        return Arrays(np.zeros((0, 32, 32, 3), dtype=np.uint8), arrays.y)
    return Arrays(np.stack([resize(image) for image in arrays.x]), arrays.y)
