"""Concord: one encoder for all clients, and a head for every concept.

Our own. Before the training, clients whose labels mean the same are found on frozen features, in
closed form; a head for each of these groups, and the encoder of all, are then trained together.
Label shares, which FedConceptEM (Guo et al., 2024) divides by, stand beside the heads, which need
not learn them. Now and then a client looks which head explains it; one that none explains takes a
head that is still free. In the end heads are brought to where all clients' losses are least.
Numbers in the code are the equations of docs/concord.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import (
    About,
    Batch,
    Client,
    ClientId,
    Cohort,
    Count,
    CountOrZero,
    Degenerate,
    Examples,
    Likelihood,
    Mean,
    Model,
    ModelCount,
    Params,
    Positive,
    Probability,
    Rows,
    SettingError,
    Stage,
    Task,
    Total,
    Tree,
    client_step,
    tree,
    weighted_loss,
)
from ..toolbox import axes, class_heads, gaussian, groupings, heads, labels, mixture
from ..toolbox.absent import with_absent
from ..toolbox.class_heads import ClassSums
from .gating import GATE, Gate, GatesInputs
from .grouping import MOST_GROUPS, NOTHING_JOINED, Grouping, Joined
from .settling import SettlesHeads, Settling
from .typicality import DescribesInputs, Inputs, log_shares_of_all, log_typical

ABSENT_WEIGHT = 0.1  # of a client in the mean of all rows of a head, whatever labels it has
MIN_SHARE = 1e-6  # of a head at a client: below, the client has nothing to do with it
DECIDED = 0.9  # the largest weight of a client that need not look at every visit
WORSE_THAN_GUESSING = 0.25  # nats by which a head is, for a client that it does not explain
ONE_SIDED = 1.645  # standard errors by which it must be, so that few part by chance (5%)
GLANCE = 20  # examples on which a client sees with every visit that its head explains it no more;
# of fewer nothing is said


@tree.register
class ConcordServer(NamedTuple):
    params: Params
    used: Tensor  # (K,) whether a client has ever had this head
    prior: Tensor  # (Y,) examples by which a client's label counts are drawn to the common shares
    grouping: Grouping
    gate: Gate = Gate()
    inputs: Inputs | None = None  # where it is asked how typical inputs are
    drawn_back: float = 0.0  # clients of the last round whose training went too far
    label_counts: Tensor | None = None  # (Y,) of all clients, which the common shares are of
    settling: Settling | None = None  # at the end


@tree.register
class ConcordClient(NamedTuple):
    joined: Joined  # groups on the way to those that were found; empty once it has trained
    omega: Tensor  # (K,) how much of each concept it is; empty until it has trained
    visits: int  # in which it has trained


@tree.register
class ConcordMixture(NamedTuple):
    """What a client predicts with."""

    omega: Tensor  # (K,)
    offsets: Tensor  # (Y,) beside the heads' outputs: its log label shares (2)


@dataclass(frozen=True)
class Concord(GatesInputs, DescribesInputs, SettlesHeads):
    about = About(
        "Concord",
        "ours",
        2026,
        travels="the model with K heads, sums of labels and gradients, moments",
        private="data, which concept it is of",
        cost="about 1.1, then 0",
    )
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its mixture weights and label shares"

    num_heads: ModelCount = 6  # K: more than there are concepts
    sharpness: Positive = 15.0  # τ: for how many examples a client's mean evidence counts
    look_every: Count = 10  # visits, until a client looks at all heads again
    longest_move: Positive = 1.0  # of the encoder by a client, in lengths of the encoder itself
    balanced: bool = True  # whether label shares stand beside the heads, and rows count by labels
    share_weight: Probability = 0.5  # λ: how much of the label shares does so in training
    most_groups: Count | None = None  # that are looked for; by default five, and a head is left
    settling_steps: CountOrZero = 10  # of the heads at the end, which lower all clients' losses
    # whether it can say how typical inputs are: two passes, and the model sent, twice more a round
    density: bool = False
    # whether heads of one concept share the inputs among them; by default where the network has
    # nothing but heads, and so cannot tell inputs apart
    gate: bool | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.most_groups is not None and self.most_groups > self.num_heads:
            raise SettingError(
                f"most_groups must be <= num_heads = {self.num_heads}, got {self.most_groups}"
            )
        if not self.balanced and self.share_weight != Concord.share_weight:
            raise SettingError(
                "share_weight must be left out where balanced is false, as label shares are then, "
                f"got {self.share_weight:g}"
            )
        if self.gate and self.max_groups < 2:
            raise SettingError(
                "gate must be false where no groups are looked for (num_heads < 3 or most_groups "
                "= 1), got true"
            )

    @property
    def scores_samples(self) -> bool:  # type: ignore[override]
        return self.density

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        return heads.ManyHeads(module, self.num_heads, "concord")

    @property
    def max_groups(self) -> int:
        if self.most_groups is None:
            return min(self.num_heads - 1, MOST_GROUPS)  # a head is left for what comes later
        return self.most_groups

    @property
    def num_gaussians(self) -> int:
        return self.num_heads

    def left_out(self, task: Task, server: ConcordServer) -> str:
        reason = super().left_out(task, server)
        if reason or not self.gate or server.gate.is_used:
            return reason
        why = {
            0: "it was not looked for, as too few clients answered when groups were",
            1: "none was found with which several heads explain labels better",
        }.get(server.grouping.number, "clients are in groups, each with a head of its own")
        return f"there is no gate (gate = true): {why}"

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        first = self.group_stages()
        if first and (not model.encoder_names if self.gate is None else self.gate):
            first = (*first, *self.gate_stages())
        return *first, Stage("train", self.round), *self.settling_stages(model)

    # --- the server -------------------------------------------------------------------------------

    def init_server(self, task: Task, seed: int) -> ConcordServer:
        used = torch.arange(self.num_heads) == 0
        prior = torch.ones(task.objective.num_classes, dtype=torch.float64)
        params = task.model.init(seed)
        width = params[task.model.head_names[0]].shape[1]
        if self.density and width > axes.MOST_FEATURES:  # what is sent grows as the square of it
            raise SettingError(
                f"density must be false where heads see more than {axes.MOST_FEATURES:,} numbers "
                f"of an input, got {width:,}"
            )
        return ConcordServer(params, used, prior, Grouping())

    def judge_groups(self, server: ConcordServer, cohort: Cohort) -> ConcordServer:
        after: ConcordServer = super().judge_groups(server, cohort)
        return after._replace(used=torch.arange(self.num_heads) < max(after.grouping.number, 1))

    def begin_heads(self, server: ConcordServer, cohort: Cohort) -> ConcordServer:
        """Linear discriminants of the inputs of each Gaussian, where heads are of the inputs
        themselves; not of inputs so wide that all would wait for their moments, or too few.
        """
        model = cohort.task.model
        width = server.params[model.head_names[0]].shape[1]
        has_offsets = len(model.head_names) == 2
        if model.encoder_names or width > axes.MAX_PIXELS or not has_offsets:
            return server
        sums: ClassSums = cohort.sum(self.measure_features, broadcast=server)
        if float(sums.counts.sum()) < axes.MIN_EXAMPLES_PER_DIMENSION * width:
            return server
        found = class_heads.linear_heads_of_all(sums, [self.num_heads])
        in_head = groupings.log_shares(sums.counts, [self.num_heads])
        common = class_heads.shares_of(sums.counts.sum(0)).log()
        offsets = found.offsets + in_head + self._learnt_by_heads * common
        # What classes have in common changes no prediction, and would cost float32 its digits.
        parts = (part - part.mean(1, keepdim=True) for part in (found.slopes, offsets))
        by_name = zip(model.head_names, parts, strict=True)
        layer = {name: value.flatten(0, 1).float() for name, value in by_name}
        return server._replace(params={**server.params, **layer})

    def round(self, server: ConcordServer, cohort: Cohort) -> ConcordServer:
        model = cohort.task.model
        if server.grouping.sums is not None:  # too few have answered to find groups
            server = server._replace(grouping=Grouping())
        server = server._replace(gate=Gate(is_used=server.gate.is_used))
        total = cohort.sum(self.train, broadcast=self.message(server, None)._replace(inputs=None))
        label_counts = with_absent(cohort, total["labels"].counts, server.label_counts)
        before = tree.subset(server.params, model.encoder_names)
        encoder = total["encoder"].mean(otherwise=before)  # (4)
        before = tree.subset(server.params, model.head_names)
        layer = total["heads"].mean(otherwise=before)  # (5)
        server = server._replace(
            params={**server.params, **encoder, **layer},
            used=server.used | (total["held"] > 0),
            prior=labels.share_prior(  # (0)
                label_counts, total["labels"], otherwise=float(server.prior.sum())
            ),
            drawn_back=total["drawn_back"],
            label_counts=label_counts,
        )
        return self.describe_inputs(server, cohort) if self.density else server

    def ready(self, server: ConcordServer) -> bool:
        return not self.density or server.inputs is not None

    def message(self, server: ConcordServer, client_id: ClientId | None) -> ConcordServer:
        return server._replace(label_counts=None, settling=None)

    # --- the client -------------------------------------------------------------------------------

    def init_client(self, client: Client, message: Tree) -> ConcordClient:
        return ConcordClient(NOTHING_JOINED, torch.empty(0, dtype=torch.float64), visits=0)

    @client_step
    def train(
        self, client: Client, state: ConcordClient, message: ConcordServer
    ) -> tuple[ConcordClient, Tree]:
        model, before = client.model, message.params
        counts = client.label_counts()
        if message.gate.is_used:
            shares, omega, _ = self.shares_of_inputs(client)
            belongs = F.one_hot(client.examples.y, client.num_classes).to(shares)
            rows = self._row_weights(torch.ones_like(omega), shares.T @ belongs)
        else:
            omega = self._choose_heads(client, state, message)
            rows = self._row_weights(omega, counts)
        fitted = client.fit(before, self._own_loss(client, message, omega))  # (2)
        trained, is_drawn_back = _draw_back(model, before, fitted, self.longest_move)
        encoders = (tree.subset(params, model.encoder_names) for params in (trained, before))
        layers = (tree.subset(params, model.head_names) for params in (trained, before))
        reply = {
            "encoder": Mean(next(encoders), client.size, around=next(encoders)),
            "heads": Mean(next(layers), rows.flatten(), around=next(layers)),  # (3)
            "labels": Total(labels.pairs(counts)),
            "held": Total(omega * client.size),
            "drawn_back": Total(float(is_drawn_back)),
        }
        return ConcordClient(NOTHING_JOINED, omega, state.visits + 1), reply

    def _choose_heads(self, client: Client, state: ConcordClient, message: ConcordServer) -> Tensor:
        """(K,) ω: the group's head at first, then what explains the client, every few visits, or
        at once where that is undecided or explains it no more; a free head where nothing does.
        """
        is_decided = bool(state.visits) and float(state.omega.max()) > DECIDED
        is_due = not state.visits % self.look_every
        if is_decided and not is_due and self._still_explained(client, state.omega, message):
            return state.omega
        group = self.group_of(client, state, message.grouping)
        if not state.visits and group is not None:
            return self._only(group)
        losses = self._losses(client, message)
        free = (~message.used).nonzero().flatten().tolist()
        best = int(losses.mean(0).masked_fill(~message.used, torch.inf).argmin())
        if state.visits and free and _is_worse_than_guessing(losses[:, best], client):
            return self._only(free[0])
        return self._weights(losses.mean(0), message)

    def _still_explained(self, client: Client, omega: Tensor, message: ConcordServer) -> bool:
        """Seen in a few predictions before it trains the head on what this is wrong about."""
        own = client.examples
        some = torch.linspace(0, client.size - 1, min(GLANCE, client.size)).long()
        glance = Examples(own.x[some], own.y[some], scale=own.scale)
        outputs = self._outputs(client, message.params, glance)
        outputs = outputs + self._beside_in_prediction(client, message)
        losses = heads.losses(client, outputs, glance.y).double()
        return not _is_worse_than_guessing(losses @ omega, client)

    def _known_heads(self, client: Client, state: ConcordClient, message: ConcordServer) -> Tensor:
        """(K,) ω as it was last chosen; who has never trained looks at all heads."""
        return state.omega if len(state.omega) else self._found(client, message)

    def _only(self, head: int) -> Tensor:
        return (torch.arange(self.num_heads) == head).double()

    def _losses(self, client: Client, message: ConcordServer) -> Tensor:
        """(N, K) loss of every head on the client's examples."""
        outputs = self._outputs(client, message.params)
        return heads.losses(client, outputs, client.examples.y).double()

    def _weights(self, losses: Tensor, message: ConcordServer) -> Tensor:
        """(K,) ω ∝ exp(-τ mean loss) over the heads in use; 0 where it is next to nothing (6)."""
        evidence = (-self.sharpness * losses).masked_fill(~message.used, -torch.inf)
        omega = evidence.softmax(0)
        return torch.where(omega < MIN_SHARE, 0, omega)

    def _row_weights(self, omega: Tensor, counts: Tensor) -> Tensor:
        """(K, Y) of a client in each row of each head: by its label, and a little by all labels;
        counts (Y,), or (K, Y) by head.
        """
        absent = ABSENT_WEIGHT * counts.mean(-1, keepdim=True)
        return omega[:, None] * (
            counts + absent if self.balanced else counts.sum(-1, keepdim=True).expand_as(counts)
        )

    def _log_shares(self, client: Client, message: ConcordServer) -> Tensor:
        """(Y,) of the client's labels; 0 where heads are to learn them."""
        counts = client.label_counts() + message.prior
        return (counts / counts.sum()).log().float() if self.balanced else 0 * counts.float()

    @property
    def _learnt_by_heads(self) -> float:
        """How much of the log common shares: what does not stand beside them in training."""
        return 1 - self.share_weight if self.balanced else 1.0

    def _learnt_shares(self, message: ConcordServer) -> Tensor:
        """(Y,) what heads have learnt of the log common shares, where others take its place."""
        common = (message.prior / message.prior.sum()).log().float()
        return self._learnt_by_heads * common if self.balanced else 0 * common

    def _beside_in_prediction(self, client: Client, message: ConcordServer) -> Tensor:
        """(Y,) the client's log label shares, in the place of what heads have learnt of all's."""
        return self._log_shares(client, message) - self._learnt_shares(message)

    def beside_in_training(self, client: Client, server: ConcordServer) -> Tensor:
        """(Y,) a share of the client's log label shares."""
        return self.share_weight * self._log_shares(client, server)

    def _own_loss(
        self, client: Client, message: ConcordServer, omega: Tensor
    ) -> Callable[[Params, Batch], Tensor]:
        """What the client's examples lose, with a share of its log label shares beside heads."""
        beside = self.beside_in_training(client, message)
        if message.gate.is_used:
            shares = self.shares_of_inputs(client).gamma
            return partial(self._gated_loss, client, shares, beside)
        return partial(self._loss, client, omega, beside)

    def _loss(
        self, client: Client, omega: Tensor, beside: Tensor, params: Params, batch: Batch
    ) -> Tensor:
        """Σ_k ω_k times the loss of head k, with `beside` (Y,) added to its outputs."""
        features = client.model.features(params, batch.x)
        outputs = heads.of_features(client, self.num_heads, params, features)
        held = omega.nonzero().flatten()
        by_head = heads.losses(client, outputs[:, held] + beside.to(outputs), batch.y)
        return weighted_loss(by_head @ omega[held].to(by_head), batch)

    def _gated_loss(
        self, client: Client, shares: Tensor, beside: Tensor, params: Params, batch: Batch
    ) -> Tensor:
        """The same with shares (N, K) of the client's examples instead of ω (7)."""
        outputs = heads.outputs(client, self.num_heads, params, batch.x)
        by_head = heads.losses(client, outputs + beside.to(outputs), batch.y)
        return weighted_loss((by_head * shares[batch.index].to(by_head)).sum(1), batch)

    def features(self, client: Client, server: ConcordServer, examples: Examples) -> Tensor:
        """(N, D) what the encoder gives."""
        found: Tensor = client.over(examples, partial(client.model.features, server.params))
        return found.flatten(1).double()

    def head_shares(self, client: Client, state: ConcordClient, server: ConcordServer) -> Tensor:
        """(K,) ω, or (N, K) with a gate."""
        if server.gate.is_used:
            return self.shares_of_inputs(client).gamma
        return self._known_heads(client, state, server)

    def _outputs(self, client: Client, params: Params, examples: Examples | None = None) -> Tensor:
        """(N, K, Y) of all heads."""
        return client.over(examples, partial(heads.outputs, client, self.num_heads, params))

    # --- prediction -------------------------------------------------------------------------------

    def adapt(
        self, client: Client, state: ConcordClient, message: ConcordServer, *, new: bool
    ) -> ConcordMixture:
        """A participant predicts with the heads that it has trained; others look at all."""
        known = not new and not message.gate.is_used
        omega = self._known_heads(client, state, message) if known else self._found(client, message)
        return ConcordMixture(omega, self._beside_in_prediction(client, message))

    def tune(
        self, client: Client, state: ConcordMixture, message: ConcordServer, epochs: int
    ) -> ConcordServer:
        """As in training, with the weights that a new client has found (2); heads alone where they
        settle on the encoder, or how typical inputs are is known under it.
        """
        loss = self._own_loss(client, message, state.omega)
        settles = self.settling_stages(client.model)
        only = client.model.head_names if self.density or settles else None
        tuned = client.fit(message.params, loss, epochs=epochs, only=only, purpose="tune")
        return message._replace(params=tuned)

    def _found(self, client: Client, message: ConcordServer) -> Tensor:
        """(K,) ω of who has never trained: by what its inputs are like, or by all heads' losses."""
        if message.gate.is_used:
            return self.shares_of_inputs(client).omega
        return self._weights(self._losses(client, message).mean(0), message)

    def predict(
        self, client: Client, state: ConcordMixture, message: ConcordServer, examples: Examples
    ) -> Tensor:
        outputs = self._outputs(client, message.params, examples) + state.offsets
        weights = state.omega
        if message.gate.is_used:
            weights = self.shares_of_others(client, state.omega, examples)
        return mixture.average(list(client.objective.predictions(outputs).unbind(1)), weights)

    def likelihood(
        self,
        client: Client,
        state: ConcordMixture | None,
        message: ConcordServer,
        examples: Examples,
    ) -> Likelihood:
        """Of labels by the client's weights and label shares, or by those of all; of inputs by
        those of all, as the distances of training examples were taken (8).
        """
        inputs = cast(Inputs, message.inputs)
        near = self.nearness(client, message, examples, log_shares_of_all(inputs))
        if state is None:
            outputs = self._outputs(client, message.params, examples)
            if self.balanced:
                shares = class_heads.shares_of(inputs.sums.counts).log()
                outputs = outputs + (shares - self._learnt_shares(message))
            by_head = list(client.objective.predictions(outputs).unbind(1))
            predicted = mixture.average(by_head, near.logsumexp(2).softmax(1))
        else:
            predicted = self.predict(client, state, message, examples)
        labelled = predicted[torch.arange(len(examples)), examples.y]
        return Likelihood(log_typical(inputs, near), labelled.clamp_min(MIN_SHARE).log())

    def module(self, client: Client, state: ConcordMixture, message: ConcordServer) -> nn.Module:
        network = cast(heads.ManyHeads, client.model.module(message.params))
        mixed = (network, client.objective.readout(), state.omega, state.offsets)
        if not message.gate.is_used:
            return heads.HeadMixture(*mixed)
        coordinates = axes.Coordinates(client.published(axes.FRAME))
        density = gaussian.LogDensity(client.published(GATE))
        return heads.GatedHeads(*mixed, nn.Sequential(coordinates, density))

    def inspect(
        self, client: Client, state: ConcordMixture, message: ConcordServer
    ) -> dict[str, Any]:
        found = {"weights": state.omega}
        return found if message.gate.is_used else {**found, "group": int(state.omega.argmax())}

    def describe(self, server: ConcordServer) -> dict[str, Any]:
        found = {"heads": int(server.used.sum()), "groups": server.grouping.number}
        if server.drawn_back:
            found["drawn_back"] = int(server.drawn_back)
        return {**found, "gated": True} if server.gate.is_used else found

    def degenerate(self, model: Model, server: ConcordServer, rows: Rows) -> Degenerate | None:
        alone = self.num_heads == 1 and not self.balanced and not server.drawn_back
        alone = alone and not self.settling_stages(model)
        return Degenerate("fedavg", "it has one head and is not balanced") if alone else None


def _draw_back(model: Model, before: Params, after: Params, longest: float) -> tuple[Params, bool]:
    """Where the encoder has moved by more than `longest` times its own length: all as far back as
    brings it to that, and running statistics, which grow as its square, to where they were. A
    client that diverges would take everybody's encoder with it.
    """
    old, new = (model.weights(tree.subset(all, model.encoder_names)) for all in (before, after))
    if not old:
        return after, False
    moved, length = (math.sqrt(tree.sq_dist(old, other)) for other in (new, tree.scale(old, 0)))
    if not moved > longest * length:
        return after, False
    share = longest * length / moved
    back = tree.map(lambda was, now: was + share * (now - was), before, after)
    return {**back, **tree.subset(before, model.buffer_names)}, True


def _is_worse_than_guessing(losses: Tensor, client: Client) -> bool:
    """Whether losses (N,) are so large, by more than chance, that a head does not explain the
    client.
    """
    if len(losses) < GLANCE:
        return False
    error = float(losses.std()) / math.sqrt(len(losses))
    guess = math.log(client.num_classes) + WORSE_THAN_GUESSING
    return float(losses.mean()) - ONE_SIDED * error > guess
