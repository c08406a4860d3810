"""The synthetic mixture of the FedGMM paper (section 4.1, and the variants of table 3).

Component m draws x around a centre and labels it by a half-space through that centre, 1{(x -
centre) . v_m > 0}; a client draws its component weights from Dir(alpha), and every example's
component from them. The paper does not give centres and directions. Centres come from U(-1, 1) by
the run's seed; as in the published generator a direction points to or away from the centre of
another component, so that no half-space suits all of them. The components have the paper's unit
covariance, where the published generator has 1 / sqrt(d).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ...core import Count, CountOrZero, Key, Positive, SettingError
from ..arrays import Arrays
from ..dataset import Dataset, Source


@dataclass(frozen=True)
class SyntheticMixture(Source):
    about: ClassVar[str] = (
        "mixture of components that differ in p(x) and p(y|x), generated (FedGMM)"
    )
    has_clients: ClassVar[bool] = True

    clients: Count = 300
    examples_per_client: Count = 3000
    components: Count = 3  # M
    dimensions: Count = 32  # d
    alpha: Positive = 0.4
    distribution: Literal["gaussian", "laplace", "beta"] = "gaussian"
    # the first so many draw from Gaussians whatever `distribution` says (setting 2)
    gaussian_clients: CountOrZero = 0
    test_examples: Count = 2000
    # v_m: along the line to the centre of another component, or of a random direction
    directions: Literal["to-centres", "uniform"] = "to-centres"

    def read(self, key: Key) -> Dataset:
        if self.gaussian_clients > self.clients:
            raise SettingError(
                f"data.gaussian_clients must be <= {self.clients}, the clients, got "
                f"{self.gaussian_clients}"
            )
        if self.directions == "to-centres" and self.components == 1:
            raise SettingError(
                "data.components must be >= 2 for directions to other centres, got 1: with one, "
                'take data.directions = "uniform"'
            )
        centres = key.child("centres").numpy().uniform(-1, 1, (self.components, self.dimensions))
        # Beta components: two positive shape vectors each; their mean is the centre.
        shapes = key.child("shapes").numpy().uniform(0.5, 3, (2, self.components, self.dimensions))
        beta_centres = shapes[0] / (shapes[0] + shapes[1])
        directions, beta_directions = (
            self._directions(middles, key.child("directions"))
            for middles in (centres, beta_centres)
        )

        def draw(
            count: int, weights: np.ndarray, distribution: str, rng: np.random.Generator
        ) -> Arrays:
            z = rng.choice(self.components, size=count, p=weights)
            if distribution == "beta":
                x = rng.beta(shapes[0, z], shapes[1, z])
                middle, direction = beta_centres[z], beta_directions[z]
            else:
                noise = rng.normal if distribution == "gaussian" else rng.laplace
                x = centres[z] + noise(size=(count, self.dimensions))
                middle, direction = centres[z], directions[z]
            y = (((x - middle) * direction).sum(axis=1) > 0).astype(np.int64)
            return Arrays(x.astype(np.float32), y)

        parts = []
        for client in range(self.clients):
            rng = key.child("client", client).numpy()
            weights = rng.dirichlet(np.full(self.components, self.alpha))
            kind = "gaussian" if client < self.gaussian_clients else self.distribution
            parts.append(draw(self.examples_per_client, weights, kind, rng))
        even = np.full(self.components, 1 / self.components)
        test = draw(self.test_examples, even, self.distribution, key.child("test").numpy())
        width = len(str(self.clients - 1))
        owners = np.repeat(
            [f"client-{client:0{width}d}" for client in range(self.clients)],
            self.examples_per_client,
        )
        train = Arrays.join(parts)
        return Dataset(train, test, num_classes=2, owners=owners)

    def _directions(self, centres: np.ndarray, key: Key) -> np.ndarray:
        """(M, d) the normals of the components' half-spaces."""
        rng = key.numpy()
        if self.directions == "uniform":
            return rng.uniform(-1, 1, centres.shape)
        count = len(centres)
        other = (np.arange(count) + rng.integers(1, count, size=count)) % count
        sign = rng.choice([-1.0, 1.0], size=(count, 1))
        lines: np.ndarray = sign * (centres[other] - centres)
        return lines
