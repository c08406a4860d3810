"""Factories that do not give what they should."""

from torch import nn


def narrow(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes - 1))


def narrow_enough(input_shape, num_classes):
    """The one that does."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))


def not_a_module(input_shape, num_classes):
    return 5


SEEN: list[int] = []  # how many examples the counting encoder was given


class CountingEncoder(nn.Module):
    def forward(self, x):
        SEEN.append(len(x))
        return x[:, :3] * 2


def counting_encoder():
    return CountingEncoder()


def no_encoder():
    return 5


def linear(input_shape, num_classes):
    return nn.Linear(input_shape[0], num_classes)


def small_conv(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """For images of 8x8."""
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, num_classes))
