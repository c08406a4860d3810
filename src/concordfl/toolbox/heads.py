"""K linear heads on one encoder: what a method with a head for every concept computes with.

Shapes: N examples, K heads, Y classes. Heads stand one above the other in the last layer.
"""

from typing import cast

import torch
from torch import Tensor, nn

from ..core import Client, Params, encoder_and_head
from .mixture import MIN_WEIGHT, average


class ManyHeads(nn.Module):
    """A network with K heads in one layer; by itself it gives the outputs of the first."""

    def __init__(self, module: nn.Module, count: int, method: str) -> None:
        super().__init__()
        self.encoder, first = encoder_and_head(module, method)
        self.num_outputs = first.out_features
        has_bias = first.bias is not None
        self.head = nn.Linear(first.in_features, count * self.num_outputs, bias=has_bias)
        with torch.no_grad():  # all heads begin where FedAvg's does
            for own, given in zip(self.head.parameters(), first.parameters(), strict=True):
                own.copy_(torch.cat([given] * count))

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
        return average(list(self.readout(outputs).unbind(1)), self.weights(inputs))

    def weights(self, inputs: Tensor) -> Tensor:
        """(K,) or (N, K)."""
        return self.omega


class GatedHeads(HeadMixture):
    """The same with ω_k times how likely an input is under Gaussian k; `density` gives the logs."""

    def __init__(
        self,
        network: ManyHeads,
        readout: nn.Module,
        omega: Tensor,
        offsets: Tensor,
        density: nn.Module,
    ) -> None:
        super().__init__(network, readout, omega, offsets)
        self.density = density

    def weights(self, inputs: Tensor) -> Tensor:
        logs: Tensor = self.density(inputs) + self.omega.clamp_min(MIN_WEIGHT).log()
        return logs.softmax(1)


def outputs(client: Client, count: int, params: Params, inputs: Tensor) -> Tensor:
    """(N, K, Y) of every head."""
    return of_features(client, count, params, client.model.features(params, inputs))


def of_features(client: Client, count: int, params: Params, features: Tensor) -> Tensor:
    """(N, K, Y) of every head, from what the encoder gives."""
    stacked = client.model.call(params, features, part="head")
    return stacked.view(len(stacked), count, stacked.shape[1] // count)


def losses(client: Client, outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, K) of every example under every head, from outputs (N, K, Y)."""
    repeated = labels.repeat_interleave(outputs.shape[1])
    return client.objective.losses(outputs.flatten(0, 1), repeated).view(outputs.shape[:2])
