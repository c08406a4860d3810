"""FedGMM: a shared mixture of the joint distribution p(x, y), with weights of every client's own.

Wu, Zhang, Yu, Liu, Gu, Zhou, Chen, Cheng: Personalized Federated Learning under Mixture of
Distributions, ICML 2023. Gaussians see an embedding of x, classifiers see x. Clients reply
sufficient statistics: the M-step is exact on the pooled examples; `covariance = "paper"` averages
the clients' own covariances, which leaves out how far their means lie apart. Where published code
departs, the paper is followed: see the docs.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core import (
    ANY_KIND,
    About,
    Client,
    Cohort,
    Count,
    Degenerate,
    Examples,
    Fraction,
    Likelihood,
    Mean,
    Model,
    ModelCount,
    ModelId,
    Params,
    Rows,
    SettingError,
    Task,
    Total,
    Tree,
    Weighted,
    client_step,
)
from ..toolbox import gaussian, mixture
from ..toolbox.mixture import Models
from .gaussian_mixture import FedGMMMessage, FedGMMMixture, FedGMMServer, GaussianMixture
from .skipping import SkipsModels, spread


@dataclass(frozen=True)
class FedGMM(GaussianMixture, SkipsModels):
    about = About(
        "FedGMM",
        "Wu et al.",
        2023,
        travels="M2 models, sums for M1 Gaussians and mixture weights; which models a client "
        "holds, with skip_below",
        private="data",
        cost="about 1.4 M2",
    )
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True

    num_models: ModelCount = 3  # M2
    # models whose weight in π at a client is below are neither sent to it nor trained: it says
    # which; 0: none
    skip_below: Fraction = 0.0
    recheck_every: Count = 10  # rounds before the first skip, and until it is sent all again

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_skipping()
        if self.skip_below and self.shared_weights:
            raise SettingError(
                "skip_below needs weights of the client's own, got shared_weights = true"
            )

    def init_server(self, task: Task, seed: int) -> FedGMMServer:
        return self.unstarted(
            task, {k: task.model.init(seed, index=k) for k in range(self.num_models)}
        )

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (self.num_gaussians, self.num_models)

    @client_step
    def train(self, client: Client, state: Tree, message: FedGMMMessage) -> tuple[Tree, Tree]:
        q = self.expect(client, state, message)  # (E)
        pi = spread(q.mean(0), message.models, self.num_models)  # (M)
        trained = mixture.train_each(client, message.models, q.sum(1))
        mass = q.sum((0, 1))
        reply = {
            "models": {
                k: Mean(trained[k], float(mass[index]), around=message.models[k])
                for index, k in enumerate(trained)
            },
            "gaussians": Total(
                self.statistics(client, q.sum(2), within=self.covariance == "paper")
            ),
            "pi": Total(self.report_of(client, state, pi)),
        }
        return {"pi": pi}, reply

    def round(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        total = self.sum_held(cohort, self.train, self.message(server, None))
        models = {
            k: _mean(total["models"][k], params) if k in total["models"] else params
            for k, params in server.models.items()
        }
        gaussians = self.m_step(total["gaussians"], server)
        after = server._replace(models=models, gaussians=gaussians)
        return self.with_weights(after, total["pi"])

    def losses(self, client: Client, message: FedGMMMessage) -> Tensor:
        """(N, M1 · M2) -log N(e(x); m1) - log P(y|x; m2) of the client's examples."""
        gaussians = -gaussian.log_density(message.gaussians, self.embed(client, client.examples))
        if len(message.models) == 1 < self.num_models:
            return gaussians  # the one classifier says nothing of which Gaussian it is
        return (
            gaussians[:, :, None] + client.losses_each(message.models).double()[:, None]
        ).flatten(1)

    # --- models that a client skips ---------------------------------------------------------------

    def weights_of(self, state: Tree, message: FedGMMMessage) -> Tensor:
        """(M1, models) its π; that of a model which comes back lies as all of it over Gaussians."""
        pi: Tensor = state["pi"]
        shares = pi.sum(0)
        if self.skip_below and (shares == 0).any():
            back = self.weights_before(shares) * pi.sum(1, keepdim=True) / pi.sum()
            pi = torch.where(shares == 0, back, pi)
        return pi[:, list(message.models)]

    def shares(self, state: Tree) -> dict[ModelId, float]:
        return dict(enumerate(state["pi"].sum(0).tolist()))

    def all_models(self, message: FedGMMMessage) -> Models:
        return message.models

    def with_models(self, message: FedGMMMessage, models: Models) -> FedGMMMessage:
        return message._replace(models=models)

    def _held(
        self, state: FedGMMMixture, message: FedGMMMessage
    ) -> tuple[FedGMMMixture, FedGMMMessage]:
        """Both without the models that a client has skipped."""
        if not self.skip_below:
            return state, message
        models, _ = mixture.with_share(message.models, state.pi)
        return state._replace(pi=state.pi[:, list(models)]), message._replace(models=models)

    # --- prediction -------------------------------------------------------------------------------

    def predict(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage, examples: Examples
    ) -> Tensor:
        """Equation (3): the classifiers, weighted by how likely x is under the Gaussians that go
        with them. An evaluation asks for it twice: for the scores, and for the likelihood.
        """

        def compute() -> Tensor:
            held, sent = self._held(state, message)
            weights = self._weights_of(client, held, sent, examples)
            return mixture.predict(client, sent.models, weights, examples)

        return client.latest((self, state, message, examples), compute)

    def _weights_of(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage, examples: Examples
    ) -> Tensor:
        """(N, M2) of the classifiers."""
        density = gaussian.log_density(message.gaussians, self.embed(client, examples))
        return _weights(density, state.pi.clamp_min(mixture.MIN_WEIGHT).log())

    def module(self, client: Client, state: FedGMMMixture, message: FedGMMMessage) -> nn.Module:
        state, message = self._held(state, message)
        return JointMixture(
            map(client.module, message.models.values()),
            self.embedding_module(client),
            gaussian.LogDensity(message.gaussians),
            state.pi.clamp_min(mixture.MIN_WEIGHT).log(),
        )

    def likelihood(
        self,
        client: Client,
        state: FedGMMMixture | None,
        message: FedGMMMessage,
        examples: Examples,
    ) -> Likelihood:
        state = FedGMMMixture(message.pi) if state is None else state
        log_x = self.log_density(client, state.pi.sum(1), message, examples)
        return Likelihood(log_x, self._log_likelihood(client, state, message, examples))

    def _log_likelihood(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage, examples: Examples
    ) -> Tensor:
        """(N,) log p(y|x)."""
        if client.objective.kind == "classification":
            predicted = self.predict(client, state, message, examples)
            labelled = predicted[torch.arange(len(examples)), examples.y]
            return labelled.clamp_min(mixture.MIN_WEIGHT).log()
        state, message = self._held(state, message)
        weights = self._weights_of(client, state, message, examples)
        return mixture.log_likelihood(client, message.models, weights, examples)

    def inspect(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage
    ) -> dict[str, Any]:
        group = int(state.pi.sum(0).argmax())
        return {"group": group, "weights": state.pi, "em_steps": state.steps}

    def degenerate(self, model: Model, server: FedGMMServer, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "it has one classifier") if self.num_models == 1 else None


class JointMixture(nn.Module):
    """Equation (3) as a module: M2 classifiers, and the M1 Gaussians that weigh them."""

    def __init__(
        self,
        networks: Iterable[nn.Module],
        embedding: nn.Module,
        density: nn.Module,
        log_pi: Tensor,
    ) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.embedding, self.density = embedding, density
        self.log_pi = nn.Buffer(log_pi)

    def forward(self, inputs: Tensor) -> Tensor:
        weights = _weights(self.density(self.embedding(inputs)), self.log_pi)
        return mixture.average([network(inputs) for network in self.networks], weights)


def _weights(density: Tensor, log_pi: Tensor) -> Tensor:
    """(N, M2) of the classifiers, from log-densities (N, M1) and log π (M1, M2)."""
    joint = density[:, :, None] + log_pi
    return joint.flatten(1).softmax(1).view_as(joint).sum(1)


def _mean(total: Weighted, before: Params) -> Params:
    """A classifier without mass keeps its parameters, as a Gaussian does."""
    after: Params = total.mean(otherwise=before) if total.weight > gaussian.MIN_MASS else before
    return after
