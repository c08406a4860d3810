"""Data sets by name."""

from ..dataset import Source
from .digits import Digits
from .fashion_mnist import FashionMnist
from .synthetic_mixture import SyntheticMixture

DATASETS: dict[str, type[Source]] = {
    "digits": Digits,
    "fashion-mnist": FashionMnist,
    "synthetic-mixture": SyntheticMixture,
}
