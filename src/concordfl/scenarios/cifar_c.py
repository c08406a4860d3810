"""The common corruptions with CIFAR-10-C's strengths (Hendrycks and Dietterich: Benchmarking Neural
Network Robustness to Common Corruptions and Perturbations, ICLR 2019).

Each takes images, its strength and a generator. The numbers are the published ones; those of
`elastic` are shares of the image's side, all other lengths are pixels of a 32x32 image. Departures:
frost is drawn, not photographed; fog's clouds are sums of random grids; beyond the edge of an image
its edge is repeated.
"""

# mypy: disable-error-code="no-any-return"
import io
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import image_filters
from .image_filters import Images

LUMINANCE = (0.299, 0.587, 0.114)  # of red, green and blue


class Corruption(NamedTuple):
    """What is done to images, and how strongly at the severities 1 to 5."""

    change: Callable[[Images, Any, np.random.Generator], Images]
    strengths: tuple[Any, Any, Any, Any, Any]


def gaussian_noise(x: Images, deviation: float, rng: np.random.Generator) -> Images:
    return x + rng.normal(scale=deviation, size=x.shape)


def shot_noise(x: Images, photons: float, rng: np.random.Generator) -> Images:
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Images, chance: float, rng: np.random.Generator) -> Images:
    """Every channel of a pixel may become black or white by itself."""
    draw = rng.random(x.shape)
    return np.where(draw < chance / 2, 0.0, np.where(draw > 1 - chance / 2, 1.0, x))


def defocus_blur(x: Images, strength: tuple[float, float], rng: np.random.Generator) -> Images:
    """A disk, its rim softened by a Gaussian over 3x3 pixels."""
    from scipy.ndimage import convolve

    radius, softness = strength
    reach = int(np.ceil(radius)) + 1
    across = np.arange(-reach, reach + 1)
    disk = (np.hypot(across[:, None], across[None]) <= radius).astype(float)
    taps = np.exp(-(np.arange(-1, 2) ** 2) / (2 * softness**2))
    return image_filters.convolve(x, convolve(disk, np.outer(taps, taps), mode="constant"))


def glass_blur(x: Images, strength: tuple[float, int, int], rng: np.random.Generator) -> Images:
    """Pixels are exchanged with near ones above or to the left, from the last to the first,
    between two slight blurs.
    """
    sigma, reach, times = strength
    x = image_filters.smooth(x, sigma)
    every = np.arange(len(x))
    inner = [range(side - reach, reach, -1) for side in x.shape[1:3]]
    for _, row, column in itertools.product(range(times), *inner):
        other_row, other_column = (
            position + rng.integers(-reach, reach, size=len(x)) for position in (row, column)
        )
        taken = x[every, other_row, other_column]
        x[every, other_row, other_column] = x[:, row, column]
        x[:, row, column] = taken
    return image_filters.smooth(x, sigma)


def motion_blur(x: Images, strength: tuple[int, float], rng: np.random.Generator) -> Images:
    return image_filters.trail(x, *strength, np.deg2rad(rng.uniform(-45, 45, size=len(x))))


def zoom_blur(x: Images, factors: tuple[float, ...], rng: np.random.Generator) -> Images:
    """The mean of the image seen ever closer."""
    return np.mean([image_filters.scale(x, factor) for factor in factors], axis=0)


def snow(
    x: Images,
    strength: tuple[float, float, float, float, int, float, float],
    rng: np.random.Generator,
) -> Images:
    """Flakes are what exceeds a threshold in noise; they fall both ways over a whitened image."""
    mean, deviation, size, threshold, radius, sigma, kept = strength
    noise = image_filters.scale(rng.normal(mean, deviation, (*x.shape[:3], 1)), size)
    flakes = np.where(noise < threshold, 0.0, np.clip(noise, 0, 1))
    flakes = image_filters.trail(
        flakes, radius, sigma, np.deg2rad(rng.uniform(-135, -45, size=len(x)))
    )
    whitened = kept * x + (1 - kept) * np.maximum(x, 1.5 * _grey(x) + 0.5)
    return whitened + flakes + np.rot90(flakes, k=2, axes=(1, 2))


