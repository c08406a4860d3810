"""FedVC: shared virtual concepts say what makes a client different, and supervise one global model.

Yan, Long, Jiang, Blumenstein: Personalized Interpretation on Federated Learning: A Virtual Concepts
approach, 2024; Algorithm 1 (`concepts = "em"`) and Algorithm 2 (`"gradient"`). There is no public
code; what the paper leaves open, and what we do, is on the docs page. A client's preference is
p = Σ v_m c_m, a sample's estimate of it p̂ = Σ s_m c_m; both live in the space of a projection ẑ of
the network's features, which the classifier reads (`projection = "through"`) or does not.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Degenerate,
    Examples,
    Fraction,
    Mean,
    Model,
    ModelCount,
    NonNegative,
    Params,
    Positive,
    Rows,
    Task,
    Total,
    Tree,
    Width,
    client_step,
    encoder_and_head,
    weighted_loss,
)
from ..toolbox import mixture

CONCEPTS = "concepts"
MIN_WEIGHT = 1e-6  # of v, so that no concept is dead for a client for ever
MIN_MASS = 1e-8  # a concept that is expressed less stays where it is
COLLAPSED = 0.01  # mean distance of concepts that have become one; they begin about 0.4 apart
START_SCALE = 0.1  # deviation of the concepts' entries at the start
TYPICAL_SAMPLES = 3  # of each concept, in a client's row
MAPPED_SAMPLES = 20  # samples of a client in the map


class WithConcepts(nn.Module):
    """A network with a projection of its features, on which the classifier stands (`through`) or
    beside which it does, and the concepts.
    """

    def __init__(
        self, module: nn.Module, count: int, dimensions: int, layers: int, through: bool
    ) -> None:
        super().__init__()
        self.encoder, self.head = encoder_and_head(module, "fedvc")
        self.through = through
        width = self.head.in_features
        hidden = [part for _ in range(layers - 1) for part in (nn.Linear(width, width), nn.ReLU())]
        self.projection = nn.Sequential(*hidden, nn.Linear(width, dimensions))
        self.concepts = nn.Parameter(START_SCALE * torch.randn(count, dimensions))
        if through:
            self.head = nn.Linear(dimensions, self.head.out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        features = self.encoder(inputs)
        return cast(Tensor, self.head(self.projection(features) if self.through else features))


@dataclass(frozen=True)
class FedVC(Algorithm):
    about = About(
        "FedVC",
        "Yan et al.",
        2024,
        travels="the model, sums for the concepts",
        private="data, preference",
        cost="about 1.7",
    )
    supports = ANY_KIND

    adapts: ClassVar[str] = "its preference for concepts"
    public_state: ClassVar[frozenset[str]] = frozenset({"averages"})  # they travel, into a sum

    num_concepts: ModelCount = 10  # M
    concept_dim: Width = 10
    concepts: Literal["em", "gradient"] = "em"
    # the classifier stands on ẑ (`through`), or on the features
    projection: Literal["through", "beside"] = "beside"
    projection_layers: Literal[1, 2] = 2  # linear, or with a hidden layer as wide as the features
    similarity: Positive = 0.1  # ι
    smoothing: Fraction = 0.05  # κ: how much of the old moving average is kept
    # S, C, N start anew each round, and v is (4); or they are kept across rounds, and v is (9)
    moving_averages: Literal["restarted", "kept"] = "restarted"
    weight: NonNegative = 1.0  # of the preference loss; 0 is FedAvg on the same network
    gamma: NonNegative = 0.1  # γ: of the loss that moves the concepts (12)

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        return WithConcepts(
            module,
            self.num_concepts,
            self.concept_dim,
            self.projection_layers,
            self.projection == "through",
        )

    def init_server(self, task: Task, seed: int) -> Params:
        return task.model.init(seed)

    def init_client(self, client: Client, message: Params) -> Tree:
        v = torch.full((self.num_concepts,), 1 / self.num_concepts, dtype=torch.float64)
        kept = self.moving_averages == "kept"
        return {"v": v, "averages": self._no_averages()} if kept else {"v": v}

    def _no_averages(self) -> Params:
        """S (M,), C (M, D) and N before anything is seen."""
        return {
            "S": torch.zeros(self.num_concepts),
            "C": torch.zeros(self.num_concepts, self.concept_dim),
            "N": torch.zeros(()),
        }

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        state = self._preferring(client, state, message)
        v = state["v"]
        if self.concepts == "gradient":
            trained = client.fit(
                message, lambda params, batch: self._unified_loss(client, v, params, batch)
            )
            return state, {"model": Mean(trained, client.size, around=message)}
        averages = state.get("averages", self._no_averages())

        def loss(params: Params, batch: Batch) -> Tensor:
            nonlocal averages
            concepts = message[CONCEPTS].to(batch.x.device)
            losses, s, z = self._losses(
                client, v, concepts, _preference(v, concepts), params, batch
            )
            averages = self._average(averages, s.detach(), z.detach())
            return weighted_loss(losses, batch)

        trained = client.fit(
            message, loss, only=[name for name in client.model.names if name != CONCEPTS]
        )
        del trained[CONCEPTS]
        reply = {
            "model": Mean(trained, client.size, around=message),
            "sums": Total({"s": averages["S"], "c": averages["C"]}),
        }
        return {**state, "averages": averages} if "averages" in state else state, reply

    def _preferring(self, client: Client, state: Tree, message: Params) -> Tree:
        """The state after the pass that finds the client's v."""
        if "averages" not in state:
            v = self._express(client, state["v"], message, client.examples).mean(0)  # (4)
            return {"v": v.clamp_min(MIN_WEIGHT)}

        def see(state: Tree, batch: Batch) -> Tree:
            z = self._project(client, message, batch.x).cpu()
            s = expressed(z, message[CONCEPTS], state["v"], self.similarity)
            averages = self._average(state["averages"], s, z)
            v = (averages["S"] / averages["N"]).double()  # (9)
            return {"v": v.clamp_min(MIN_WEIGHT), "averages": averages}

        return client.fold(see, state, epochs=1, purpose="preference")

    def _average(self, averages: Params, s: Tensor, z: Tensor) -> Params:
        """The moving averages after a batch (6), (7), (8)."""
        batch = {"S": s.sum(0), "C": s.T @ z, "N": torch.tensor(float(len(s)))}
        return {
            name: self.smoothing * averages[name] + (1 - self.smoothing) * seen.cpu()
            for name, seen in batch.items()
        }

    def _losses(
        self,
        client: Client,
        v: Tensor,
        concepts: Tensor,
        preference: Tensor,
        params: Params,
        batch: Batch,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(B,) loss + ‖p̂ - p‖², and s (B, M) and ẑ (B, D) of the batch."""
        features = client.model.features(params, batch.x)
        z = client.model.call(params, features, part="projection")
        s = expressed(z, concepts, v, self.similarity)
        read = z if self.projection == "through" else features
        outputs = client.model.call(params, read, part="head")
        losses = client.objective.losses(outputs, batch.y)
        return losses + self.weight * (s @ concepts - preference).square().sum(1), s, z

    def _unified_loss(self, client: Client, v: Tensor, params: Params, batch: Batch) -> Tensor:
        """(12): the estimate is drawn to the preference, which is held, and the preference to the
        estimate, which is held.
        """
        concepts = params[CONCEPTS]
        preference = _preference(v, concepts)
        losses, s, _ = self._losses(client, v, concepts, preference.detach(), params, batch)
        drawn = ((s @ concepts).detach() - preference).square().sum(1)
        return weighted_loss(losses + self.weight * self.gamma * drawn, batch)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        total = cohort.sum(self.train, broadcast=server)
        after = {**server, **total["model"].mean(otherwise=server)}
        if self.concepts == "em":  # (10)
            mass = total["sums"]["s"][:, None]
            after[CONCEPTS] = torch.where(
                mass > MIN_MASS, total["sums"]["c"] / mass.clamp_min(MIN_MASS), server[CONCEPTS]
            )
        return after

    def _express(self, client: Client, v: Tensor, message: Params, examples: Examples) -> Tensor:
        """(N, M) how much each example expresses each concept (1).

        An evaluation asks with two v, before and after it is found; ẑ is the same.
        """
        z = client.latest(
            (self, message, examples),
            lambda: client.over(examples, lambda inputs: self._project(client, message, inputs)),
        )
        return expressed(z, message[CONCEPTS], v, self.similarity).double()

    def _project(self, client: Client, params: Params, inputs: Tensor) -> Tensor:
        """(N, D) ẑ of inputs."""
        features = client.model.features(params, inputs)
        return client.model.call(params, features, part="projection")

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        """A new client needs one pass for its preference; nothing is tuned."""
        return self._preferring(client, state, message) if client.size else state

    def inspect(self, client: Client, state: Tree, message: Params) -> dict[str, Any]:
        """The preference, the client's most typical samples of each concept, and where some of its
        samples lie.
        """
        s = self._express(client, state["v"], message, client.examples)
        typical = s.topk(min(TYPICAL_SAMPLES, client.size), dim=0)
        chosen = client.random("map").permutation(client.size)[:MAPPED_SAMPLES]
        estimates = s[chosen].float() @ message[CONCEPTS]
        return {
            "group": int(state["v"].argmax()),
            "weights": state["v"],
            "preference": _preference(state["v"], message[CONCEPTS]),
            "typical": {"samples": typical.indices.T, "expressed": typical.values.T},
            "estimates": estimates,
            "map": mapped(estimates, message[CONCEPTS]),
        }

    def describe(self, server: Params) -> dict[str, Any]:
        """Also how far concepts lie apart: near 0 they have become one, and `similarity` is too
        small for the network.
        """
        concepts = server[CONCEPTS]
        apart = torch.pdist(concepts).mean() if len(concepts) > 1 else torch.zeros(())
        return {CONCEPTS: concepts, "map": mapped(concepts, concepts), "apart": float(apart)}

    def degenerate(self, model: Model, server: Params, rows: Rows) -> Degenerate | None:
        apart = self.describe(server)["apart"]
        if self.weight == 0:
            because = "weight is 0"
        elif self.num_concepts == 1:
            because = "it has one concept"
        elif apart < COLLAPSED:
            because = (
                f"the concepts have become one (they lie {apart:.1g} apart): try a larger "
                f"similarity than {self.similarity}"
            )
        else:
            return None
        if self.projection == "through":
            because += " (the network has a projection all the same)"
        return Degenerate("fedavg", because)


def expressed(z: Tensor, concepts: Tensor, v: Tensor, similarity: float) -> Tensor:
    """(N, M) s ∝ v exp(-ι ‖z - c‖²), in log space (1)."""
    distances = (z[:, None] - concepts).square().sum(2)
    return (v.clamp_min(mixture.MIN_WEIGHT).log().to(z) - similarity * distances).softmax(1)


def mapped(points: Tensor, concepts: Tensor) -> Tensor:
    """(N, 2) points of the concepts' space in the plane where concepts lie farthest apart."""
    middle = concepts.double().mean(0)
    axes = torch.linalg.svd(concepts.double() - middle, full_matrices=False).Vh[:2]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    flat = (points.double() - middle) @ (axes * largest.sign()).T  # an axis has no sign of its own
    return F.pad(flat, (0, 2 - flat.shape[1])).float()


def _preference(v: Tensor, concepts: Tensor) -> Tensor:
    """(D,) p = Σ v_m c_m."""
    return v.to(concepts) @ concepts
