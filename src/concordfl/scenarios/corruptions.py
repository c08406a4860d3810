"""The common corruptions of MNIST-C and CIFAR-C (Mu and Gilmer 2019; Hendrycks and Dietterich 2019)
for small images.

Each takes images (N, H, W, C) as floats in [0, 1], a severity from 1 to 5 and a generator. Written
with numpy and scipy; the strengths are chosen for images of 28 to 32 pixels, and frost is drawn,
not photographed.
"""

# mypy: disable-error-code="no-any-return"
# numpy types the mean, sums and products of float arrays as Any.
import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float64]
Corruption = Callable[[Images, int, np.random.Generator], Images]


def gaussian_noise(x: Images, severity: int, rng: np.random.Generator) -> Images:
    return x + rng.normal(scale=(0.08, 0.14, 0.22, 0.32, 0.45)[severity - 1], size=x.shape)


def shot_noise(x: Images, severity: int, rng: np.random.Generator) -> Images:
    photons = (40, 16, 8, 4, 2)[severity - 1]
    return rng.poisson(x * photons) / photons


def impulse_noise(x: Images, severity: int, rng: np.random.Generator) -> Images:
    chance = (0.03, 0.07, 0.13, 0.2, 0.3)[severity - 1]
    draw = rng.random((*x.shape[:3], 1))
    return np.where(draw < chance / 2, 0.0, np.where(draw > 1 - chance / 2, 1.0, x))


def defocus_blur(x: Images, severity: int, rng: np.random.Generator) -> Images:
    radius = (0.8, 1.2, 1.7, 2.3, 3.0)[severity - 1]
    reach = int(np.ceil(radius))
    across = np.arange(-reach, reach + 1)
    # A disk with a soft rim.
    disk = np.clip(radius + 0.5 - np.hypot(across[:, None], across[None]), 0, 1)
    return _filter(x, disk)


def motion_blur(x: Images, severity: int, rng: np.random.Generator) -> Images:
    length = (3, 5, 7, 9, 13)[severity - 1]
    angles = rng.integers(8, size=len(x))
    result = np.empty_like(x)
    for angle in range(8):
        chosen = angles == angle
        if chosen.any():
            result[chosen] = _filter(x[chosen], _line(length, np.pi * angle / 8))
    return result


def glass_blur(x: Images, severity: int, rng: np.random.Generator) -> Images:
    """Pixels are exchanged with near ones, between two slight blurs."""
    sigma, reach, times = ((0.4, 1, 1), (0.5, 1, 2), (0.6, 2, 1), (0.7, 2, 2), (0.9, 3, 2))[
        severity - 1
    ]
    x = _smooth(x, sigma)
    rows, columns = np.indices(x.shape[1:3])
    for _ in range(times):
        shift = rng.integers(-reach, reach + 1, size=(2, *x.shape[:3]))
        y_at = np.clip(rows + shift[0], 0, x.shape[1] - 1)
        x_at = np.clip(columns + shift[1], 0, x.shape[2] - 1)
        x = x[np.arange(len(x))[:, None, None], y_at, x_at]
    return _smooth(x, sigma)


def zoom_blur(x: Images, severity: int, rng: np.random.Generator) -> Images:
    """The mean of the image seen ever closer."""
    largest = (1.15, 1.25, 1.35, 1.5, 1.7)[severity - 1]
    return np.mean([scale(x, factor) for factor in np.linspace(1, largest, 8)], axis=0)


def fog(x: Images, severity: int, rng: np.random.Generator) -> Images:
    strength = (0.3, 0.5, 0.75, 1.1, 1.6)[severity - 1]
    clouds = strength * (0.5 + 0.5 * _clouds(x.shape[:3], rng))[..., None]
    return (x + clouds) / (1 + strength)


def snow(x: Images, severity: int, rng: np.random.Generator) -> Images:
    density, whitening = ((0.03, 0.1), (0.06, 0.15), (0.09, 0.2), (0.13, 0.3), (0.18, 0.4))[
        severity - 1
    ]
    flakes = (rng.random(x.shape[:3]) < density).astype(float)[..., None]
    flakes = 3 * _filter(flakes, _line(3, np.pi * rng.uniform(0.25, 0.75)))
    return x * (1 - whitening) + whitening * np.maximum(x, 0.6) + np.minimum(flakes, 1.0)


def frost(x: Images, severity: int, rng: np.random.Generator) -> Images:
    """Ridges of ice: bright where a cloud crosses its middle."""
    kept, ice = ((0.95, 0.25), (0.85, 0.4), (0.75, 0.5), (0.65, 0.65), (0.55, 0.8))[severity - 1]
    ridges = np.clip(1 - 5 * np.abs(_clouds(x.shape[:3], rng) - 0.5), 0, 1)[..., None]
    return kept * x + ice * ridges


def brightness(x: Images, severity: int, rng: np.random.Generator) -> Images:
    return x + (0.1, 0.2, 0.3, 0.45, 0.6)[severity - 1]


def contrast(x: Images, severity: int, rng: np.random.Generator) -> Images:
    mean = x.mean(axis=(1, 2), keepdims=True)
    return mean + (0.75, 0.5, 0.35, 0.2, 0.1)[severity - 1] * (x - mean)


def pixelate(x: Images, severity: int, rng: np.random.Generator) -> Images:
    share = (0.7, 0.5, 0.4, 0.3, 0.2)[severity - 1]
    small = (max(2, round(x.shape[1] * share)), max(2, round(x.shape[2] * share)))
    from PIL import Image

    def coarsen(image: Image.Image) -> Image.Image:
        return image.resize(small[::-1], Image.Resampling.BOX).resize(
            image.size, Image.Resampling.NEAREST
        )

    return _by_pillow(x, coarsen)


