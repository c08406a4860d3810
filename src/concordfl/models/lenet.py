"""The simple CNN of the label-skew literature, of LeNet-5's shape."""

from torch import nn

from .parts import Network, after_two_convolutions, image_shape


def lenet(input_shape: tuple[int, ...], num_classes: int, batch_norm: bool = False) -> Network:
    """The simple CNN of the label-skew literature: 44,426 parameters at 28x28 with ten classes;
    `batch_norm` normalises.
    """
    channels, height, width = image_shape("lenet", input_shape, smallest=16)
    flat = 16 * after_two_convolutions(height) * after_two_convolutions(width)
    layers = [
        nn.Conv2d(channels, 6, 5),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(flat, 120),
        nn.BatchNorm1d(120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
    ]
    kept = [
        layer
        for layer in layers
        if batch_norm or not isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d))
    ]
    return Network(nn.Sequential(*kept), nn.Linear(84, num_classes))
