"""Networks for tabular data and small images."""

import itertools
import math

from torch import nn

from .parts import Network


def linear(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """Logistic regression: the encoder only flattens."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), num_classes))


def mlp(
    input_shape: tuple[int, ...], num_classes: int, hidden: tuple[int, ...] | list[int] = (64,)
) -> Network:
    """Fully connected layers of the widths in `hidden`, ReLU between them."""
    layers: list[nn.Module] = [nn.Flatten()]
    for width_in, width_out in itertools.pairwise([math.prod(input_shape), *hidden]):
        layers += [nn.Linear(width_in, width_out), nn.ReLU()]
    return Network(
        nn.Sequential(*layers), nn.Linear([math.prod(input_shape), *hidden][-1], num_classes)
    )
