"""The common corruptions of images by name (Hendrycks and Dietterich 2019)."""

from typing import Literal

import numpy as np

from .cifar_c import CIFAR_C, Corruption
from .image_filters import to_bytes
from .imagenet_c import IMAGENET_C

Strength = Literal["cifar-c", "imagenet-c"]

STRENGTHS: dict[Strength, dict[str, Corruption]] = {"cifar-c": CIFAR_C, "imagenet-c": IMAGENET_C}
CORRUPTIONS = tuple(CIFAR_C)


def corrupt(
    images: np.ndarray,
    name: str,
    severity: int,
    rng: np.random.Generator,
    strength: Strength = "cifar-c",
) -> np.ndarray:
    """uint8 images (N, H, W, C) in and out; the same generator gives the same bytes."""
    if not len(images):
        return images
    change, strengths = STRENGTHS[strength][name]
    return to_bytes(change(images / 255.0, strengths[severity - 1], rng))
