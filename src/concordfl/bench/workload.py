"""The workloads that everything is timed on, and their data."""

import contextlib
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..config import Config
from ..core import DataError, Key
from ..data.datasets import DATASETS
from ..inputs import load_config
from ..models import make_builder

DATASET = "fashion-mnist"
IMAGE_SHAPE = (28, 28, 1)  # as the data set has them
NUM_CLASSES = 10
QUICK_CLIENTS = 8


@dataclass(frozen=True)
class Workload:
    """FedAvg with lenet: `cohort` of `clients` a round, an epoch each, without evaluation."""

    name: str
    clients: int
    examples: int  # of each client
    cohort: int
    batch_size: int
    lr: float = 0.01
    momentum: float = 0.9

    @property
    def description(self) -> str:
        asked = "all" if self.cohort == self.clients else str(self.cohort)
        return (
            f"{self.clients:,} clients x {self.examples} images, {asked} a round, lenet, "
            f"batch {self.batch_size}, one epoch"
        )

    def quick(self) -> "Workload":
        """A small one of the same kind."""
        cohort = QUICK_CLIENTS if self.cohort == self.clients else QUICK_CLIENTS // 2
        examples = min(self.examples, 2 * self.batch_size)
        name = f"{QUICK_CLIENTS} x {examples}"
        return replace(self, name=name, clients=QUICK_CLIENTS, examples=examples, cohort=cohort)

    def settings(self, rounds: int, algorithm: str = "fedavg") -> dict[str, Any]:
        """The sections of a run; what is evaluated is its last round alone."""
        return {
            "run": {"rounds": rounds, "evaluate_every": rounds, "cohort": self.cohort},
            "scenario": {"split": [1.0, 0.0, 0.0]},
            "model": {"name": "lenet"},
            "training": {
                "lr": self.lr,
                "momentum": self.momentum,
                "batch_size": self.batch_size,
                "epochs": 1,
            },
            "algorithm": {"name": algorithm},
        }


MANY_IMAGES = Workload("40 x 300", clients=40, examples=300, cohort=40, batch_size=64)
MANY_CLIENTS = Workload("1,000 x 50", clients=1000, examples=50, cohort=50, batch_size=10)


class Images(NamedTuple):
    """uint8 images, (N, 28, 28, 1), and their classes, (N,)."""

    x: np.ndarray
    y: np.ndarray
    source: str  # a sentence


@lru_cache(maxsize=1)
def images(count: int) -> Images:
    """Of Fashion-MNIST; random ones of the same shape where it is not there, or too few."""
    with contextlib.suppress(DataError):
        train = DATASETS[DATASET](limit=count).load(Key(0, "benchmark")).train
        if len(train.x) == count:
            return Images(train.x, train.y, "Images are Fashion-MNIST's.")
    random = np.random.default_rng(0)
    return Images(
        random.integers(0, 256, (count, *IMAGE_SHAPE), dtype=np.uint8),
        np.arange(count) % NUM_CLASSES,  # all classes are there
        "Images are random, of Fashion-MNIST's shape, as the data set is not there: timings do not "
        "depend on pixels.",
    )


def client_arrays(workload: Workload) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Each client's images and classes, as `concordfl.run(clients=...)` takes them."""
    found, size = images(workload.clients * workload.examples), workload.examples
    bounds = [slice(start, start + size) for start in range(0, len(found.y), size)]
    return {
        f"client-{number:04d}": (found.x[part], found.y[part]) for number, part in enumerate(bounds)
    }


def make_config(workload: Workload, rounds: int, algorithm: str = "fedavg") -> Config:
    """The run as `concordfl.run` would have it."""
    return load_config(
        workload.settings(rounds, algorithm),
        clients=client_arrays(workload),
        data={"standardise": False},
    )


class Stacked(NamedTuple):
    """Examples of all clients as a program without any library has them."""

    x: Tensor  # (clients, examples, 1, 28, 28)
    y: Tensor  # (clients, examples)


def stack_clients(workload: Workload) -> Stacked:
    found = images(workload.clients * workload.examples)
    by_client = (workload.clients, workload.examples)
    x = torch.from_numpy(found.x).float().div_(255).reshape(*by_client, 1, *IMAGE_SHAPE[:2])
    return Stacked(x, torch.from_numpy(found.y).reshape(by_client))


def network() -> nn.Module:
    """lenet, made of nothing but PyTorch's own layers, in PyTorch's memory layout for images."""
    torch.manual_seed(0)
    made = make_builder("lenet", (1, *IMAGE_SHAPE[:2]), NUM_CLASSES, {})()
    plain = nn.Sequential(made.get_submodule("encoder"), made.get_submodule("head"))
    # one line, as mypy does not know this form of `to`
    return plain.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def write_workload(workload: Workload, file: Path) -> None:
    """All that a program needs which knows nothing of concordfl: network, examples, settings."""
    content = {"module": network(), **stack_clients(workload)._asdict(), **asdict(workload)}
    torch.save(content, file)


def read_workload(file: str) -> tuple[Workload, Stacked]:
    """What `write_workload` wrote a moment ago."""
    content = torch.load(file, weights_only=False, mmap=True)
    settings = {name: content[name] for name in (each.name for each in fields(Workload))}
    return Workload(**settings), Stacked(content["x"], content["y"])
