"""FedDual: a shared and a private encoder side by side under a shared head, trained together.

Partial personalisation with simultaneous updates: Pillutla, Malik, Mohamed, Rabbat, Sanjabi, Xiao:
Federated Learning with Partial Model Personalization, ICML 2022; under this name in the FedVC
paper. Departures: that the head is shared and stands on both encoders' features is our reading. A
client that was not in training fits a private encoder for one epoch.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar, cast

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
    personal: ClassVar[bool] = True
    adapts: ClassVar[str] = "its private encoder"

    def network(self, module: nn.Module, num_classes: int) -> nn.Module:
        return Dual(module)

    def init_server(self, task: Task, seed: int) -> Params:
        return {
            name: value
            for name, value in task.model.init(seed).items()
            if not name.startswith(PRIVATE)
        }

    def init_client(self, client: Client, message: Params) -> Tree:
        return {"private": _private(client.model.init(client.seed))}

    @client_step
    def train(self, client: Client, state: Tree, message: Params) -> tuple[Tree, Tree]:
        trained = client.fit({**message, **state["private"]})
        shared = tree.subset(trained, message)
        return {"private": _private(trained)}, Mean(shared, client.size, around=message)

    def round(self, server: Params, cohort: Cohort) -> Tree:
        return cohort.sum(self.train, broadcast=server).mean(otherwise=server)

    def adapt(self, client: Client, state: Tree, message: Params, *, new: bool) -> Tree:
        if client.has_state:
            return state
        whole = {**message, **state["private"]}
        fitted = client.fit(whole, only=_private(whole), epochs=1, purpose="adapt")
        return {"private": _private(fitted)}

    def parameters(self, client: Client, state: Tree, message: Params) -> Params:
        return {**message, **state["private"]}


def _private(params: Params) -> Params:
    return {name: value for name, value in params.items() if name.startswith(PRIVATE)}
