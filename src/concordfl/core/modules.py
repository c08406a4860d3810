"""What a client predicts with, as modules of their own: they need nothing of ours when called."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn


class PredictingNetwork(nn.Module):
    """A network and what its outputs stand for, such as class probabilities (N, Y)."""

    def __init__(self, network: nn.Module, readout: nn.Module) -> None:
        super().__init__()
        self.network, self.readout = network, readout

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.readout(self.network(inputs)))


class Rescaled(nn.Module):
    """Standardised values in their own unit, as doubles."""

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.mean = nn.Buffer(torch.tensor(mean, dtype=torch.float64))
        self.deviation = nn.Buffer(torch.tensor(deviation, dtype=torch.float64))

    def forward(self, values: Tensor) -> Tensor:
        return values.double() * self.deviation + self.mean


class FirstOutputs(nn.Module):
    """The first outputs of a network: (N,) where it is one, else (N, count)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0] if self.count == 1 else outputs[:, : self.count]
