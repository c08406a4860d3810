"""What the networks have in common."""

from collections.abc import Iterable
from typing import cast

import torch
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
            f"model {name!r} takes images of at least {smallest}x{smallest}, got examples of shape "
            f"{input_shape}"
        )
    return input_shape


def after_two_convolutions(size: int) -> int:
    """The side of an image after two 5x5 convolutions without padding, each then halved."""
    return ((size - 4) // 2 - 4) // 2


class SideBySide(nn.Module):
    """Several encoders on the same input, their features concatenated."""

    def __init__(self, encoders: Iterable[nn.Module]) -> None:
        super().__init__()
        self.encoders = nn.ModuleList(encoders)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([encoder(inputs) for encoder in self.encoders], dim=1)


def widened(copies: list[nn.Module]) -> Network:
    """One network as wide as all `copies` together: their encoders side by side under one linear
    head.
    """
    heads = [copy.head for copy in copies if isinstance(copy, Network)]
    if len(heads) != len(copies):
        raise SettingError(
            "model.width_copies needs a model with an encoder and a head, got "
            f"{type(copies[0]).__name__}"
        )
    head = nn.Linear(sum(head.in_features for head in heads), heads[0].out_features)
    return Network(SideBySide(copy.encoder for copy in copies if isinstance(copy, Network)), head)
