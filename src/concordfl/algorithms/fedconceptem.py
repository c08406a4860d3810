"""FedConceptEM: clients whose P(y|x) differs end on different models; clients that differ only in
labels or features share one.

Guo, Tang, Lin: FedConceptEM, later published as FedRC: Tackling Diverse Distribution Shifts
Challenge in Federated Learning by Robust Clustering, ICML 2024. Numbers in the code are the paper's
equations. The server holds sums only: a client replies how its label table has changed since it was
last counted, which is what its committed state remembers; a reply that is lost or refused leaves
that state, and so the next difference, alone. Where published code departs, the paper is followed:
see the docs. Departure: models are averaged by responsibility unless `aggregate` is "size".
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..core import (
    About,
    Client,
    Cohort,
    Count,
    Degenerate,
    Examples,
    Fraction,
    Mean,
    Model,
    ModelCount,
    ModelId,
    NonNegative,
    Positive,
    Rows,
    SettingError,
    Stage,
    Task,
    Total,
    Tree,
    client_step,
    tree,
)
from ..toolbox import mixture
from ..toolbox.mixture import Models
from .skipping import SkipsModels

MIN_TABLE_ENTRY = 1e-8  # of a label table, where no example of a label is with a model
# Privacy noise may make an entry negative. At 1e-8 its label would go to that model whatever the
# model says; what is lost in noise counts as a tenth of the mean, worth log(11) at most.
MIN_NOISY_SHARE = 0.1

Tables = Mapping[ModelId, Tensor]  # (Y,) by model
Value = TypeVar("Value")


@tree.register
class FedConceptEMServer(NamedTuple):
    models: Models
    log_prior: Tables  # log(Y P_k(y)), 0 where flat
    totals: Tables  # Σ over clients' last counted reports
    shares: dict[ModelId, float]  # of the examples, by model, after the last round
    removed: list[list[ModelId | int]]  # [model, round]
    still: int  # rounds for which the shares have not moved


@tree.register
class FedConceptEMMessage(NamedTuple):
    models: Models  # without those that the client skips
    log_prior: Tables  # of all models that are there


@tree.register
class AdamMoments(NamedTuple):
    """Of the responsibilities, (N,) by model; empty without Adam."""

    first: dict[ModelId, Tensor]
    second: dict[ModelId, Tensor]


@tree.register
class FedConceptEMClient(NamedTuple):
    # (N,) responsibilities by model that it was sent; empty until it has trained
    gamma: dict[ModelId, Tensor]
    counted: Tables  # the report that the server's totals hold
    moments: AdamMoments


@tree.register
class FedConceptEMMixture(NamedTuple):
    """What a client predicts with."""

    omega: Tensor  # (K,)
    models: Models  # its own, fine-tuned; empty where it predicts with those that all share


@dataclass(frozen=True)
class FedConceptEM(SkipsModels):
    about = About(
        "FedConceptEM",
        "Guo et al.",
        2024,
        travels="K models, label tables; which models a client holds, with skip_below",
        private="data, mixture weights",
        cost="about 1.4 K",
    )
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its mixture weights"
    public_state: ClassVar[frozenset[str]] = frozenset({"counted"})

    num_models: ModelCount = 3  # K
    label_prior: bool = True  # without it, this is FedEM
    # a client's weight in model k: n, or n times its ω
    aggregate: Literal["size", "responsibility"] = "responsibility"
    noise: NonNegative = 0.0  # ξ: deviation of the privacy noise on a client's label table (15)
    adam: bool = False  # Adam on the responsibilities (93)-(98)
    adam_rate: Positive = 1.0  # α
    adam_beta1: Fraction = 0.9
    adam_beta2: Fraction = 0.99
    adaptive: bool = False  # remove models that hold next to nothing (Algorithm 2)
    threshold: Fraction = 0.05  # δ
    tolerance: Positive = 0.01  # shares that change by less from round to round stand still
    patience: Count = 5  # for so many rounds, before models are removed
    fine_tune: bool = False  # FedConceptEM-FT: one epoch per model before any client predicts
    # models whose ω at a client is below are neither sent to it nor trained: it says which; 0: none
    skip_below: Fraction = 0.0
    recheck_every: Count = 10  # rounds before the first skip, and until it is sent all again

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_skipping()
        if self.adaptive and self.threshold * self.num_models >= 1:
            raise SettingError(
                f"threshold must be < 1 / num_models = {1 / self.num_models:g}, got "
                f"{self.threshold}"
            )

    # --- the server -------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> FedConceptEMServer:
        models: Models = {k: task.model.init(seed, index=k) for k in range(self.num_models)}
        flat: Tables = {k: torch.zeros(task.num_classes, dtype=torch.float64) for k in models}
        return FedConceptEMServer(
            models, log_prior=flat, totals=flat, shares={}, removed=[], still=0
        )

    def message(self, server: FedConceptEMServer, client_id: str | None) -> FedConceptEMMessage:
        return FedConceptEMMessage(server.models, server.log_prior)

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        """(9) is about all clients, γ being 1/K before one has trained: where rounds do not ask
        everybody, all labels are counted first.
        """
        labels = Stage(
            "labels",
            self.count_labels,
            rounds=1,
            everyone=True,
            prepares=True,
            required=False,
            trains=False,
            when_sampled=True,
        )
        return labels, Stage("train", self.round)

    def count_labels(self, server: FedConceptEMServer, cohort: Cohort) -> FedConceptEMServer:
        """At γ = 1/K the table is the same for every model: the prior stays flat."""
        table = cohort.sum(self.report_labels) / self.num_models
        return server._replace(totals=dict.fromkeys(server.models, table))

    def round(self, server: FedConceptEMServer, cohort: Cohort) -> FedConceptEMServer:
        total = self.sum_held(cohort, self.train, self.message(server, None))
        models = mixture.means(total["models"], server.models)
        totals: Tables = tree.add(server.totals, total["change"])
        least = MIN_NOISY_SHARE if self.noise else 0.0
        prior = {
            k: log_prior(table, least) if self.label_prior else torch.zeros_like(table)
            for k, table in totals.items()
        }
        shares = _shares(totals)
        settled = _largest_change(server.shares, shares) < self.tolerance
        after = server._replace(
            models=models,
            log_prior=prior,
            totals=totals,
            shares=shares,
            still=server.still + 1 if settled else 0,
        )
        if self.adaptive and after.still >= self.patience:
            return self._without_empty(after, cohort.round)
        return after

    def _without_empty(self, server: FedConceptEMServer, round: int) -> FedConceptEMServer:
        """Algorithm 2: all models with a share below δ are removed at once; clients follow when
        they next see the models.
        """
        empty = [k for k in server.models if server.shares[k] < self.threshold]
        return server._replace(
            models=_without(server.models, empty),
            log_prior=_without(server.log_prior, empty),
            totals=_without(server.totals, empty),
            removed=[*server.removed, *([k, round] for k in empty)],
            still=0,
        )

    # --- the client -------------------------------------------------------------------------------

    def init_client(self, client: Client, message: Tree) -> FedConceptEMClient:
        nothing = torch.zeros(client.num_classes, dtype=torch.float64)
        return FedConceptEMClient(
            gamma={},
            counted=dict.fromkeys(range(self.num_models), nothing),
            moments=AdamMoments({}, {}),
        )

    @client_step
    def report_labels(
        self, client: Client, state: FedConceptEMClient, message: None
    ) -> tuple[FedConceptEMClient, Tree]:
        """The label table at γ = 1/K, sent once for all models."""
        labels = client.label_counts() + self._noise(client, "labels")
        counted = dict.fromkeys(state.counted, labels / self.num_models)
        return state._replace(counted=counted), Total(labels)

    @client_step
    def train(
        self, client: Client, state: FedConceptEMClient, message: FedConceptEMMessage
    ) -> tuple[FedConceptEMClient, Tree]:
        models = message.models
        gamma, moments = self._expect(client, state, message)  # (10)
        trained = mixture.train_each(client, models, gamma)  # (13)
        held = mixture.by_model(models, gamma)
        report = {
            k: client.label_counts(held[k]) + self._noise(client, k)
            if k in held
            else torch.zeros_like(table)  # as the server knows who skips, there is nothing to hide
            for k, table in message.log_prior.items()
        }
        sizes = torch.ones(len(models)) if self.aggregate == "size" else gamma.mean(0)
        reply = {
            "models": {
                k: Mean(trained[k], client.size * float(share), around=models[k])
                for k, share in zip(models, sizes, strict=True)
            },
            "change": Total(
                {
                    k: table - state.counted[k]
                    for k, table in report.items()
                    if k in held or state.counted[k].any()
                }
            ),
        }
        return FedConceptEMClient(held, report, moments), reply

    def shares(self, state: FedConceptEMClient) -> dict[ModelId, float]:
        return {k: float(column.mean()) for k, column in state.gamma.items()}

    def all_models(self, message: FedConceptEMMessage) -> Models:
        return message.models

    def with_models(self, message: FedConceptEMMessage, models: Models) -> FedConceptEMMessage:
        return message._replace(models=models)

    def _noise(self, client: Client, table: ModelId) -> Tensor | float:
        """(Y,) the privacy noise of (15), drawn from what only the client knows."""
        if not self.noise:
            return 0.0
        key = client.private_random(f"noise-{table}")
        return key.normal((client.num_classes,), self.noise)

    def _expect(
        self, client: Client, state: FedConceptEMClient, message: FedConceptEMMessage
    ) -> tuple[Tensor, AdamMoments]:
        """The E-step, from the weights of the models that are still there: γ (N, K), and Adam's
        moments.
        """
        models = message.models
        before = _gamma_before(client, state, models, skipped=self.skip_below)
        gamma = mixture.expect(client, models, before.mean(0), prior_of(client, message))
        if not self.adam:
            return gamma, state.moments
        moments = state.moments
        if len(before) != client.size:  # the data have drifted: Adam begins anew
            before, moments = _spread(before, client.size), AdamMoments({}, {})
        return self._accelerate(
            before, gamma, models, moments if moments.first else _no_moments(client, models)
        )

    def _accelerate(
        self, before: Tensor, target: Tensor, models: Models, moments: AdamMoments
    ) -> tuple[Tensor, AdamMoments]:
        """(94)-(98), the corrections dividing by the constants 1-β1 and 1-β2, as printed."""
        beta1, beta2 = self.adam_beta1, self.adam_beta2
        gradient = before - target
        first = (1 - beta1) * gradient + beta1 * mixture.columns(models, moments.first)
        second = (1 - beta2) * gradient**2 + beta2 * mixture.columns(models, moments.second)
        moved = before - self.adam_rate * (first / (1 - beta1)) / (
            (second / (1 - beta2)).sqrt() + 1e-8
        )
        kept = AdamMoments(mixture.by_model(models, first), mixture.by_model(models, second))
        return mixture.renormalised(moved.clamp_min(0)), kept

    # --- prediction -------------------------------------------------------------------------------

    def adapt(
        self, client: Client, state: FedConceptEMClient, message: FedConceptEMMessage, *, new: bool
    ) -> FedConceptEMMixture:
        if state.gamma:
            gamma = _gamma_before(client, state, message.models)
        else:  # new, or never sampled
            gamma = _settled(client, message)
        own = _tuned(client, message.models, gamma, epochs=1) if self.fine_tune else {}
        return FedConceptEMMixture(gamma.mean(0), own)

    def tune(
        self,
        client: Client,
        state: FedConceptEMMixture,
        message: FedConceptEMMessage,
        epochs: int,
    ) -> FedConceptEMMessage:
        """What `fine_tune` does, for as many epochs; with it, clients have tuned by themselves."""
        if self.fine_tune:
            return message
        gamma = _settled(client, message)
        return message._replace(models=_tuned(client, message.models, gamma, epochs))

    @property
    def tunes_new(self) -> bool:
        return not self.fine_tune

    def predict(
        self,
        client: Client,
        state: FedConceptEMMixture,
        message: FedConceptEMMessage,
        examples: Examples,
    ) -> Tensor:
        return mixture.predict(client, state.models or message.models, state.omega, examples)

    def module(
        self, client: Client, state: FedConceptEMMixture, message: FedConceptEMMessage
    ) -> nn.Module:
        return mixture.module(client, state.models or message.models, state.omega)

    def inspect(
        self, client: Client, state: FedConceptEMMixture, message: FedConceptEMMessage
    ) -> dict[str, Any]:
        weights = {
            str(k): float(weight) for k, weight in zip(message.models, state.omega, strict=True)
        }
        return {"group": max(weights, key=lambda k: weights[k]), "weights": weights}

    def describe(self, server: FedConceptEMServer) -> dict[str, Any]:
        return {"shares": server.shares, "removed": server.removed, "models": len(server.models)}

    def degenerate(self, model: Model, server: FedConceptEMServer, rows: Rows) -> Degenerate | None:
        return Degenerate("fedavg", "it has one model") if self.num_models == 1 else None


def prior_of(client: Client, message: FedConceptEMMessage) -> Tensor:
    """(N, K) log(Y P_k(y)) at the labels of a client's examples."""
    return torch.stack([message.log_prior[k][client.examples.y] for k in message.models], dim=1)


