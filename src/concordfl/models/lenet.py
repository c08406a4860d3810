"""The simple CNN of the label-skew literature, of LeNet-5's shape."""

from torch import nn

from .parts import Network, after_two_convolutions, image_shape


def lenet(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """The simple CNN of the label-skew literature: 44,426 parameters at 28x28 with ten classes."""
    channels, height, width = image_shape("lenet", input_shape, smallest=16)
    flat = 16 * after_two_convolutions(height) * after_two_convolutions(width)
    encoder = nn.Sequential(
        nn.Conv2d(channels, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    )
    return Network(encoder, nn.Linear(84, num_classes))
