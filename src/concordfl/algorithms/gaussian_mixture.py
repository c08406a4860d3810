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
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from ..core import (
    Algorithm,
    Client,
    ClientId,
    Cohort,
    Draws,
    Examples,
    Model,
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
from ..toolbox.mixture import Models

MAX_FEATURES = 4096  # whose second moments a client can send: 128 MiB
FRAME = "embedding"  # the name under which the coordinates of the embedding are published
Value = TypeVar("Value")


@tree.register
class FedGMMServer(NamedTuple):
    """Of all methods with Gaussians; what is None is found by the rounds of the start."""

    models: Models  # M2 classifiers; none without labels
    pi: Tensor  # the weights of all clients
    gaussians: Gaussians | None = None
    shift: Tensor | None = None  # (D,) the pooled mean
    variance: float = 0.0  # the mean variance of the embedding
    candidates: Tensor | None = None  # (·, D) centres to choose from
    centres: Tensor | None = None  # (·, D) those chosen so far
    reports: Weighted | None = None  # the sum behind π, where clients have weights of their own


@tree.register
class FedGMMMessage(NamedTuple):
    models: Models
    gaussians: Gaussians
    pi: Tensor


@tree.register
class FedGMMMixture(NamedTuple):
    """What a client predicts with."""

    pi: Tensor
    steps: int = 0  # E-steps that a new client has needed


@tree.register
class FedGMMCentres(NamedTuple):
    """What a client is sent to choose the next centre."""

    candidates: Tensor  # (·, D)
    chosen: Tensor  # (·, D), the pooled mean first


@dataclass(frozen=True)
class GaussianMixture(Algorithm):
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its mixture weights"
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
    # E-steps of a new client's π from equal weights, unless it stands still before
    adapt_steps: Repeats = 200

    def __post_init__(self) -> None:
        super().__post_init__()
        embedding.check(self.embedding)

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        prepared = 1 + self.num_gaussians + self.lloyd_steps
        return (
            Stage(
                "start",
                self.start,
                prepared,
                everyone=True,
                prepares=True,
                required=False,
                trains=False,
            ),
            Stage("train", self.train_all),
        )

    def ready(self, server: FedGMMServer) -> bool:
        return server.gaussians is not None

    def train_all(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        """A round, or, where so many rounds of the start were void that there is nothing yet to
        train, one more of those.
        """
        return self.round(server, cohort) if self.ready(server) else self.start(server, cohort)

    @abstractmethod
    def round(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        """EM, from the clients' sums."""

    def message(self, server: FedGMMServer, client_id: ClientId | None) -> FedGMMMessage:
        return FedGMMMessage(server.models, _found(server.gaussians), server.pi)

    # --- the embedding ----------------------------------------------------------------------------

    def embed(self, client: Client, examples: Examples) -> Tensor:
        """(N, D) examples as the Gaussians see them, computed once per client."""

        def compute() -> Tensor:
            frame: gaussian.Frame = client.published(FRAME)["frame"]
            return frame.project(embedding.features(client, self.embedding, examples))

        embedded: Tensor = examples.cached("embedding", compute)
        return embedded

    def embedding_module(self, client: Client) -> nn.Module:
        """`embed` as a module of a network's inputs."""
        frame: gaussian.Frame = client.published(FRAME)["frame"]
        return nn.Sequential(
            embedding.Embedding(self.embedding, client.examples.scale), gaussian.Projection(frame)
        )

    # --- the start --------------------------------------------------------------------------------

    def unstarted(self, task: Task, models: Models) -> FedGMMServer:
        """The server's state before the first round."""
        features = math.prod(task.input_shape)
        if self.embedding in embedding.PLAIN and features > MAX_FEATURES:
            raise SettingError(
                f"embedding {self.embedding!r} takes at most {MAX_FEATURES} features, got "
                f"{features}: choose an encoder"
            )
        return FedGMMServer(models, self.equal_weights())

    def start(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        """Whatever is missing next; a round in which nobody answers only delays it."""
        if server.centres is None:
            return self._find_axes(server, cohort)
        if len(server.centres) < self.num_gaussians:
            return self._choose_centre(server, cohort)
        return self._move_centres(server, cohort)

    def _find_axes(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
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
        return server._replace(
            shift=middle, variance=variance, candidates=candidates, centres=candidates[:0]
        )

    def _choose_centre(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        """The candidate that saves the most against the nearest of the centres so far and the
        pooled mean.
        """
        candidates, centres = _found(server.candidates), _found(server.centres)
        sent = FedGMMCentres(candidates, torch.cat([_found(server.shift)[None], centres]))
        best = int(cohort.sum(self.measure_savings, broadcast=sent).argmax())
        return server._replace(
            candidates=torch.cat([candidates[:best], candidates[best + 1 :]]),
            centres=torch.cat([centres, candidates[best : best + 1]]),
        )

    def _move_centres(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        """Lloyd's step, from sums; all Gaussians get the spread about the nearest centre."""
        centres = _found(server.centres)
        total = cohort.sum(self.assign, broadcast=centres)
        before = Gaussians(centres, torch.ones(len(centres), dtype=torch.float64))
        means = gaussian.m_step(total, _found(server.shift), before, "identity", 0.0).means
        covariances = gaussian.shared_covariance(
            total, self.covariance_type, self.regulariser * server.variance
        )
        return server._replace(centres=means, gaussians=Gaussians(means, covariances))

    @client_step
    def measure(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        """Moments of what is embedded, before there are coordinates."""
        x = embedding.features(client, self.embedding, client.examples)
        ones = torch.ones(len(x), 1, dtype=torch.float64)
        no_shift = torch.zeros(x.shape[1], dtype=torch.float64)
        return state, Total(gaussian.statistics(x, ones, no_shift, "full"))

    @client_step
    def measure_savings(
        self, client: Client, state: Tree, message: FedGMMCentres
    ) -> tuple[Tree, Tree]:
        """How much squared distance each candidate centre would save."""
        x = self.embed(client, client.examples)
        nearest = torch.cdist(x, message.chosen).square().min(1, keepdim=True).values
        savings = nearest - torch.cdist(x, message.candidates).square()
        return state, Total(savings.clamp_min(0).sum(0))

    @client_step
    def assign(self, client: Client, state: Tree, message: Tensor) -> tuple[Tree, Tree]:
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
    def losses(self, client: Client, message: FedGMMMessage) -> Tensor:
        """(N, K) how unlikely the client's examples are under each component that π weighs."""

    def equal_weights(self) -> Tensor:
        return torch.full(
            self.weights_shape, 1 / math.prod(self.weights_shape), dtype=torch.float64
        )

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {"pi": self.equal_weights()}

    def expect(self, client: Client, state: Tree, message: FedGMMMessage) -> Tensor:
        """The E-step: (N, *weights_shape) responsibilities; of fewer models where some are
        skipped.
        """
        before = message.pi if self.shared_weights else self.weights_of(state, message)
        return mixture.responsibilities(self.losses(client, message), before.flatten()).view(
            -1, *before.shape
        )

    def weights_of(self, state: Tree, message: FedGMMMessage) -> Tensor:
        """A client's π to begin an E-step with."""
        pi: Tensor = state["pi"]
        return pi

    def report_of(self, client: Client, state: Tree, pi: Tensor) -> Tree:
        """What a client adds to the π of all: a total over its examples, or how its own has changed
        since it was counted.
        """
        if self.shared_weights:
            return weighted(pi, client.size)
        return Weighted(pi - state["pi"], 0.0) if client.has_state else weighted(pi, 1)

    def with_weights(self, server: FedGMMServer, total: Weighted) -> FedGMMServer:
        """With the π of all clients, the mean of what every one of them has last reported; and the
        sum behind it.
        """
        if self.shared_weights:
            return server._replace(pi=total.mean(otherwise=server.pi))
        known: Weighted = total if server.reports is None else tree.add(server.reports, total)
        return server._replace(pi=known.mean(otherwise=server.pi), reports=known)

    def adapt(
        self, client: Client, state: Tree, message: FedGMMMessage, *, new: bool
    ) -> FedGMMMixture:
        """Section 4.6: a new client learns its π alone; everything shared stays as it is."""
        if self.shared_weights or client.has_state:
            return FedGMMMixture(message.pi if self.shared_weights else state["pi"], steps=0)
        settled = mixture.settle(self.losses(client, message), steps=self.adapt_steps)
        return FedGMMMixture(settled.omega.view(self.weights_shape), settled.steps)

    def unadapted(self, client: Client, message: FedGMMMessage) -> FedGMMMixture:
        """The weights of all clients."""
        return FedGMMMixture(message.pi)

    def describe(self, server: FedGMMServer) -> dict[str, Any]:
        return {"pi": server.pi}

    # --- the rounds -------------------------------------------------------------------------------

    def statistics(self, client: Client, weight: Tensor, *, within: bool) -> Statistics:
        shift = client.published(FRAME)["shift"]
        return gaussian.statistics(
            self.embed(client, client.examples), weight, shift, self.covariance_type, within=within
        )

    def m_step(self, total: Statistics, server: FedGMMServer) -> Gaussians:
        """The paper averages the clients' own covariances; `exact` is EM on the pooled examples."""
        regulariser = self.regulariser * server.variance
        within = self.covariance == "paper"
        return gaussian.m_step(
            total,
            _found(server.shift),
            _found(server.gaussians),
            self.covariance_type,
            regulariser,
            within=within,
        )

    def log_density(
        self, client: Client, pi: Tensor, message: FedGMMMessage, examples: Examples
    ) -> Tensor:
        """(N,) log p(x) under the mixture with weights π (M1,)."""
        each = gaussian.log_density(message.gaussians, self.embed(client, examples))
        return (each + pi.clamp_min(mixture.MIN_WEIGHT).log()).logsumexp(1)


def _found(value: Value | None) -> Value:
    """What an earlier round of the start has found: for the type checker, which cannot know it."""
    return cast(Value, value)
