"""What the methods with Gaussians over an embedding have in common: their fields, their federated
start, their M-step.

The start is a stage in which every client takes part. One round: from summed moments the server
knows the pooled mean and covariance, and so the principal axes, which it publishes. A round per
Gaussian: the server has drawn candidate centres from the pooled Gaussian (no client's point ever
leaves it), clients say how much squared distance each would save, the best is taken. Then a few
rounds of Lloyd's steps from sums. All Gaussians begin with one shared covariance.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core import (
    Algorithm,
    Client,
    Cohort,
    Draws,
    Examples,
    ModelCount,
    NonNegative,
    Repeats,
    SettingError,
    Stage,
    Task,
    Total,
    Tree,
    Weighted,
    Width,
    client_step,
    tree,
    weighted,
)
from ..toolbox import embedding, gaussian, mixture
from ..toolbox.gaussian import CovarianceType, Gaussians, Statistics

MAX_FEATURES = 4096  # whose second moments a client can send: 128 MiB
FRAME = "embedding"  # the name under which the coordinates of the embedding are published


@dataclass(frozen=True)
class GaussianMixture(Algorithm):
    personal: ClassVar[bool] = True
    public_state: ClassVar[frozenset[str]] = frozenset({"pi"})  # it travels, but only into a sum
    scores_samples: ClassVar[bool] = True

    num_gaussians: ModelCount = 3  # M1
    # identity, pca, an encoder's name or package.module:function; encoders are followed by the PCA
    embedding: str = "pca"
    dimensions: Width = 48  # of the PCA; fewer where there are fewer features
    # of the pooled examples, or the mean of the clients' own
    covariance: Literal["exact", "paper"] = "exact"
    covariance_type: CovarianceType = "full"
    # added to variances, as a share of the embedding's mean variance
    regulariser: NonNegative = 1e-6
    shared_weights: bool = False  # one π for all clients: plain EM on the pooled examples
    candidates: Draws = 50  # centres to choose from at the start
    lloyd_steps: Repeats = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        embedding.check(self.embedding)

    def stages(self) -> Sequence[Stage]:
        rounds = 1 + self.num_gaussians + self.lloyd_steps
        return (
            Stage(
                "start",
                self.start,
                rounds,
                everyone=True,
                prepares=True,
                required=False,
                trains=False,
            ),
            Stage("train", self.train_all),
        )

    def ready(self, server: Tree) -> bool:
        return server["gaussians"] is not None

    def train_all(self, server: Tree, cohort: Cohort) -> Tree:
        """A round, or, where so many rounds of the start were void that there is nothing yet to
        train, one more of those.
        """
        return (
            self.start(server, cohort)
            if server["gaussians"] is None
            else self.round(server, cohort)
        )

    # --- the embedding ----------------------------------------------------------------------------

    def embed(self, client: Client, examples: Examples) -> Tensor:
        """(N, D) examples as the Gaussians see them, computed once per client."""

        def compute() -> Tensor:
            frame: gaussian.Frame = client.published(FRAME)["frame"]
            return frame.project(embedding.features(client, self.embedding, examples))

        embedded: Tensor = examples.cached("embedding", compute)
        return embedded

    # --- the start --------------------------------------------------------------------------------

    def unstarted(self, task: Task) -> Tree:
        """The server's side of it before the first round."""
        features = math.prod(task.input_shape)
        if self.embedding in embedding.PLAIN and features > MAX_FEATURES:
            raise SettingError(
                f"embedding {self.embedding!r} takes at most {MAX_FEATURES} features, got "
                f"{features}: choose an encoder"
            )
        return {
            "gaussians": None,
            "shift": None,
            "variance": 0.0,
            "candidates": None,
            "centres": None,
            "reports": None,
        }

    def start(self, server: Tree, cohort: Cohort) -> Tree:
        """Whatever is missing next; a round in which nobody answers only delays it."""
        if server["shift"] is None:
            return self._find_axes(server, cohort)
        if len(server["centres"]) < self.num_gaussians:
            return self._choose_centre(server, cohort)
        return self._move_centres(server, cohort)

    def _find_axes(self, server: Tree, cohort: Cohort) -> Tree:
        moments = cohort.sum(self.measure)
        frame, middle, spread = gaussian.principal_axes(
            moments, None if self.embedding == "identity" else self.dimensions
        )
        cohort.publish(FRAME, {"frame": frame, "shift": middle})
        variances, axes = torch.linalg.eigh(spread)
        draws = cohort.random("candidates").normal(
            (max(self.candidates, self.num_gaussians), len(middle))
        )
        candidates = middle + (draws * variances.clamp_min(0).sqrt()) @ axes.T
        variance = max(float(spread.diagonal().mean()), 0.0) or 1.0  # where all examples are alike
        return {
            **server,
            "shift": middle,
            "variance": variance,
            "candidates": candidates,
            "centres": candidates[:0],
        }

    def _choose_centre(self, server: Tree, cohort: Cohort) -> Tree:
        """The candidate that saves the most against the nearest of the centres so far and the
        pooled mean.
        """
        candidates, centres = server["candidates"], server["centres"]
        sent = {"candidates": candidates, "centres": torch.cat([server["shift"][None], centres])}
        best = int(cohort.sum(self.measure_savings, broadcast=sent).argmax())
        rest = torch.cat([candidates[:best], candidates[best + 1 :]])
        return {
            **server,
            "candidates": rest,
            "centres": torch.cat([centres, candidates[best : best + 1]]),
        }

    def _move_centres(self, server: Tree, cohort: Cohort) -> Tree:
        """Lloyd's step, from sums; all Gaussians get the spread about the nearest centre."""
        centres = server["centres"]
        total = cohort.sum(self.assign, broadcast=centres)
        before = Gaussians(centres, torch.ones(len(centres), dtype=torch.float64))
        means = gaussian.m_step(total, server["shift"], before, "identity", 0.0).means
        covariances = gaussian.shared_covariance(
            total, self.covariance_type, self.regulariser * server["variance"]
        )
        return {**server, "centres": means, "gaussians": Gaussians(means, covariances)}

    @client_step
    def measure(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        """Moments of what is embedded, before there are coordinates."""
        x = embedding.features(client, self.embedding, client.examples)
        ones = torch.ones(len(x), 1, dtype=torch.float64)
        no_shift = torch.zeros(x.shape[1], dtype=torch.float64)
        return state, Total(gaussian.statistics(x, ones, no_shift, "full"))

    @client_step
    def measure_savings(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        """How much squared distance each candidate centre would save."""
        x = self.embed(client, client.examples)
        nearest = torch.cdist(x, message["centres"]).square().min(1, keepdim=True).values
        savings = nearest - torch.cdist(x, message["candidates"]).square()
        return state, Total(savings.clamp_min(0).sum(0))

    @client_step
    def assign(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        """Lloyd's step: statistics of the examples next to each centre."""
        x = self.embed(client, client.examples)
        nearest = torch.cdist(x, message).argmin(1)
        belongs = torch.nn.functional.one_hot(nearest, len(message)).double()
        return state, Total(self.statistics(client, belongs, within=False))

    # --- a client's own weights: π, of the shape that a method gives them -------------------------

    @property
    @abstractmethod
    def weights_shape(self) -> tuple[int, ...]: ...

    @abstractmethod
    def losses(self, client: Client, message: Tree) -> Tensor:
        """(N, K) how unlikely the client's examples are under each component that π weighs."""

    def equal_weights(self) -> Tensor:
        return torch.full(
            self.weights_shape, 1 / math.prod(self.weights_shape), dtype=torch.float64
        )

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"pi": self.equal_weights()}

    def expect(self, client: Client, state: Tree, message: Tree) -> Tensor:
        """The E-step: (N, *weights_shape) responsibilities."""
        before = message["pi"] if self.shared_weights else state["pi"]
        return mixture.responsibilities(self.losses(client, message), before.flatten()).view(
            -1, *self.weights_shape
        )

    def report_of(self, client: Client, state: Tree, pi: Tensor) -> Tree:
        """What a client adds to the π of all: a total over its examples, or how its own has changed
        since it was counted.
        """
        if self.shared_weights:
            return weighted(pi, client.size)
        return Weighted(pi - state["pi"], 0.0) if client.has_state else weighted(pi, 1)

    def common_weights(self, server: Tree, total: Weighted) -> Tree:
        """π of all clients, the mean of what every one of them has last reported; and the sum
        behind it.
        """
        if self.shared_weights:
            return {"pi": total.mean(otherwise=server["pi"])}
        known = total if server["reports"] is None else tree.add(server["reports"], total)
        return {"reports": known, "pi": known.mean(otherwise=server["pi"])}

    def adapt(self, client: Client, state: Tree, message: Tree, *, new: bool) -> Tree:
        """Section 4.6: a new client learns its π alone; everything shared stays as it is."""
        if self.shared_weights or client.has_state:
            return {"pi": message["pi"] if self.shared_weights else state["pi"], "steps": 0}
        settled = mixture.settle(self.losses(client, message))
        return {"pi": settled.omega.view(self.weights_shape), "steps": settled.steps}

    def describe(self, server: Tree) -> dict[str, Any]:
        return {"pi": server["pi"]}

    def deployed(self, server: Tree) -> dict[str, Tensor]:
        """All tensors; the Gaussians' means are called `gaussians.0`, their covariances
        `gaussians.1`, and the sum of reports `reports.0`, as in every model that was ever saved.
        """
        numbered = {name: server[name] and tuple(server[name]) for name in ("gaussians", "reports")}
        return super().deployed({**server, **numbered})

    # --- the rounds -------------------------------------------------------------------------------

    def statistics(self, client: Client, weight: Tensor, *, within: bool) -> Statistics:
        shift = client.published(FRAME)["shift"]
        return gaussian.statistics(
            self.embed(client, client.examples), weight, shift, self.covariance_type, within=within
        )

    def m_step(self, total: Statistics, server: Tree) -> Gaussians:
        """The paper averages the clients' own covariances; `exact` is EM on the pooled examples."""
        regulariser = self.regulariser * server["variance"]
        within = self.covariance == "paper"
        return gaussian.m_step(
            total,
            server["shift"],
            server["gaussians"],
            self.covariance_type,
            regulariser,
            within=within,
        )

    def log_density(self, client: Client, pi: Tensor, message: Tree, examples: Examples) -> Tensor:
        """(N,) log p(x) under the mixture with weights π (M1,)."""
        each = gaussian.log_density(message["gaussians"], self.embed(client, examples))
        return (each + pi.clamp_min(mixture.MIN_WEIGHT).log()).logsumexp(1)
