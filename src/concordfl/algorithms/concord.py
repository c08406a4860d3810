"""Concord: one encoder for all clients, and a head for every concept.

Our own. The encoder is trained by everybody, each of K heads by the clients whose labels it
explains. Label shares, which FedConceptEM (Guo et al., 2024) divides by, stand beside the heads,
which need not learn them. There are more heads than concepts; those that turn out to be of one
concept become one. Numbers in the code are the equations of docs/concord.md.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from ..core import (
    About,
    Algorithm,
    Batch,
    Client,
    Cohort,
    Degenerate,
    Examples,
    Mean,
    Model,
    ModelCount,
    Params,
    Positive,
    Rows,
    Task,
    Total,
    Tree,
    client_step,
    tree,
    weighted_loss,
)
from ..toolbox import heads, labels, mixture

ABSENT_WEIGHT = 0.1  # of a client in the mean of all rows of a head, whatever labels it has
MIN_SHARE = 1e-6  # of a head at a client: below, the client has nothing to do with it
MIN_LIKENESS = 0.6  # of heads that become one


@tree.register
class ConcordServer(NamedTuple):
    params: Params
    standing: Tensor  # (K,) whether a head has not become part of another
    prior: Tensor  # (Y,) examples by which a client's label counts are drawn to the common shares


@tree.register
class ConcordMixture(NamedTuple):
    """What a client predicts with."""

    omega: Tensor  # (K,) how much of each concept it is
    log_shares: Tensor  # (Y,) of its labels


@dataclass(frozen=True)
class Concord(Algorithm):
    about = About(
        "Concord",
        "ours",
        2026,
        travels="the model with K heads, sums of labels and hits",
        private="data, mixture weights",
        cost="about 1.8",
    )
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its mixture weights and label shares"

    num_heads: ModelCount = 6  # K: more than there are concepts
    sharpness: Positive = 15.0  # τ: for how many examples a client's mean evidence counts
    balanced: bool = True  # whether label shares stand beside the heads, and rows count by labels
    merge: bool = True  # whether heads of one concept become one

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        return heads.ManyHeads(module, self.num_heads, "concord")

    # --- the server -------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ConcordServer:
        standing = torch.ones(self.num_heads, dtype=torch.bool)
        prior = torch.ones(task.objective.num_classes, dtype=torch.float64)
        return ConcordServer(task.model.init(seed), standing, prior)

    def round(self, server: ConcordServer, cohort: Cohort) -> ConcordServer:
        model, total = cohort.task.model, cohort.sum(self.train, broadcast=server)
        before = tree.subset(server.params, model.encoder_names)
        encoder = total["encoder"].mean(otherwise=before)  # (4)
        before = tree.subset(server.params, model.head_names)
        layer = total["heads"].mean(otherwise=before)  # (5)
        after = server._replace(
            params={**server.params, **encoder, **layer},
            prior=labels.share_prior(total["labels"]),  # (0)
        )
        table = total["table"]
        alike = heads.likeness(total["hits"], table)  # (6)
        if not self.merge or alike.max() < MIN_LIKENESS:
            return after
        return self._merged(model, after, table.sum(1), int(alike.argmax()))

    def _merged(
        self, model: Model, server: ConcordServer, held: Tensor, pair: int
    ) -> ConcordServer:
        """The second of two heads becomes part of the first, by how much is with each (7)."""
        kept, gone = sorted(divmod(pair, self.num_heads))
        every = heads.rows(model, server.params, self.num_heads)
        share = float(held[gone] / (held[kept] + held[gone]))
        every[kept] = tree.add(tree.scale(every[kept], 1 - share), tree.scale(every[gone], share))
        standing = server.standing.clone()
        standing[gone] = False
        return server._replace(params={**server.params, **heads.join(every)}, standing=standing)

    # --- the client -------------------------------------------------------------------------------

    @client_step
    def train(self, client: Client, state: Tree, message: ConcordServer) -> tuple[Tree, Tree]:
        model, before = client.model, message.params
        outputs = self._outputs(client, before)
        omega = self._weights(client, message, outputs)  # (1)
        loss = partial(self._loss, client, omega, self._log_shares(client, message))
        trained = client.fit(before, loss)  # (2)
        counts = client.label_counts()
        table = omega[:, None] * counts  # (K, Y)
        encoders = (tree.subset(params, model.encoder_names) for params in (trained, before))
        layers = (tree.subset(params, model.head_names) for params in (trained, before))
        weights = self._row_weights(table).flatten()  # (3)
        reply = {
            "encoder": Mean(next(encoders), client.size, around=next(encoders)),
            "heads": Mean(next(layers), weights, around=next(layers)),
            "table": Total(table),
            "labels": Total(labels.pairs(counts)),
            "hits": Total(heads.hits(outputs, client.examples.y, omega)),
        }
        return state, reply

    def _weights(self, client: Client, message: ConcordServer, outputs: Tensor) -> Tensor:
        """(K,) ω ∝ exp(-τ mean loss) over the heads that stand; 0 where it is next to nothing."""
        losses = heads.losses(client, outputs, client.examples.y).double().mean(0)
        evidence = (-self.sharpness * losses).masked_fill(~message.standing, -torch.inf)
        omega = evidence.softmax(0)
        return torch.where(omega < MIN_SHARE, 0, omega)

    def _row_weights(self, table: Tensor) -> Tensor:
        """(K, Y) of a client in each row of each head: by its label, and a little by all labels."""
        all_labels = table.sum(1, keepdim=True).expand_as(table)
        return table + ABSENT_WEIGHT / len(table.T) * all_labels if self.balanced else all_labels

    def _log_shares(self, client: Client, message: ConcordServer) -> Tensor:
        """(Y,) of the client's labels; 0 where heads are to learn them."""
        counts = client.label_counts() + message.prior
        return (counts / counts.sum()).log().float() if self.balanced else 0 * counts.float()

    def _loss(
        self, client: Client, omega: Tensor, log_shares: Tensor, params: Params, batch: Batch
    ) -> Tensor:
        """Every head learns at the full rate, the encoder from each by ω."""
        features = client.model.features(params, batch.x)
        omega, log_shares = omega.to(features), log_shares.to(features)

        def losses(seen: Tensor) -> Tensor:
            outputs = heads.of_features(client, self.num_heads, params, seen)
            return heads.losses(client, outputs + log_shares, batch.y)

        by_head, not_by_encoder = losses(features), losses(features.detach())
        return weighted_loss(by_head @ omega + not_by_encoder @ (1 - omega), batch)

    def _outputs(self, client: Client, params: Params, examples: Examples | None = None) -> Tensor:
        """(N, K, Y) of all heads."""
        return client.over(examples, partial(heads.outputs, client, self.num_heads, params))

    # --- prediction -------------------------------------------------------------------------------

    def adapt(
        self, client: Client, state: Tree, message: ConcordServer, *, new: bool
    ) -> ConcordMixture:
        outputs = self._outputs(client, message.params)
        omega = self._weights(client, message, outputs)
        return ConcordMixture(omega, self._log_shares(client, message))

    def predict(
        self, client: Client, state: ConcordMixture, message: ConcordServer, examples: Examples
    ) -> Tensor:
        outputs = self._outputs(client, message.params, examples) + state.log_shares
        return mixture.average(list(client.objective.predictions(outputs).unbind(1)), state.omega)

    def module(self, client: Client, state: ConcordMixture, message: ConcordServer) -> nn.Module:
        network = cast(heads.ManyHeads, client.model.module(message.params))
        readout = client.objective.readout()
        return heads.HeadMixture(network, readout, state.omega, state.log_shares)

    def inspect(
        self, client: Client, state: ConcordMixture, message: ConcordServer
    ) -> dict[str, Any]:
        return {"group": int(state.omega.argmax()), "weights": state.omega}

    def describe(self, server: ConcordServer) -> dict[str, Any]:
        return {"heads": int(server.standing.sum())}

    def degenerate(self, model: Model, server: ConcordServer, rows: Rows) -> Degenerate | None:
        alone = self.num_heads == 1 and not self.balanced
        return Degenerate("fedavg", "it has one head and is not balanced") if alone else None
