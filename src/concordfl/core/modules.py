"""What a client predicts with, as modules of their own: they need nothing of ours when called."""

from typing import cast

from torch import Tensor, nn


class PredictingNetwork(nn.Module):
    """A network and what its outputs stand for, such as class probabilities (N, Y)."""

    def __init__(self, network: nn.Module, readout: nn.Module) -> None:
        super().__init__()
        self.network, self.readout = network, readout

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.readout(self.network(inputs)))


class FirstOutputs(nn.Module):
    """The first outputs of a network: (N,) where it is one, else (N, count)."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def forward(self, outputs: Tensor) -> Tensor:
        return outputs[:, 0] if self.count == 1 else outputs[:, : self.count]
