"""CNNs for FEMNIST: LEAF's (Caldas et al. 2018), with two padded 5x5 convolutions and 2,048 hidden
units; and that of Reddi et al. (2020), which FedGMM takes, with two 3x3 convolutions, drop-out and
128 hidden units.
"""

from typing import Literal

from torch import nn

from .parts import Network, image_shape


def femnist_cnn(
    input_shape: tuple[int, ...], num_classes: int, variant: Literal["leaf", "reddi"] = "leaf"
) -> Network:
    """CNNs for FEMNIST, at 28x28 with 62 classes: LEAF's, 6.6 million parameters, or with
    `variant = "reddi"` that of Reddi et al. with drop-out, 1.2 million.
    """
    channels, height, width = image_shape("femnist_cnn", input_shape, smallest=8)
    if variant == "reddi":
        return _with_dropout(channels, height, width, num_classes)
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


def _with_dropout(channels: int, height: int, width: int, num_classes: int) -> Network:
    encoder = nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
        nn.ReLU(),
        nn.Dropout(0.5),
    )
    return Network(encoder, nn.Linear(128, num_classes))
