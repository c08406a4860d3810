"""LEAF's CNN for FEMNIST (Caldas et al. 2018): two padded 5x5 convolutions, 2,048 hidden units."""

from torch import nn

from .parts import Network, image_shape


def femnist_cnn(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """LEAF's CNN for FEMNIST: 6.6 million parameters at 28x28 with 62 classes."""
    channels, height, width = image_shape("femnist_cnn", input_shape, smallest=8)
    encoder = nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 2048),
        nn.ReLU(),
    )
    return Network(encoder, nn.Linear(2048, num_classes))
