"""The synthetic mixture of the FedGMM paper (section 4.1, and the variants of table 3).

Component m draws x around a centre and labels it by a half-space through that centre, 1{(x -
centre) . v_m > 0}; a client draws its component weights from Dir(alpha), and every example's
component from them. The paper does not give centres and directions: here they come from U(-1, 1) by
the run's seed.
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

    def read(self, key: Key) -> Dataset:
        if self.gaussian_clients > self.clients:
            raise SettingError(
                f"data.gaussian_clients must be <= {self.clients}, the clients, got "
                f"{self.gaussian_clients}"
            )
        centres = key.child("centres").numpy().uniform(-1, 1, (self.components, self.dimensions))
        directions = (
            key.child("directions").numpy().uniform(-1, 1, (self.components, self.dimensions))
        )
        # Beta components: two positive shape vectors each; their mean is the centre.
        shapes = key.child("shapes").numpy().uniform(0.5, 3, (2, self.components, self.dimensions))

        def draw(
            count: int, weights: np.ndarray, distribution: str, rng: np.random.Generator
        ) -> Arrays:
            z = rng.choice(self.components, size=count, p=weights)
            if distribution == "beta":
                x, middle = (
                    rng.beta(shapes[0, z], shapes[1, z]),
                    (shapes[0] / (shapes[0] + shapes[1]))[z],
                )
            else:
                noise = rng.normal if distribution == "gaussian" else rng.laplace
                x, middle = centres[z] + noise(size=(count, self.dimensions)), centres[z]
            y = (((x - middle) * directions[z]).sum(axis=1) > 0).astype(np.int64)
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
