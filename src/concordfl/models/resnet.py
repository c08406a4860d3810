"""ResNet-18 and ResNet-50 (He et al. 2016) for CIFAR-sized images: a 3x3 first layer, unpooled."""

from typing import cast

from torch import Tensor, nn

from .parts import Network, image_shape


class Block(nn.Module):
    """A residual block: what the branch computes is added to what came in."""

    def __init__(self, branch: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut, self.last = branch, shortcut, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.last(self.branch(x) + self.shortcut(x)))


def resnet18(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """ResNet-18 for CIFAR-sized images: 11.2 million parameters with ten classes."""
    return _resnet("resnet18", input_shape, num_classes, depths=(2, 2, 2, 2), expansion=1)


def resnet50(input_shape: tuple[int, ...], num_classes: int) -> Network:
    """ResNet-50 for CIFAR-sized images: 23.5 million parameters with ten classes."""
    return _resnet("resnet50", input_shape, num_classes, depths=(3, 4, 6, 3), expansion=4)


def _resnet(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    depths: tuple[int, ...],
    expansion: int,
) -> Network:
    channels, _, _ = image_shape(name, input_shape, smallest=16)
    layers: list[nn.Module] = [
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    width_in = 64
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for index in range(depth):
            layers.append(
                _block(width_in, width, expansion, stride=2 if stage and not index else 1)
            )
            width_in = width * expansion
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return Network(nn.Sequential(*layers), nn.Linear(width_in, num_classes))


def _block(width_in: int, width: int, expansion: int, stride: int) -> Block:
    width_out = width * expansion
    # Two 3x3 convolutions, or a bottleneck of 1x1, 3x3, 1x1.
    plan = (
        [(width, 3, stride), (width, 3, 1)]
        if expansion == 1
        else [(width, 1, 1), (width, 3, stride), (width_out, 1, 1)]
    )
    parts: list[nn.Module] = []
    channels = width_in
    for filters, kernel, step in plan:
        parts += [
            nn.Conv2d(channels, filters, kernel, step, padding=kernel // 2, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(),
        ]
        channels = filters
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or width_in != width_out:
        shortcut = nn.Sequential(
            nn.Conv2d(width_in, width_out, 1, stride, bias=False), nn.BatchNorm2d(width_out)
        )
    return Block(nn.Sequential(*parts[:-1]), shortcut)
