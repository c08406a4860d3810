"""The one-dimensional example of the FedGMM paper's figure 1: two Gaussians, each with a threshold
of its own.

P1 = N(-2, 1.5) with y = 1{x < -2}, P2 = N(2, 1.5) with y = 1{x < 2}, 1.5 being the variance;
clients draw from both alike. The Bayes error is 0.051; a method that does not look at p(x) stays
near 0.25.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...core import Count, Key
from ..arrays import Arrays
from ..dataset import Dataset, Source

CENTRES = np.array([-2.0, 2.0])
VARIANCE = 1.5


@dataclass(frozen=True)
class TwoGaussians(Source):
    about: ClassVar[str] = (
        "two Gaussians on a line, each with a threshold of its own, generated (FedGMM, figure 1)"
    )
    has_clients: ClassVar[bool] = True

    clients: Count = 10
    examples_per_client: Count = 1000
    test_examples: Count = 5000

    def read(self, key: Key) -> Dataset:
        def draw(count: int, rng: np.random.Generator) -> Arrays:
            centres = CENTRES[rng.integers(2, size=count)]
            x = rng.normal(centres, np.sqrt(VARIANCE))
            return Arrays(x.astype(np.float32)[:, None], (x < centres).astype(np.int64))

        parts = [
            draw(self.examples_per_client, key.child("client", client).numpy())
            for client in range(self.clients)
        ]
        owners = np.repeat(
            [f"client-{client:03d}" for client in range(self.clients)], self.examples_per_client
        )
        train = Arrays.join(parts)
        return Dataset(
            train, draw(self.test_examples, key.child("test").numpy()), num_classes=2, owners=owners
        )
