"""Networks for tabular data and small images."""

import itertools
import math
from typing import Annotated

from annotated_types import MaxLen
from torch import nn

from ..core import Width
from .parts import Network

MAX_LAYERS = 100


def linear(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """Logistic regression: the encoder only flattens."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(
    input_shape: tuple[int, ...],
    num_classes: int,
    hidden: Annotated[tuple[Width, ...], MaxLen(MAX_LAYERS)] = (64,),
) -> Network:
    """Fully connected layers of the widths in `hidden`, ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [math.prod(input_shape), *hidden]
    for width_in, width_out in itertools.pairwise(widths):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(widths[-1], num_classes))
