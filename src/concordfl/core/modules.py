"""What a client predicts with, as modules of their own: they need nothing of ours when called."""

from typing import cast

from torch import Tensor, nn


class Classifier(nn.Module):
    """A network and what its outputs stand for: (N, Y) class probabilities of its inputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.network(inputs)).softmax(-1)