def jpeg(x: Images, severity: int, rng: np.random.Generator) -> Images:
    quality = (25, 15, 10, 6, 3)[severity - 1]
    from PIL import Image

    def compress(image: Image.Image) -> Image.Image:
        file = io.BytesIO()
        image.save(file, "JPEG", quality=quality)
        return Image.open(file)

    return _by_pillow(x, compress)


def elastic(x: Images, severity: int, rng: np.random.Generator) -> Images:
    """Smooth random displacements of some pixels."""
    reach, sigma = ((0.8, 3.0), (1.3, 3.0), (1.9, 2.5), (2.6, 2.5), (3.5, 2.2))[severity - 1]
    fields = _smooth(rng.uniform(-1, 1, (*x.shape[:3], 2)), sigma)
    fields *= reach / np.sqrt((fields**2).mean(axis=(1, 2, 3), keepdims=True))
    rows, columns = np.indices(x.shape[1:3], dtype=float)
    return _sample(x, rows + fields[..., 0], columns + fields[..., 1], edge=True)


CORRUPTIONS: dict[str, Corruption] = {
    "gaussian-noise": gaussian_noise,
    "shot-noise": shot_noise,
    "impulse-noise": impulse_noise,
    "defocus-blur": defocus_blur,
    "motion-blur": motion_blur,
    "glass-blur": glass_blur,
    "zoom-blur": zoom_blur,
    "fog": fog,
    "snow": snow,
    "frost": frost,
    "brightness": brightness,
    "contrast": contrast,
    "pixelate": pixelate,
    "jpeg": jpeg,
    "elastic": elastic,
}


def corrupt(images: np.ndarray, name: str, severity: int, rng: np.random.Generator) -> np.ndarray:
    """uint8 images (N, H, W, C) in and out; the same generator gives the same bytes."""
    if not len(images):
        return images
    return to_bytes(CORRUPTIONS[name](images / 255.0, severity, rng))


# --- geometry, used by the shifts too -------------------------------------------------------------


def to_bytes(x: Images) -> np.ndarray:
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)


def scale(x: Images, factor: float) -> Images:
    """Larger (above 1) or smaller about the centre; what comes in from outside is black."""
    middle = (np.array(x.shape[1:3]) - 1) / 2
    rows, columns = np.indices(x.shape[1:3], dtype=float)
    return _sample(
        x, middle[0] + (rows - middle[0]) / factor, middle[1] + (columns - middle[1]) / factor
    )


def rotate(x: Images, degrees: float) -> Images:
    """Turned about the centre, anti-clockwise; what comes in from outside is black."""
    if degrees % 90 == 0 and (x.shape[1] == x.shape[2] or degrees % 180 == 0):
        return np.rot90(x, k=int(degrees // 90) % 4, axes=(1, 2)).copy()
    angle = np.deg2rad(degrees)
    middle = (np.array(x.shape[1:3]) - 1) / 2
    rows, columns = np.indices(x.shape[1:3], dtype=float)
    rows, columns = rows - middle[0], columns - middle[1]
    return _sample(
        x,
        middle[0] + np.cos(angle) * rows + np.sin(angle) * columns,
        middle[1] - np.sin(angle) * rows + np.cos(angle) * columns,
    )


def _sample(x: Images, rows: Images, columns: Images, *, edge: bool = False) -> Images:
    """Bilinear values at fractional positions (H, W) or (N, H, W); beyond the edge the edge's own,
    or black.
    """
    height, width = x.shape[1:3]
    rows, columns = np.broadcast_to(rows, x.shape[:3]), np.broadcast_to(columns, x.shape[:3])
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top)[..., None], (columns - left)[..., None]
    which = np.arange(len(x))[:, None, None]

    def at(row: NDArray[np.int_], column: NDArray[np.int_]) -> Images:
        values = x[which, np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)]
        if edge:
            return values
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return values * inside[..., None]

    upper = (1 - right) * at(top, left) + right * at(top, left + 1)
    lower = (1 - right) * at(top + 1, left) + right * at(top + 1, left + 1)
    return (1 - down) * upper + down * lower


def _smooth(x: Images, sigma: float) -> Images:
    from scipy.ndimage import gaussian_filter

    smooth: Images = gaussian_filter(x, sigma=(0, sigma, sigma, 0)[: x.ndim], mode="nearest")
    return smooth


def _filter(x: Images, kernel: Images) -> Images:
    from scipy.ndimage import convolve

    result: Images = convolve(x, (kernel / kernel.sum())[None, :, :, None], mode="nearest")
    return result


def _line(length: int, angle: float) -> Images:
    """A kernel that smears along a line."""
    reach = length // 2
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for step in np.linspace(-reach, reach, 4 * length):
        kernel[round(reach + step * np.sin(angle)), round(reach + step * np.cos(angle))] += 1
    return kernel


def _clouds(shape: tuple[int, ...], rng: np.random.Generator) -> Images:
    """Random fields (N, H, W) in [0, 1] with structure at several sizes."""
    total = np.zeros(shape)
    for sigma, weight in ((1.0, 1.0), (2.5, 3.0), (6.0, 9.0)):
        total += weight * _smooth(rng.normal(size=shape), sigma)
    low, high = total.min(axis=(1, 2), keepdims=True), total.max(axis=(1, 2), keepdims=True)
    return (total - low) / np.maximum(high - low, 1e-9)


def _by_pillow(x: Images, change: Callable[..., object]) -> Images:
    from PIL import Image

    grey = x.shape[3] == 1
    images = to_bytes(x)
    changed = [
        np.asarray(change(Image.fromarray(image[..., 0] if grey else image))) for image in images
    ]
    return np.stack(changed).reshape(x.shape) / 255.0
