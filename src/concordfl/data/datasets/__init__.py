"""Data sets by name."""

from ..dataset import Source
from ..memory import Memory
from ..own import Folder, Table
from .cifar import Cifar10, Cifar100
from .digit_domains import DigitDomains
from .digits import Digits
from .fashion_mnist import FashionMnist
from .femnist import Femnist
from .heart_disease import HeartDisease
from .mnist import Mnist
from .mnist_m import MnistM
from .svhn import Svhn
from .synthetic_mixture import SyntheticMixture
from .three_datasets import ThreeDatasets
from .tiny_imagenet import TinyImagenet
from .two_gaussians import TwoGaussians
from .usps import Usps

DEFAULT_DATASET = "digits"
# a user's own data need no name: the key in `[data]` that says where they are is their name
OWN_DATA = ("folder", "table", "memory")

DATASETS: dict[str, type[Source]] = {
    "cifar10": Cifar10,
    "cifar100": Cifar100,
    "digit-domains": DigitDomains,
    "digits": Digits,
    "fashion-mnist": FashionMnist,
    "femnist": Femnist,
    "folder": Folder,
    "heart-disease": HeartDisease,
    "memory": Memory,
    "mnist": Mnist,
    "mnist-m": MnistM,
    "svhn": Svhn,
    "synthetic-mixture": SyntheticMixture,
    "table": Table,
    "three-datasets": ThreeDatasets,
    "tiny-imagenet": TinyImagenet,
    "two-gaussians": TwoGaussians,
    "usps": Usps,
}
