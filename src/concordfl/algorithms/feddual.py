"""FedDual: a shared and a private encoder side by side under a shared head, trained together.

Partial personalisation with simultaneous updates: Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao:
Federated Learning with Partial Model Personalization, ICML 2022; under this name in the FedVC
paper. Departures: that the head is shared and stands on both encoders' features is our reading; the
average is by number of examples, where the paper's algorithms count clients alike. A client that
was not in training fits a private encoder under the shared parts: from the initial one, or, if the
participants' are averaged (`new_start`), from their average. The papers do not say how it gets one.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from ..core import (
    ANY_KIND,
    About,
    Algorithm,
    Client,
    Cohort,
    Mean,
    Params,
    Repeats,
    SettingError,
    Task,
    Tree,
    client_step,
    encoder_and_head,
    tree,
)

PRIVATE = "private."


class Dual(nn.Module):
    """Two encoders of one shape, their features concatenated under one head."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.encoder, head = encoder_and_head(module, "feddual")
        if not list(self.encoder.parameters()):
            raise SettingError(
                "feddual needs a model whose encoder has parameters, got one without"
            )
        self.private = copy.deepcopy(self.encoder)
        for layer in self.private.modules():
            if callable(reset := getattr(layer, "reset_parameters", None)):
                reset()
        self.head = nn.Linear(2 * head.in_features, head.out_features, bias=head.bias is not None)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(
            Tensor, self.head(torch.cat([self.encoder(inputs), self.private(inputs)], dim=1))
        )


@dataclass(frozen=True)
class FedDual(Algorithm):
    about = About(
        "FedDual",
        "Pillutla et al.",
        2022,
        travels="an encoder and the head",
        private="data, an encoder",
        cost="2",
    )
    supports = ANY_KIND
    vectorizes: ClassVar[bool] = True
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its private encoder"

    new_epochs: Repeats = 10  # of a new client's private encoder
    # of that encoder; the average means that participants' encoders travel, into a sum
    new_start: Literal["initial", "average"] = "initial"

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        return Dual(module)

    def init_server(self, task: Task, seed: int) -> Params:
        start = task.model.init(seed)
        return start if self.new_start == "average" else _shared(start)

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"private": _private({**client.model.init(client.seed), **message})}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        start = {**message, **state["private"]}
        trained = client.fit(start)
        sent = start if self.new_start == "average" else message
        return {"private": _private(trained)}, Mean(
            tree.subset(trained, sent), client.size, around=sent
        )

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=_shared(server)).mean(otherwise=server)

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        if client.has_state:
            return state
        whole = {**message, **state["private"]}
        fitted = client.fit(whole, only=_private(whole), epochs=self.new_epochs, purpose="adapt")
        return {"private": _private(fitted)}

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        return {**message, **state["private"]}


def _shared(params: Params) -> Params:
    return {name: value for name, value in params.items() if not name.startswith(PRIVATE)}


def _private(params: Params) -> Params:
    return {name: value for name, value in params.items() if name.startswith(PRIVATE)}