def log_prior(table: Tensor, least: float = 0.0) -> Tensor:
    """log(Y P(y)) of a label table; exactly 0 where it is flat.

    An entry counts at least `least` times the mean of what the table holds.
    """
    held = float(table.clamp_min(0).mean())
    positive = table.clamp_min(max(MIN_TABLE_ENTRY, least * held))
    flat = bool((positive == positive[0]).all())
    return torch.zeros_like(table) if flat else (positive / positive.mean()).log()


def _shares(totals: Tables) -> dict[ModelId, float]:
    sums = {k: max(float(table.sum()), 0.0) for k, table in totals.items()}
    whole = sum(sums.values()) or 1.0
    return {k: value / whole for k, value in sums.items()}


def _largest_change(before: dict[ModelId, float], after: dict[ModelId, float]) -> float:
    """Of the shares; after the first round there is nothing to compare with."""
    return max(abs(after[k] - before.get(k, 0.0)) for k in after) if before else math.inf


def _gamma_before(
    client: Client, state: FedConceptEMClient, models: Models, skipped: float = 0.0
) -> Tensor:
    """(N, K) the responsibilities of the models that are still there, `skipped` of those that it
    was not sent; 1/K before it has trained.
    """
    if state.gamma:
        return mixture.renormalised(mixture.columns(models, state.gamma, skipped))
    equal = torch.full((client.size, len(models)), 1 / len(models), dtype=torch.float64)
    return mixture.renormalised(equal)


def _no_moments(client: Client, models: Models) -> AdamMoments:
    zeros = torch.zeros((client.size, len(models)), dtype=torch.float64)
    return AdamMoments(mixture.by_model(models, zeros), mixture.by_model(models, zeros))


def _settled(client: Client, message: FedConceptEMMessage) -> Tensor:
    """(N, K) responsibilities by the E-step alone, to convergence."""
    return mixture.settle(client.losses_each(message.models), prior_of(client, message)).gamma


def _tuned(client: Client, models: Models, gamma: Tensor, epochs: int) -> Models:
    weights = gamma if len(gamma) == client.size else _spread(gamma, client.size)
    return mixture.train_each(client, models, weights, "tune", epochs=epochs)


def _spread(gamma: Tensor, size: int) -> Tensor:
    """(size, K) the mean responsibilities for every one of other examples."""
    return gamma.mean(0).expand(size, -1)


def _without(values: Mapping[ModelId, Value], removed: Collection[ModelId]) -> dict[ModelId, Value]:
    return {k: value for k, value in values.items() if k not in removed}
