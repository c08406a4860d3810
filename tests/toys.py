"""Small problems and methods for the tests.

Imported by worker processes too, so it must be a module of its own.
"""

import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from concordfl import (
    About,
    Aggregation,
    Algorithm,
    Client,
    Cohort,
    Examples,
    Mean,
    Model,
    Stage,
    Task,
    Total,
    Training,
    client_step,
    tree,
)
from concordfl.algorithms import ALGORITHMS
from concordfl.core import Classification, Settings
from concordfl.data import Arrays, Federation
from concordfl.engine.client_states import DiskStates, MemoryStates
from concordfl.engine.executors import Executor, Processes, Serial, Vectorized
from concordfl.engine.experiment import Experiment
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
from concordfl.engine.roster import Roster
from concordfl.engine.setup import Setup
from concordfl.models import make_builder

SKIPPING = ("fedem", "fedconceptem", "fedgmm", "fedsoft")  # methods with `skip_below`
TRAINING = Training(lr=0.1, momentum=0.9, batch_size=8, epochs=1)


def federation(
    clients: int = 6, examples: int = 20, features: int = 5, classes: int = 3, seed: int = 0
) -> Federation:
    """Separable classes, drawn at random; two thirds train, the rest in equal parts validation and
    test.
    """
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(classes, features))

    def draw(count: int) -> Arrays:
        y = rng.integers(classes, size=count)
        return Arrays((centres[y] + rng.normal(size=(count, features))).astype(np.float32), y)

    participants = {
        f"client-{i}": (draw(examples + i), draw(examples // 2), draw(examples // 2))
        for i in range(clients)
    }
    groups = {id: {"concept": str(place % 2)} for place, id in enumerate(participants)}
    return Federation.build(
        participants, {"held-out": (draw(10), draw(0), draw(30))}, classes, groups
    )


def image_federation(clients: int = 5, examples: int = 24) -> Federation:
    """Random images of 28x28: for what depends on convolutions and memory layout."""
    rng = np.random.default_rng(0)

    def draw(count: int) -> Arrays:
        return Arrays(
            rng.integers(256, size=(count, 28, 28, 1), dtype=np.uint8), rng.integers(10, size=count)
        )

    return Federation.build(
        {f"client-{i}": (draw(examples), draw(4), draw(4)) for i in range(clients)}, {}, 10
    )


def all_methods() -> dict[str, Algorithm]:
    """Every registered method, with a short schedule where the paper's is long for a toy."""
    short = {"clusters": 2, "encoder_rounds": 3, "head_rounds": 4, "random_inputs": 50}
    methods = {
        name: kind(**short) if name.startswith("fedconcat") else kind()
        for name, kind in ALGORITHMS.items()
    }
    return methods | {"cfl": ALGORITHMS["cfl"](warm_up=0, stopped=100.0, pulling=0.001)}


def other_readings() -> dict[str, Algorithm]:
    """Methods with settings under which another network is trained and clients keep more, under
    which rounds ask for more, or clients skip models: after two rounds, those of less than a third.
    """
    settings = {"projection": "through", "projection_layers": 1, "moving_averages": "kept"}
    through = {f"{name}-through": ALGORITHMS[name](**settings) for name in ("fedvc", "fedvc-sg")}
    skips = {"skip_below": 0.33, "recheck_every": 2}
    dense = {"concord-density": ALGORITHMS["concord"](density=True)}
    return through | dense | {f"{name}-skips": ALGORITHMS[name](**skips) for name in SKIPPING}


def model_for(algorithm: Algorithm, data: Federation, name: str = "mlp", **options: Any) -> Model:
    build = make_builder(name, data.input_shape, data.num_classes, options)
    return Model(build, partial(algorithm.network, num_classes=data.num_classes))


def make_executor(
    name: str,
    setup: Setup,
    data: Federation,
    plan: Plan | None = None,
    folder: RunFolder | None = None,
    workers: int = 2,
) -> Executor:
    plan = Plan() if plan is None else plan
    if folder is None or plan.client_states == "memory":
        states = MemoryStates()
    else:
        folder.checkpoints.mkdir(exist_ok=True)
        states = DiskStates(folder.checkpoints)
    if name == "serial":
        return Serial(setup, data, states, plan.noise_seed)
    if name == "vectorized":
        return Vectorized(setup, data, states, plan.noise_seed)
    if name == "ray":
        from concordfl.engine.executors.ray import Ray

        return Ray(setup, data, plan.noise_seed, workers=workers)
    return Processes(setup, data, states, plan.noise_seed, workers=workers)


def make_setup(
    algorithm: Algorithm,
    data: Federation,
    plan: Plan | None = None,
    training: Training = TRAINING,
    network: str = "mlp",
    aggregation: Aggregation | None = None,
) -> Setup:
    plan = Plan() if plan is None else plan
    model = model_for(algorithm, data, network, **({"hidden": [8]} if network == "mlp" else {}))
    return Setup(
        algorithm,
        model,
        training,
        Classification(data.num_classes),
        plan.seed,
        Aggregation() if aggregation is None else aggregation,
        plan.on_error,
    )


def experiment(
    algorithm: Algorithm,
    data: Federation | None = None,
    *,
    plan: Plan | None = None,
    training: Training = TRAINING,
    executor: str = "serial",
    workers: int = 2,
    folder: RunFolder | None = None,
    network: str = "mlp",
    aggregation: Aggregation | None = None,
) -> Experiment:
    data = federation() if data is None else data
    if algorithm.pools_data:
        data = data.with_pooled_client()
    plan = Plan(rounds=4, evaluate_every=2, noise_seed=0) if plan is None else plan
    setup = make_setup(algorithm, data, plan, training, network, aggregation)
    made = make_executor(executor, setup, data, plan, folder, workers)
    experiment = Experiment(setup, Roster.from_federation(data, setup), plan, made, folder)
    experiment.federation = data  # for the tests: the experiment itself never sees it
    return experiment


def result(made: Experiment) -> dict[str, Any]:
    """Run to the end and close: the summary."""
    try:
        return made.summary(made.run(made.restore()))
    finally:
        made.executor.close()


def state(made: Experiment, id: str) -> Any:
    """A client's committed state."""
    return tree.unpack(made.executor.states.get(id))


def rows(made: Experiment) -> dict[str, dict[str, Any]]:
    """What the last evaluated round says of every client."""
    return made.client_rows[made.records[-1]["round"]]


def sent(reply: Any) -> Any:
    """A step's reply as it travels to be added, without options."""
    return Aggregation().outgoing(reply, "total")


def digests(made: Experiment) -> tuple[str, str]:
    summary = result(made)
    return summary["parameters_sha256"], summary["states_sha256"]


def client(
    examples: Examples, model: Model, training: Training = TRAINING, classes: int = 3, **more: Any
) -> Client:
    return Client(
        "a",
        examples,
        objective=Classification(classes),
        model=model,
        training=training,
        **{"seed": 0, "round": 0} | more,
    )


@dataclass(frozen=True)
class Toy(Algorithm):
    """All of the contract in one method: two stages, two steps a round, private state, a
    publication and a memo.
    """

    about = About(
        "Toy", "-", 0, travels="the model, label counts", private="data, visits", cost="1"
    )

    survey_rounds: int = 1

    def init_server(self, task: Task, seed: int) -> Any:
        return {"params": task.model.init(seed), "clusters": {}}

    def init_client(self, client: Client, message: Any) -> Any:
        return {"visits": torch.zeros(1), "noise": client.random("start").normal((2,))}

    def stages(self, rounds: int, model: Model) -> tuple[Stage, ...]:
        return (
            Stage("survey", self.survey, rounds=self.survey_rounds, everyone=True),
            Stage("train", self.round),
        )

    @client_step
    def count(self, client: Client, state: Any, message: Any) -> tuple[Any, Any]:
        return {**state, "visits": state["visits"] + 1}, Total(client.label_counts())

    @client_step
    def train(self, client: Client, state: Any, message: Any) -> tuple[Any, Any]:
        prior = client.published("prior")
        weight = client.examples.cached(
            "weight", lambda: (1 / prior["counts"])[client.examples.y] * prior["counts"].sum()
        )
        state = {
            "visits": state["visits"] * 2,
            "noise": state["noise"] + client.random("noise").normal((2,)),
        }
        params = client.fit(message, weight=weight.float() / client.num_classes)
        return state, {
            client.size % 2: Mean(params, client.size, around=message),
            "all": Mean(params, client.size, around=message),
        }

    def survey(self, server: Any, cohort: Cohort) -> Any:
        cohort.publish("prior", {"counts": 1 + cohort.sum(self.count, broadcast=None)})
        return server

    def round(self, server: Any, cohort: Cohort) -> Any:
        counts = cohort.run(self.count, each={id: {"round": cohort.round} for id in cohort.ids})
        total = cohort.sum(self.train, broadcast=server["params"])
        clusters = {key: value.mean() for key, value in total.items() if key != "all"}
        assert set(counts) >= set(cohort.ids)
        return {
            "params": total["all"].mean(otherwise=server["params"]),
            "clusters": {**server["clusters"], **clusters},
        }

    def message(self, server: Any, client_id: str | None) -> Any:
        return server["params"]

    def predict(self, client: Client, state: Any, message: Any, examples: Examples) -> Tensor:
        return client.predictions(message, examples)

    def inspect(self, client: Client, state: Any, message: Any) -> dict[str, Any]:
        return {"group": client.size % 2, "visits": state["visits"]}


@dataclass(frozen=True)
class Slow(Toy):
    """Toy whose training takes its time, and whose clients keep more than a message holds."""

    seconds: float = 0.3

    @client_step
    def train(self, client: Client, state: Any, message: Any) -> tuple[Any, Any]:
        time.sleep(self.seconds)
        after, reply = super().train(client, state, message)
        return {**after, "large": after["noise"].repeat(100_000)}, reply


@dataclass(frozen=True)
class Faulty(Toy):
    """Toy whose training fails at one client, in a way that `how` names."""

    how: str = "raise"
    who: str = "client-2"
    marker: str = ""

    @client_step
    def train(self, client: Client, state: Any, message: Any) -> tuple[Any, Any]:
        if client.id != self.who:
            return super().train(client, state, message)
        if self.how == "raise" or (self.how == "raise once" and not Path(self.marker).exists()):
            Path(self.marker or "/dev/null").touch()
            raise ValueError("bad luck")
        if self.how == "die" or (self.how == "die once" and not Path(self.marker).exists()):
            Path(self.marker or "/dev/null").touch()
            import os

            os._exit(9)
        after, reply = super().train(client, state, message)
        if self.how == "nan":
            return after, {key: replace(mean, weight=float("nan")) for key, mean in reply.items()}
        return after, reply


class BatchNormNet(nn.Module):
    """A network with buffers, a residual branch and drop-out."""

    def __init__(self, features: int = 5, classes: int = 3) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(features, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2)
        )
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def batch_norm_net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return BatchNormNet(input_shape[0], num_classes)


class Whitening(nn.Module):
    """A network whose encoder has running statistics and nothing to train."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = nn.BatchNorm1d(features, affine=False)
        self.head = nn.Linear(features, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def whitening_net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Whitening(input_shape[0], num_classes)


class Unbiased(nn.Module):
    """A network whose head has no bias."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(features, 6), nn.ReLU())
        self.head = nn.Linear(6, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def unbiased_net(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Unbiased(input_shape[0], num_classes)


@dataclass(frozen=True)
class Nested(Settings):
    number: int = 1
