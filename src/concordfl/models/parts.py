"""What the networks have in common."""

from typing import cast

from torch import Tensor, nn

from ..core import SettingError


class Network(nn.Module):
    """An encoder and a linear head."""

    def __init__(self, encoder: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.encoder(inputs)))


def image_shape(name: str, input_shape: tuple[int, ...], smallest: int) -> tuple[int, int, int]:
    """(C, H, W), after making sure that the network can take such images."""
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise SettingError(
            f"model {name!r} takes images of at least {smallest}x{smallest}, got examples of shape {input_shape}"
        )
    return input_shape


def after_two_convolutions(size: int) -> int:
    """The side of an image after two 5x5 convolutions without padding, each followed by a halving."""
    return ((size - 4) // 2 - 4) // 2
