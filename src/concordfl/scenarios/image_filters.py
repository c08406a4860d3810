"""Geometry and filters of images, of which corruptions and shifts are made.

Images are floats (N, H, W, C) in [0, 1] unless a function says otherwise.
"""

# mypy: disable-error-code="no-any-return"
# numpy types the mean, sums and products of float arrays as Any.
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float64]


def to_bytes(x: Images) -> np.ndarray:
    return np.rint(np.clip(x, 0, 1) * 255).astype(np.uint8)


# --- geometry -------------------------------------------------------------------------------------


def scale(x: Images, factor: float) -> Images:
    """Larger (above 1) or smaller about the centre; what comes in from outside is black."""
    middle = (np.array(x.shape[1:3]) - 1) / 2
    rows, columns = np.indices(x.shape[1:3], dtype=float)
    return sample(
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
    return sample(
        x,
        middle[0] + np.cos(angle) * rows + np.sin(angle) * columns,
        middle[1] - np.sin(angle) * rows + np.cos(angle) * columns,
    )


def sample(x: Images, rows: Images, columns: Images, *, edge: bool = False) -> Images:
    """Bilinear values at fractional positions (H, W) or (N, H, W); beyond the edge the edge's own,
    or black.
    """
    height, width = x.shape[1:3]
    top, left = np.floor(rows).astype(int), np.floor(columns).astype(int)
    down, right = (rows - top)[..., None], (columns - left)[..., None]

    def at(row: NDArray[np.int_], column: NDArray[np.int_]) -> Images:
        values = take_pixels(x, row, column)
        if edge:
            return values
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        return values * inside[..., None]

    upper = (1 - right) * at(top, left) + right * at(top, left + 1)
    lower = (1 - right) * at(top + 1, left) + right * at(top + 1, left + 1)
    return (1 - down) * upper + down * lower


def take_pixels(x: Images, rows: NDArray[np.int_], columns: NDArray[np.int_]) -> Images:
    """The pixels at whole positions (H, W) or (N, H, W); beyond the edge the edge's own."""
    which = np.arange(len(x))[:, None, None]
    return x[which, np.clip(rows, 0, x.shape[1] - 1), np.clip(columns, 0, x.shape[2] - 1)]


# --- filters --------------------------------------------------------------------------------------


def smooth(x: Images, sigma: float) -> Images:
    from scipy.ndimage import gaussian_filter

    result: Images = gaussian_filter(x, sigma=(0, sigma, sigma, 0)[: x.ndim], mode="nearest")
    return result


def convolve(x: Images, kernel: Images) -> Images:
    from scipy.ndimage import convolve

    result: Images = convolve(x, (kernel / kernel.sum())[None, :, :, None], mode="nearest")
    return result


def line(length: int, angle: float) -> Images:
    """A kernel that smears along a line."""
    reach = length // 2
    kernel = np.zeros((2 * reach + 1, 2 * reach + 1))
    for step in np.linspace(-reach, reach, 4 * length):
        kernel[round(reach + step * np.sin(angle)), round(reach + step * np.cos(angle))] += 1
    return kernel


def trail(x: Images, radius: int, sigma: float, angles: NDArray[np.float64]) -> Images:
    """Each image smeared one way along its angle (N,): half a Gaussian over 2 radius + 1 pixels."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    rows, columns = np.indices(x.shape[1:3])
    result = np.zeros_like(x)
    for step, weight in zip(steps, weights / weights.sum(), strict=True):
        down, right = (
            np.rint(step * part(angles)).astype(int)[:, None, None] for part in (np.sin, np.cos)
        )
        result += weight * take_pixels(x, rows + down, columns + right)
    return result


def by_pillow(x: Images, change: Callable[..., object]) -> Images:
    from PIL import Image

    grey = x.shape[3] == 1
    images = to_bytes(x)
    changed = [
        np.asarray(change(Image.fromarray(image[..., 0] if grey else image))) for image in images
    ]
    return np.stack(changed).reshape(x.shape) / 255.0


def coarsen(x: Images, height: int, width: int) -> Images:
    """Images of so many blocks, in their old size."""
    from PIL import Image

    return by_pillow(
        x,
        lambda image: image.resize((width, height), Image.Resampling.BOX).resize(
            image.size, Image.Resampling.NEAREST
        ),
    )


# --- random fields --------------------------------------------------------------------------------


def clouds(shape: tuple[int, ...], rng: np.random.Generator) -> Images:
    """Random fields (N, H, W) in [0, 1] with structure at several sizes."""
    total = np.zeros(shape)
    for sigma, weight in ((1.0, 1.0), (2.5, 3.0), (6.0, 9.0)):
        total += weight * smooth(rng.normal(size=shape), sigma)
    return _unit_range(total)


def plasma(shape: tuple[int, ...], decay: float, rng: np.random.Generator) -> Images:
    """Random fields (N, H, W) in [0, 1]: sums of grids, each twice as fine as the one before and
    weaker by the square of `decay`.
    """
    count, height, width = shape
    rows, columns = np.indices((height, width), dtype=float)
    total, weight = np.zeros(shape), 1.0
    spacing = 2 ** int(np.ceil(np.log2(max(height, width)))) // 2
    while spacing:
        grid = (count, height // spacing + 2, width // spacing + 2, 1)
        values = rng.uniform(-weight, weight, grid)
        total += sample(values, rows / spacing, columns / spacing)[..., 0]
        spacing, weight = spacing // 2, weight / decay**2
    return _unit_range(total)


def _unit_range(fields: Images) -> Images:
    low, high = fields.min(axis=(1, 2), keepdims=True), fields.max(axis=(1, 2), keepdims=True)
    return (fields - low) / np.maximum(high - low, 1e-9)
