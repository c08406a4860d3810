"""FedConcat: clients with similar labels train an encoder each group; all of them train one head on
the encoders side by side.

Diao, Li, He: Exploiting Label Skews in Federated Learning with Model Concatenation, AAAI 2024.
Algorithm 1, appendices B and D. Stages: cluster, encoders, concatenate, head. Departures: the head
is averaged by size (published code: equally, which `head_average = "equal"` gives); T_e and T_c
follow from the rounds asked for (5.2: 31 and 200, on Fashion-MNIST 173), unless they are given.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import (
    About,
    Algorithm,
    Average,
    Batch,
    Client,
    ClientId,
    Cohort,
    Draws,
    Examples,
    Mean,
    Model,
    ModelCount,
    Params,
    Positive,
    PredictingNetwork,
    Repeats,
    SettingError,
    Stage,
    Task,
    Training,
    Tree,
    batches_per_epoch,
    client_step,
    encoder_and_head,
    tree,
    weighted_loss,
)
from ..toolbox import clustering
from .fedsoft import FedSoft
from .fesem import FeSEM
from .ifca import IFCA

ENCODERS = "encoders"  # the name under which they are published
INPUTS_PER_BATCH = 500  # of the random ones
Clustered = IFCA | FeSEM | FedSoft
# Of what is left to send when the encoders' way to the clients is paid for. The paper spends the
# bytes of 50 rounds on 31 rounds of encoders, 2.5 for that way, and the head (5.2).
ENCODER_SHARE = 31 / 47.5
MIN_HEAD_ROUNDS = 2  # for every round of encoders, also where the head is most of the network
EXPECTED_GROUPS = 5  # where the elbow says how many there are, and so not before the run
# as FedAvg inside every cluster, which they stand for, they average by size
STRATEGIES: dict[str, Callable[..., Clustered]] = {
    "ifca": partial(IFCA, average="size"),
    "fesem": partial(FeSEM, average="size"),
    "fedsoft": FedSoft,
}


@tree.register
class FedConcatServer(NamedTuple):
    models: dict[int, Params]  # by group; their encoders are put side by side
    members: dict[ClientId, int]  # the clients' groups
    head: Params  # of all encoders; empty until they are side by side
    inner: Tree  # the state of the method that clusters; empty for k-means
    # of the clients, as they told them or as inferred; checkpoints from before have none
    label_shares: Mapping[ClientId, Tensor] = {}


@tree.register
class FedConcatMessage(NamedTuple):
    head: Params
    cluster: int | None
    label_shares: Tensor | None  # what the server knows of the client's, or believes


class Wide(nn.Module):
    """All encoders side by side under one linear head."""

    def __init__(self, encoders: Iterable[nn.Module], head: Params) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)
        outputs, width = head["weight"].shape
        self.head = nn.Linear(width, outputs, bias="bias" in head)
        self.head.load_state_dict(head)

    def forward(self, inputs: Tensor) -> Tensor:
        features = [encoder(inputs) for encoder in self.encoders]
        return cast(Tensor, self.head(torch.cat(features, dim=1)))


class StageCosts(NamedTuple):
    """What is sent, in rounds of FedAvg, which send the model down and up."""

    encoders: float  # by a round
    hand_out: float  # when all clients get the encoders
    head: float  # by a round


@dataclass(frozen=True)
class FedConcat(Algorithm):
    about = About(
        "FedConcat",
        "Diao et al.",
        2024,
        travels="the model, label shares, K encoders once, a head",
        private="data",
        cost="1, then 0",
    )

    clusters: ModelCount | Literal["elbow"] = 5  # K
    # others: their K models are the encoders (5.6)
    strategy: Literal["kmeans", "ifca", "fesem", "fedsoft"] = "kmeans"
    # told by the clients, or inferred from a first round (ID, IB)
    infer: Literal["labels", "model", "bias"] = "labels"
    epsilon: Positive | None = None  # ε of Laplace noise on the label shares that clients tell
    random_inputs: Draws = 10_000  # r, for infer = "model"
    # whether the round that infers labels is thrown away, as Algorithm 1 has it
    restart: bool = False
    balanced: bool = False  # groups of bounded size (D.8)
    # T_e and T_c; left out, the whole sends about what run.rounds rounds of FedAvg send
    encoder_rounds: Repeats | None = None
    head_rounds: Repeats | None = None
    head_steps: Repeats = 3  # mini-batches per client and round
    head_init: Literal["random", "clusters"] = "random"
    head_average: Average = "size"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon is not None and (self.infer != "labels" or self.strategy != "kmeans"):
            raise SettingError(
                f"epsilon is for label shares that clients tell, got infer = {self.infer!r}, "
                f"strategy = {self.strategy!r}"
            )
        if self.restart and self.infer == "labels":
            raise SettingError(
                "restart is for labels that are inferred from a round of training, got infer = "
                "'labels'"
            )
        if self.strategy != "kmeans":
            self._check_strategy()

    def _check_strategy(self) -> None:
        """Other clusterings know nothing of labels."""
        if self.clusters == "elbow":
            raise SettingError(
                f"clusters must be a number where strategy is {self.strategy!r}, got 'elbow'"
            )
        for name, ours in (("infer", self.infer != "labels"), ("balanced", self.balanced)):
            if ours:
                raise SettingError(
                    f"{name} is for strategy = 'kmeans', got {getattr(self, name)!r} with "
                    f"{self.strategy!r}"
                )

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        _, head = encoder_and_head(module, "fedconcat")
        if self.infer == "bias" and head.bias is None:
            raise SettingError(
                "fedconcat with infer = 'bias' needs a head with a bias, got one without"
            )
        return module

    def stages(self, rounds: int, model: Model) -> Sequence[Stage]:
        encoder_rounds, head_rounds = self.rounds_of_stages(rounds, model)
        # The round that infers labels is the first of the encoders', unless it is thrown away.
        trains = self.infer != "labels" and not self.restart
        encoders = [
            Stage("cluster", self.cluster, rounds=1, everyone=True, prepares=True, trains=trains),
            Stage(
                "encoders",
                self.train_encoders,
                rounds=encoder_rounds - int(trains),
                first_round=int(trains),
                prepares=True,
            ),
        ]
        if self.strategy != "kmeans":
            encoders = [
                Stage(
                    "first",
                    self.train_by_strategy,
                    rounds=1,
                    everyone=self.strategy == "fesem",
                    prepares=True,
                    required=False,
                ),
                Stage(
                    "encoders",
                    self.train_by_strategy,
                    rounds=encoder_rounds - 1,
                    first_round=1,
                    prepares=True,
                ),
            ]
        return (
            *encoders,
            Stage(
                "concatenate",
                self.concatenate,
                rounds=1,
                everyone=True,
                prepares=True,
                required=False,
                trains=False,
            ),
            Stage("head", self.train_head, rounds=head_rounds),
        )

    def rounds_rule(self) -> str:
        if None in (self.encoder_rounds, self.head_rounds):
            return "equal communication, they send about what those rounds of FedAvg send"
        return "as encoder_rounds and head_rounds say"

    def rounds_of_stages(self, rounds: int, model: Model) -> tuple[int, int]:
        """T_e and T_c: as given, or such that the whole sends about what `rounds` of FedAvg send
        (4.3), in the paper's shares.
        """
        cost = self._costs(model)
        left = rounds - cost.hand_out - int(self.restart)
        encoders, head = self.encoder_rounds, self.head_rounds
        if encoders is None and head is None:
            by_share = ENCODER_SHARE * left / cost.encoders
            most = left / (cost.encoders + MIN_HEAD_ROUNDS * cost.head)
            encoders = max(1, round(min(by_share, most)))
        elif encoders is None:
            encoders = max(1, round((left - cast(int, head) * cost.head) / cost.encoders))
        if head is None:
            affordable = round((left - encoders * cost.encoders) / cost.head)
            head = max(MIN_HEAD_ROUNDS * encoders, affordable)
        return encoders, head

    def _costs(self, model: Model) -> "StageCosts":
        groups = self.clusters if isinstance(self.clusters, int) else EXPECTED_GROUPS
        sizes = {name: value.numel() for name, value in model.init(0).items()}
        whole = sum(sizes.values())  # w
        head = sum(sizes[name] for name in model.head_names)  # h
        bias = sum(sizes[name] for name in model.head_names if name.endswith("bias"))
        down = groups if self.strategy in ("ifca", "fedsoft") else 1
        up = groups if self.strategy == "fedsoft" else 1
        return StageCosts(
            encoders=(down + up) / 2,
            hand_out=groups * (whole - head) / (2 * whole),  # one way only
            head=(groups * (head - bias) + bias) / whole,
        )

    def ready(self, server: FedConcatServer) -> bool:
        return bool(server.head)

    def init_server(self, task: Task, seed: int) -> FedConcatServer:
        start = FedConcatServer({0: task.model.init(seed)}, members={}, head={}, inner={})
        if self.strategy == "kmeans":
            return start
        inner: Tree = self._inner().init_server(task, seed)
        return start._replace(models=self._inner().shared_models(inner), inner=inner)

    def init_client(self, client: Client, message: Tree) -> Tree:
        return {} if self.strategy == "kmeans" else self._inner().init_client(client, message)

    # --- 1: groups of clients with similar labels -------------------------------------------------

    def cluster(self, server: FedConcatServer, cohort: Cohort) -> FedConcatServer:
        start = server.models[0]
        if self.infer == "labels":
            return self._start_groups(server, cohort.run(self.tell_labels), cohort)
        replies = cohort.run(self.train, broadcast={0: start})
        trained = {id: replies[id][0] for id in replies}
        server = self._start_groups(server, self._inferred(trained, start, cohort), cohort)
        if self.restart:
            return server
        groups = {
            k: [trained[id] for id in sorted(trained) if server.members[id] == k]
            for k in server.models
        }
        models = {
            k: cohort.total(group, f"group-{k}").mean(otherwise=start)
            for k, group in groups.items()
        }
        return server._replace(models=models)

    def _start_groups(
        self, server: FedConcatServer, shares: Mapping[ClientId, Tensor], cohort: Cohort
    ) -> FedConcatServer:
        """Groups by the clients' label shares, each with the first model."""
        ids, key = sorted(shares), cohort.random("clusters")
        points = np.stack([shares[id].numpy() for id in ids])
        count = clustering.elbow(points, key) if self.clusters == "elbow" else self.clusters
        groups = (clustering.balanced if self.balanced else clustering.kmeans)(points, count, key)
        members: dict[ClientId, int] = dict(zip(ids, groups.tolist(), strict=True))
        return server._replace(
            models=dict.fromkeys(sorted(set(members.values())), server.models[0]),
            members=members,
            label_shares={id: shares[id] for id in ids},
        )

    @client_step
    def tell_labels(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        """(2), with the noise of appendix B if asked for."""
        shares = client.label_counts() / client.size
        if self.epsilon is not None:
            key = client.private_random("laplace")
            shares = shares + key.laplace(tuple(shares.shape), 1 / self.epsilon)
        return state, shares

    def _inferred(
        self, trained: dict[ClientId, Any], start: Params, cohort: Cohort
    ) -> dict[ClientId, Tensor]:
        if self.infer == "model":
            inputs = cohort.task.random_inputs(self.random_inputs, cohort.random("inputs"))
            return {
                id: _mean_prediction(cohort.task, reply.mean(), inputs)
                for id, reply in trained.items()
            }
        return {
            id: _from_bias(cohort, start, reply.mean(), int(reply.weight))
            for id, reply in trained.items()
        }

    # --- 2: FedAvg inside each group --------------------------------------------------------------

    def train_encoders(self, server: FedConcatServer, cohort: Cohort) -> FedConcatServer:
        models, members = server.models, server.members
        total = cohort.sum(
            self.train,
            each={id: {members[id]: models[members[id]]} for id in cohort.ids if id in members},
        )
        return server._replace(
            models={
                k: total[k].mean(otherwise=models[k]) if k in total else models[k] for k in models
            }
        )

    @client_step
    def train(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        ((k, params),) = message.items()
        return state, {k: Mean(client.fit(params), client.size, around=params)}

    def train_by_strategy(self, server: FedConcatServer, cohort: Cohort) -> FedConcatServer:
        inner: Tree = self._inner().round(server.inner, cohort)
        return server._replace(models=self._inner().shared_models(inner), inner=inner)

    def parts(self) -> Mapping[str, Algorithm]:
        return {} if self.strategy == "kmeans" else {self.strategy: self._inner()}

    def _inner(self) -> Clustered:
        """The clustered method that takes the place of stages 1 and 2."""
        return STRATEGIES[self.strategy](num_models=cast(int, self.clusters))

    # --- 3: the encoders side by side, for good ---------------------------------------------------

    def concatenate(self, server: FedConcatServer, cohort: Cohort) -> FedConcatServer:
        model = cohort.task.model
        cohort.publish(
            ENCODERS,
            {k: tree.subset(params, model.encoder_names) for k, params in server.models.items()},
        )
        cohort.sum(self.compute_features)
        return server._replace(head=self._first_head(server.models, cohort))

    @client_step
    def compute_features(self, client: Client, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        self.features(client, client.examples)
        return state, {}

    def features(self, client: Client, examples: Examples) -> Tensor:
        """(N, K · width) the features of all encoders, computed once."""

        def of(encoder: Params) -> Tensor:
            return client.over(examples, lambda inputs: client.model.features(encoder, inputs))

        found: Tensor = examples.cached(
            "features",
            lambda: torch.cat(
                [of(encoder) for encoder in client.published(ENCODERS).values()], dim=1
            ),
        )
        return found

    def _first_head(self, models: Mapping[int, Params], cohort: Cohort) -> Params:
        """`weight`, and `bias` where the network's head has one."""
        heads = [_head_of(params, cohort) for params in models.values()]
        if self.head_init == "clusters":  # the sum of the groups' logits
            joined = {"weight": torch.cat([head["weight"] for head in heads], dim=1)}
            return joined | {
                name: torch.stack([head[name] for head in heads]).sum(0)
                for name in heads[0]
                if name == "bias"
            }
        width = sum(head["weight"].shape[1] for head in heads)
        with cohort.random("head").torch_global():
            layer = nn.Linear(width, cohort.task.num_classes, bias="bias" in heads[0])
        return {name: value.detach() for name, value in layer.named_parameters()}

    # --- 4: one head for all ----------------------------------------------------------------------

    def train_head(self, server: FedConcatServer, cohort: Cohort) -> FedConcatServer:
        if not server.head:  # nobody answered when the encoders were handed out
            return self.concatenate(server, cohort)
        total = cohort.sum(self.train_on_features, broadcast=server.head)
        return server._replace(head=total.mean(otherwise=server.head))

    @client_step
    def train_on_features(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        features = Examples(self.features(client, client.examples), client.examples.y)
        head = client.descend(
            message,
            partial(_head_loss, client),
            data=features,
            steps=self.head_steps,
            purpose="head",
        )
        return state, Mean(head, client.weight(self.head_average), around=message)

    # --- the wide model ---------------------------------------------------------------------------

    def message(self, server: FedConcatServer, client_id: ClientId | None) -> FedConcatMessage:
        if client_id is None:
            return FedConcatMessage(server.head, None, None)
        return FedConcatMessage(
            server.head, server.members.get(client_id), server.label_shares.get(client_id)
        )

    def predict(
        self, client: Client, state: Tree, message: FedConcatMessage, examples: Examples
    ) -> Tensor:
        outputs = F.linear(self.features(client, examples), **message.head)
        return client.objective.predictions(outputs)

    def module(self, client: Client, state: Tree, message: FedConcatMessage) -> nn.Module:
        encoders = client.published(ENCODERS).values()
        wide = Wide((client.model.module(encoder, "encoder") for encoder in encoders), message.head)
        return PredictingNetwork(wide, client.objective.readout())

    def inspect(self, client: Client, state: Tree, message: FedConcatMessage) -> dict[str, Any]:
        facts: dict[str, Any] = {} if message.cluster is None else {"group": message.cluster}
        if message.label_shares is not None:
            facts["label_shares"] = message.label_shares.tolist()
        return facts

    def describe(self, server: FedConcatServer) -> dict[str, Any]:
        members = list(server.members.values())
        return {"cluster_sizes": [members.count(k) for k in sorted(set(members))]}

    def deployed(self, server: FedConcatServer) -> dict[str, Tensor]:
        """The parameters of the model with `width_copies` = K: K encoders side by side under one
        head.
        """
        wide = {f"head.{name}": value for name, value in server.head.items()}
        for number, params in enumerate(server.models.values()):
            own = {
                name.removeprefix("encoder."): value
                for name, value in params.items()
                if name.startswith("encoder.")
            }
            prefix = f"encoder.encoders.{number}." if len(server.models) > 1 else "encoder."
            wide |= {f"{prefix}{name}": value for name, value in own.items()}
        return wide


def _head_loss(client: Client, head: Params, batch: Batch) -> Tensor:
    outputs = F.linear(batch.x, **head)
    return weighted_loss(client.objective.losses(outputs, batch.y), batch)


def _head_of(params: Params, cohort: Cohort) -> Params:
    return {name.rpartition(".")[2]: params[name] for name in cohort.task.model.head_names}


def _mean_prediction(task: Task, params: Params, inputs: Tensor) -> Tensor:
    """(3): what a model says of inputs that say nothing."""
    parts = [
        task.objective.predictions(task.model.logits(params, part)).cpu().double().sum(0)
        for part in torch.split(inputs, INPUTS_PER_BATCH)
    ]
    return torch.stack(parts).sum(0) / len(inputs)


def _from_bias(cohort: Cohort, start: Params, params: Params, size: int) -> Tensor:
    """D.10: how the last layer's bias has moved, per step."""
    training: Training = cohort.training
    before, after = (_head_of(values, cohort)["bias"].double() for values in (start, params))
    steps = training.epochs * batches_per_epoch(size, training.batch_size, cohort.task.model)
    moved = (after - before) / (steps * training.rate(cohort.round))
    shares = (before.softmax(-1) + moved).clamp_min(0)
    return shares / shares.sum().clamp_min(1e-12)
