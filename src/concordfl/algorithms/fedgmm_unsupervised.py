"""FedGMM without labels: a Gaussian mixture of all clients' inputs, with weights of every client's
own (Algorithm 2).

Wu et al., ICML 2023. Theorem 1: with identity covariances the log-likelihood never falls; the same
holds for exact covariances without a regulariser.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import (
    ANY_KIND,
    About,
    Client,
    Cohort,
    Examples,
    Likelihood,
    SettingError,
    Task,
    Total,
    Tree,
    client_step,
)
from ..toolbox import gaussian
from .gaussian_mixture import FedGMMMessage, FedGMMMixture, FedGMMServer, GaussianMixture


@dataclass(frozen=True)
class FedGMMUnsupervised(GaussianMixture):
    about = About(
        "FedGMM-unsupervised",
        "Wu et al.",
        2023,
        travels="sums for M Gaussians and mixture weights",
        private="data",
        cost="0",
    )
    supports = ANY_KIND
    classifies: ClassVar[bool] = False
    averages: ClassVar[bool] = False

    def init_server(self, task: Task, seed: int) -> FedGMMServer:
        return self.unstarted(task, models={})

    @property
    def weights_shape(self) -> tuple[int, ...]:
        return (self.num_gaussians,)

    @client_step
    def train(self, client: Client, state: Tree, message: FedGMMMessage) -> tuple[Tree, Tree]:
        q = self.expect(client, state, message)
        pi = q.mean(0)
        reply = {
            "gaussians": Total(self.statistics(client, q, within=self.covariance == "paper")),
            "pi": Total(self.report_of(client, state, pi)),
        }
        return {"pi": pi}, reply

    def round(self, server: FedGMMServer, cohort: Cohort) -> FedGMMServer:
        total = cohort.sum(self.train, broadcast=self.message(server, None))
        gaussians = self.m_step(total["gaussians"], server)
        return self.with_weights(server._replace(gaussians=gaussians), total["pi"])

    def losses(self, client: Client, message: FedGMMMessage) -> Tensor:
        return -gaussian.log_density(message.gaussians, self.embed(client, client.examples))

    def predict(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage, examples: Examples
    ) -> Tensor:
        raise SettingError("fedgmm-unsupervised has no labels to predict: it gives log-likelihoods")

    def likelihood(
        self,
        client: Client,
        state: FedGMMMixture | None,
        message: FedGMMMessage,
        examples: Examples,
    ) -> Likelihood:
        pi = message.pi if state is None else state.pi
        return Likelihood(self.log_density(client, pi, message, examples), None)

    def inspect(
        self, client: Client, state: FedGMMMixture, message: FedGMMMessage
    ) -> dict[str, Any]:
        group = int(state.pi.argmax())
        return {"group": group, "weights": state.pi, "em_steps": state.steps}
