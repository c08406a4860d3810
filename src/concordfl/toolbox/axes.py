"""What groups of clients are looked for in: the first principal axes of all inputs, and the
two halves of each client's examples.
"""

import math
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import Client, Examples, Key
from . import gaussian
from .class_heads import ClassSums, sums_by_class

FRAME = "frame"  # the name under which the coordinates are published
NUM_HALVES = 2
MAX_PIXELS = 200  # of all channels: larger images are shrunk before anything else
MOST_FEATURES = 1000  # of tables: what is sent first grows as the square of it
MIN_EXAMPLES_PER_DIMENSION = 10


def moments_of(client: Client) -> gaussian.Statistics:
    """Of a client's inputs, as they are before there are coordinates."""
    x = inputs_of(client, client.examples)
    ones = torch.ones(len(x), 1, dtype=torch.float64)
    no_shift = torch.zeros(x.shape[1], dtype=torch.float64)
    return gaussian.statistics(x, ones, no_shift, "full")


def inputs_of(client: Client, examples: Examples) -> Tensor:
    """(N, F) examples as numbers: large images shrunk to at most MAX_PIXELS, missing cells 0."""

    return client.over(examples, flat)


def flat(inputs: Tensor) -> Tensor:
    """(N, F) a network's inputs as numbers."""
    if inputs.ndim == 4:
        size = shrunk(*inputs.shape[1:])
        if size != tuple(inputs.shape[2:]):
            inputs = F.adaptive_avg_pool2d(inputs, size)
    return inputs.flatten(1).double().nan_to_num()


class Coordinates(nn.Module):
    """`features_of` as a module of a network's inputs."""

    def __init__(self, frame: gaussian.Frame) -> None:
        super().__init__()
        self.projection = gaussian.Projection(frame)

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.projection(flat(inputs)))


def are_found(input_shape: tuple[int, ...]) -> bool:
    """Whether examples are narrow enough for coordinates."""
    return num_features(input_shape) <= MOST_FEATURES


def num_features(input_shape: tuple[int, ...]) -> int:
    """Of an example as `inputs_of` gives it."""
    if len(input_shape) != 3:
        return math.prod(input_shape)
    channels, *size = input_shape
    return channels * math.prod(shrunk(channels, *size))


def shrunk(channels: int, height: int, width: int) -> tuple[int, int]:
    """Height and width at which an image has about MAX_PIXELS values."""
    factor = max(1.0, (channels * height * width / MAX_PIXELS) ** 0.5)
    return max(1, int(height / factor)), max(1, int(width / factor))


def axes_of(
    moments: gaussian.Statistics, dimensions: int, input_shape: tuple[int, ...]
) -> gaussian.Frame:
    """The coordinates: principal axes; of a table's columns after each is divided by its deviation.
    Directions in which nothing varies are left out.
    """
    unit = len(input_shape) == 1
    most = max(1, int(moments.mass[0]) // MIN_EXAMPLES_PER_DIMENSION)
    mean = moments.first[0] / moments.mass[0]
    covariance = moments.second[0] / moments.mass[0] - torch.outer(mean, mean)
    deviations = covariance.diagonal().clamp_min(0).sqrt()
    varies = deviations > 1e-6 * deviations.max()
    scale = varies / deviations.clamp_min(1e-12) if unit else varies.double()
    variances, axes = torch.linalg.eigh(scale[:, None] * covariance * scale)
    kept = variances > 1e-6 * variances.max()
    kept[-1] = True
    axes = (axes[:, kept] * scale[:, None]).flip(1)[:, : min(dimensions, most)]
    signs = axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return gaussian.Frame(mean, (axes * torch.where(signs == 0, 1.0, signs)).contiguous())


def features_of(client: Client, examples: Examples) -> Tensor:
    """(N, D) in the published coordinates, computed once per client."""

    def compute() -> Tensor:
        frame: gaussian.Frame = client.published(FRAME)
        return frame.project(inputs_of(client, examples))

    found: Tensor = examples.cached("features", compute)
    return found


def halves_of(client: Client) -> Tensor:
    """(N,) 0 or 1: two halves with as nearly the same labels as can be."""
    y = client.examples.y

    def deal() -> Tensor:
        key = Key(client.seed, "halves", client.id)
        order = key.permutation(len(y))
        order = order[y[order].argsort(stable=True)]
        half = torch.empty_like(y)
        half[order] = torch.arange(len(y)) % 2
        return half

    found: Tensor = client.examples.cached("halves", deal)
    return found


def sums_of_half(client: Client, own: int) -> ClassSums:
    """Moments by class of one half's features, `second` over all classes; computed once."""

    def compute() -> ClassSums:
        at = halves_of(client) == own
        x, y = features_of(client, client.examples)[at], client.examples.y[at]
        sums = sums_by_class(x, y, client.num_classes)
        return sums._replace(second=sums.second.sum(0))

    found: ClassSums = client.examples.cached(f"sums of half {own}", compute)
    return found