def frost(x: Images, strength: tuple[float, float], rng: np.random.Generator) -> Images:
    """Ridges of ice: bright where a cloud crosses its middle."""
    kept, ice = strength
    ridges = np.clip(1 - 5 * np.abs(image_filters.clouds(x.shape[:3], rng) - 0.5), 0, 1)[..., None]
    return kept * x + ice * ridges


def fog(x: Images, strength: tuple[float, float], rng: np.random.Generator) -> Images:
    density, decay = strength
    brightest = x.max(axis=(1, 2, 3), keepdims=True)
    clouds = image_filters.plasma(x.shape[:3], decay, rng)[..., None]
    return (x + density * clouds) * brightest / (brightest + density)


def brightness(x: Images, added: float, rng: np.random.Generator) -> Images:
    """To the value of HSV, the largest of the channels: hue and saturation stay."""
    value = x.max(axis=3, keepdims=True)
    brighter = np.minimum(value + added, 1)
    return np.where(value > 0, x * brighter / np.maximum(value, 1e-9), brighter)


def contrast(x: Images, factor: float, rng: np.random.Generator) -> Images:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + factor * (x - mean)


def elastic(x: Images, strength: tuple[float, float, float], rng: np.random.Generator) -> Images:
    """Three points are moved at random and the image with them, and every pixel a little more."""
    height, width = x.shape[1:3]
    reach, sigma, corner_reach = (share * min(height, width) for share in strength)
    fields = reach * image_filters.smooth(rng.uniform(-1, 1, (*x.shape[:3], 2)), sigma)
    rows, columns = np.indices((height, width), dtype=float)
    rows, columns = rows + fields[..., 0], columns + fields[..., 1]
    third, middle = min(height, width) // 3, np.array([height // 2, width // 2])
    corners = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])
    moved = corners + rng.uniform(-corner_reach, corner_reach, (len(x), 3, 2))
    # (N, 3, 2): takes (row, column, 1) from where the corners were to where they are
    affine = np.linalg.inv(np.column_stack([corners, np.ones(3)])) @ moved
    to_row, to_column = (affine[:, :, axis, None, None] for axis in (0, 1))
    return image_filters.sample(
        x,
        to_row[:, 0] * rows + to_row[:, 1] * columns + to_row[:, 2],
        to_column[:, 0] * rows + to_column[:, 1] * columns + to_column[:, 2],
        edge=True,
    )


def pixelate(x: Images, share: float, rng: np.random.Generator) -> Images:
    return image_filters.coarsen(x, *(max(1, int(side * share)) for side in x.shape[1:3]))


def jpeg(x: Images, quality: int, rng: np.random.Generator) -> Images:
    from PIL import Image

    def compress(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return image_filters.by_pillow(x, compress)


def _grey(x: Images) -> Images:
    if x.shape[3] == 3:
        return (x @ np.array(LUMINANCE))[..., None]
    return x.mean(axis=3, keepdims=True)


def _zooms(hundredths: int) -> tuple[float, ...]:
    """The image itself, and its enlargements in steps of a hundredth from none on."""
    return (1.0, *(1 + step / 100 for step in range(hundredths + 1)))


CIFAR_C: dict[str, Corruption] = {
    "gaussian-noise": Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot-noise": Corruption(shot_noise, (500, 250, 100, 75, 50)),
    "impulse-noise": Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    # the disk's radius, and the deviation of what softens it
    "defocus-blur": Corruption(
        defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))
    ),
    # radius and deviation
    "motion-blur": Corruption(motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    # the blur's deviation, how far pixels are exchanged, and how often
    "glass-blur": Corruption(
        glass_blur, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))
    ),
    # The published ranges end at 1.06 and 1.11 by rounding, the others one step below their ends.
    "zoom-blur": Corruption(zoom_blur, (_zooms(6), _zooms(11), _zooms(15), _zooms(20), _zooms(25))),
    # density, and how fast finer structure fades
    "fog": Corruption(fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    # mean and deviation of the noise, its size, the threshold, radius and deviation of the fall,
    # and how much of the image is not whitened
    "snow": Corruption(
        snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    # how much of the image stays, and of the ice
    "frost": Corruption(frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "pixelate": Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg": Corruption(jpeg, (80, 65, 58, 50, 40)),
    # of the side: how far pixels move, how smoothly, and how far the three points do
    "elastic": Corruption(
        elastic,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
}
