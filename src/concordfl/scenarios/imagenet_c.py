"""The common corruptions about as strong as ImageNet-C has them, for images of 28 to 32 pixels.

ImageNet-C's strengths are meant for 224x224 images; on small ones they leave little to see. The
numbers here are near the published ones, not the same. Corruptions that are done as in CIFAR-10-C
differ in their strengths only.
"""

# mypy: disable-error-code="no-any-return"
import numpy as np

from . import cifar_c, image_filters
from .cifar_c import Corruption
from .image_filters import Images


def impulse_noise(x: Images, chance: float, rng: np.random.Generator) -> Images:
    """Whole pixels become black or white."""
    draw = rng.random((*x.shape[:3], 1))
    return np.where(draw < chance / 2, 0.0, np.where(draw > 1 - chance / 2, 1.0, x))


def defocus_blur(x: Images, radius: float, rng: np.random.Generator) -> Images:
    reach = int(np.ceil(radius))
    across = np.arange(-reach, reach + 1)
    # A disk with a soft rim.
    disk = np.clip(radius + 0.5 - np.hypot(across[:, None], across[None]), 0, 1)
    return image_filters.convolve(x, disk)


def motion_blur(x: Images, length: int, rng: np.random.Generator) -> Images:
    angles = rng.integers(8, size=len(x))
    result = np.empty_like(x)
    for angle in range(8):
        chosen = angles == angle
        if chosen.any():
            kernel = image_filters.line(length, np.pi * angle / 8)
            result[chosen] = image_filters.convolve(x[chosen], kernel)
    return result


def glass_blur(x: Images, strength: tuple[float, int, int], rng: np.random.Generator) -> Images:
    """Pixels are replaced by near ones, between two slight blurs."""
    sigma, reach, times = strength
    x = image_filters.smooth(x, sigma)
    rows, columns = np.indices(x.shape[1:3])
    for _ in range(times):
        shift = rng.integers(-reach, reach + 1, size=(2, *x.shape[:3]))
        x = image_filters.take_pixels(x, rows + shift[0], columns + shift[1])
    return image_filters.smooth(x, sigma)


def fog(x: Images, density: float, rng: np.random.Generator) -> Images:
    clouds = density * (0.5 + 0.5 * image_filters.clouds(x.shape[:3], rng))[..., None]
    return (x + clouds) / (1 + density)


def snow(x: Images, strength: tuple[float, float], rng: np.random.Generator) -> Images:
    density, whitening = strength
    flakes = (rng.random(x.shape[:3]) < density).astype(float)[..., None]
    fall = image_filters.line(3, np.pi * rng.uniform(0.25, 0.75))
    flakes = 3 * image_filters.convolve(flakes, fall)
    return x * (1 - whitening) + whitening * np.maximum(x, 0.6) + np.minimum(flakes, 1.0)


def brightness(x: Images, added: float, rng: np.random.Generator) -> Images:
    return x + added


def pixelate(x: Images, share: float, rng: np.random.Generator) -> Images:
    return image_filters.coarsen(x, *(max(2, round(side * share)) for side in x.shape[1:3]))


def elastic(x: Images, strength: tuple[float, float], rng: np.random.Generator) -> Images:
    """Smooth random displacements of some pixels."""
    reach, sigma = strength
    fields = image_filters.smooth(rng.uniform(-1, 1, (*x.shape[:3], 2)), sigma)
    fields *= reach / np.sqrt((fields**2).mean(axis=(1, 2, 3), keepdims=True))
    rows, columns = np.indices(x.shape[1:3], dtype=float)
    return image_filters.sample(x, rows + fields[..., 0], columns + fields[..., 1], edge=True)


def _zooms(largest: float) -> tuple[float, ...]:
    return tuple(np.linspace(1, largest, 8))


IMAGENET_C: dict[str, Corruption] = {
    "gaussian-noise": Corruption(cifar_c.gaussian_noise, (0.08, 0.14, 0.22, 0.32, 0.45)),
    "shot-noise": Corruption(cifar_c.shot_noise, (40, 16, 8, 4, 2)),
    "impulse-noise": Corruption(impulse_noise, (0.03, 0.07, 0.13, 0.2, 0.3)),
    "defocus-blur": Corruption(defocus_blur, (0.8, 1.2, 1.7, 2.3, 3.0)),
    "motion-blur": Corruption(motion_blur, (3, 5, 7, 9, 13)),
    # the blur's deviation, how far pixels are taken from, and how often
    "glass-blur": Corruption(
        glass_blur, ((0.4, 1, 1), (0.5, 1, 2), (0.6, 2, 1), (0.7, 2, 2), (0.9, 3, 2))
    ),
    "zoom-blur": Corruption(
        cifar_c.zoom_blur, (_zooms(1.15), _zooms(1.25), _zooms(1.35), _zooms(1.5), _zooms(1.7))
    ),
    "fog": Corruption(fog, (0.3, 0.5, 0.75, 1.1, 1.6)),
    # the share of pixels with a flake, and how much the image is whitened
    "snow": Corruption(snow, ((0.03, 0.1), (0.06, 0.15), (0.09, 0.2), (0.13, 0.3), (0.18, 0.4))),
    # how much of the image stays, and of the ice
    "frost": Corruption(
        cifar_c.frost, ((0.95, 0.25), (0.85, 0.4), (0.75, 0.5), (0.65, 0.65), (0.55, 0.8))
    ),
    "brightness": Corruption(brightness, (0.1, 0.2, 0.3, 0.45, 0.6)),
    "contrast": Corruption(cifar_c.contrast, (0.75, 0.5, 0.35, 0.2, 0.1)),
    "pixelate": Corruption(pixelate, (0.7, 0.5, 0.4, 0.3, 0.2)),
    "jpeg": Corruption(cifar_c.jpeg, (25, 15, 10, 6, 3)),
    # how far pixels move, in pixels, and how smoothly
    "elastic": Corruption(elastic, ((0.8, 3.0), (1.3, 3.0), (1.9, 2.5), (2.6, 2.5), (3.5, 2.2))),
}
