"""K linear heads on one encoder: what a method with a head for every concept computes with.

Shapes: N examples, K heads, Y classes. Heads stand one above the other in the last layer.
"""

from typing import cast

import torch
from torch import Tensor, nn

from ..core import Client, Model, Params, encoder_and_head
from .mixture import average

START_SPREAD = 0.3  # of heads around the first, relative to how they would begin by themselves
MIN_LABEL_SHARE = 0.03  # of a label among a head's examples: below, the head has not learnt it
MIN_HIT_RATE = 0.6  # of a head on its own examples, before what it says of others means anything
MIN_COMMON = 20.0  # examples with labels that both heads have learnt, to compare them


class ManyHeads(nn.Module):
    """A network with K heads in one layer; by itself it gives the outputs of the first."""

    def __init__(self, module: nn.Module, count: int, method: str) -> None:
        super().__init__()
        self.encoder, first = encoder_and_head(module, method)
        self.num_outputs = first.out_features
        has_bias = first.bias is not None
        self.head = nn.Linear(first.in_features, count * self.num_outputs, bias=has_bias)
        with torch.no_grad():  # all heads begin near FedAvg's, the first where it does
            for own, given in zip(self.head.parameters(), first.parameters(), strict=True):
                own[: self.num_outputs] = 0
                own.mul_(START_SPREAD).add_(torch.cat([given] * count))

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encoder(inputs)))[:, : self.num_outputs]


class HeadMixture(nn.Module):
    """Σ_k ω_k times what head k predicts, with `offsets` (Y,) beside its outputs, of inputs."""

    def __init__(
        self, network: ManyHeads, readout: nn.Module, omega: Tensor, offsets: Tensor
    ) -> None:
        super().__init__()
        self.network, self.readout = network, readout
        self.omega, self.offsets = nn.Buffer(omega.double()), nn.Buffer(offsets)

    def forward(self, inputs: Tensor) -> Tensor:
        stacked = self.network.head(self.network.encoder(inputs))
        outputs = stacked.view(len(stacked), len(self.omega), -1) + self.offsets
        return average(list(self.readout(outputs).unbind(1)), self.omega)


def outputs(client: Client, count: int, params: Params, inputs: Tensor) -> Tensor:
    """(N, K, Y) of every head."""
    return of_features(client, count, params, client.model.features(params, inputs))


def of_features(client: Client, count: int, params: Params, features: Tensor) -> Tensor:
    """(N, K, Y) of every head, from what the encoder gives."""
    stacked = client.model.call(params, features, part="head")
    return stacked.view(len(stacked), count, -1)


def losses(client: Client, outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, K) of every example under every head, from outputs (N, K, Y)."""
    repeated = labels.repeat_interleave(outputs.shape[1])
    return client.objective.losses(outputs.flatten(0, 1), repeated).view(len(labels), -1)


def rows(model: Model, params: Params, count: int) -> list[Params]:
    """The last layer in `count` equal parts: its K heads, or the rows of K Y classes."""
    parts = {name: params[name].chunk(count) for name in model.head_names}
    return [{name: parts[name][at] for name in parts} for at in range(count)]


def join(rows: list[Params]) -> Params:
    """The last layer that its parts make."""
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}


def hits(outputs: Tensor, labels: Tensor, omega: Tensor) -> Tensor:
    """(K, K, Y) of the examples with a label that are with head k, how many head j gets right."""
    right = (outputs.argmax(2) == labels[:, None]).double()
    by_label = torch.zeros((outputs.shape[2], len(omega)), dtype=torch.float64)
    return torch.einsum("k,yj->kjy", omega, by_label.index_add_(0, labels, right))


def likeness(hits: Tensor, table: Tensor) -> Tensor:
    """(K, K) how well heads do on each other's examples, compared with the heads that these are
    with, for the worse of two; 0 where they have learnt too little, or too little in common.

    Only labels that both have learnt count: heads of one concept may know different labels.
    """
    learnt = table > MIN_LABEL_SHARE * table.sum(1, keepdim=True)
    common = (learnt[:, None] & learnt[None]).double()  # (K, K, Y)
    examples = torch.einsum("ky,kjy->kj", table, common)
    own = torch.einsum("kky,kjy->kj", hits, common)
    other = (hits * common).sum(2)
    comparable = (examples >= MIN_COMMON) & (own >= MIN_HIT_RATE * examples)
    ratio = torch.where(comparable, other / own.clamp_min(1), 0.0)
    return torch.minimum(ratio, ratio.T).fill_diagonal_(0)
