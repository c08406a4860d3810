"""MobileNet-V2 (Sandler et al. 2018) for CIFAR-sized images: strides of the first layers are 1."""

from typing import cast

from torch import Tensor, nn

from .parts import Network, image_shape

# expansion, width, depth, stride
PLAN = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to what came in where the shape stays the same."""

    def __init__(self, width_in: int, width_out: int, expansion: int, stride: int) -> None:
        super().__init__()
        wide = width_in * expansion
        widen = (
            [nn.Conv2d(width_in, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
            if expansion > 1
            else []
        )
        self.branch = nn.Sequential(
            *widen,
            nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU6(),
            nn.Conv2d(wide, width_out, 1, bias=False),
            nn.BatchNorm2d(width_out),
        )
        self.keeps_shape = stride == 1 and width_in == width_out

    def forward(self, x: Tensor) -> Tensor:
        out = cast(Tensor, self.branch(x))
        return x + out if self.keeps_shape else out


def mobilenet_v2(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """MobileNet-V2 for CIFAR-sized images: 2.24 million parameters with ten classes."""
    channels, _, _ = image_shape("mobilenet_v2", input_shape, smallest=16)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 32, 3, padding=1, bias=False),
        nn.BatchNorm2d(32),
        nn.ReLU6(),
    ]
    width_in = 32
    for expansion, width, depth, stride in PLAN:
        for index in range(depth):
            layers.append(InvertedResidual(width_in, width, expansion, stride if index == 0 else 1))
            width_in = width
    layers += [
        nn.Conv2d(width_in, 1280, 1, bias=False),
        nn.BatchNorm2d(1280),
        nn.ReLU6(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ]
    return Network(nn.Sequential(*layers), nn.Linear(1280, num_classes))
