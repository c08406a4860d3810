"""The toy case of the FedConceptEM paper's figure 3: three clients with equally many examples, of
which the first and the third give the same input different labels.

The paper does not list its points: these have the property that its text describes.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core import Count, Key
from ..arrays import Arrays
from ..dataset import Dataset, Source

POINTS = ((0, 0), (1, 1), (0, 1))  # x and y of each client


@dataclass(frozen=True)
class ThreeDatasets(Source):
    about: ClassVar[str] = (
        "three clients, two of which label the same input differently, generated "
        "(FedConceptEM, figure 3)"
    )
    has_clients: ClassVar[bool] = True

    examples_per_client: Count = 20

    def read(self, key: Key) -> Dataset:
        points = np.repeat(POINTS, self.examples_per_client, axis=0)
        owners = np.repeat(
            [f"dataset-{number}" for number in range(1, len(POINTS) + 1)], self.examples_per_client
        )
        train = Arrays(points[:, :1].astype(np.float32), points[:, 1].astype(np.int64))
        return Dataset(train, train.take(np.arange(0)), num_classes=2, owners=owners)
