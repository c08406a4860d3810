"""VGG-9 (Simonyan and Zisserman 2015, cut down for CIFAR): six convolutions, three dense."""

from torch import nn

from .parts import Network, image_shape


def vgg9(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """VGG-9 for CIFAR-sized images: 3.5 million parameters at 32x32 with ten classes."""
    channels, height, width = image_shape("vgg9", input_shape, smallest=16)
    layers: list[nn.Module] = []
    for width_out, depth in ((32, 1), (64, 1), (128, 2), (256, 2)):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width_out, 3, padding=1), nn.ReLU()]
            channels = width_out
        if width_out != 32:
            layers.append(nn.MaxPool2d(2))
    flat = 256 * (height // 8) * (width // 8)
    layers += [nn.Flatten(), nn.Linear(flat, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(512, num_classes))
