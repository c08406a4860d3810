"""The series' colours are told apart by everybody, on both backgrounds."""

import itertools
import re
from importlib.resources import files

import numpy as np
import pytest

STYLE = files("concordfl.report").joinpath("assets/page.css").read_text()
LEAST_DISTANCE = 20  # in CIELAB; 2.3 is just noticeable
LEAST_CONTRAST = 3  # WCAG 2.1, 1.4.11: graphical objects

# G. M. Machado, M. M. Oliveira, L. A. F. Fernandes, 2009, severity 1, on linear RGB.
SIGHT = {
    "all colours": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def linear(hexadecimal):
    share = np.array([int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    t = TO_XYZ @ rgb / TO_XYZ.sum(1)
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    low, high = sorted(TO_XYZ[1] @ linear(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def series():
    return re.findall(r"--series-\d+: (#[0-9a-f]{6});", STYLE)


def both(variable):
    return re.search(
        rf"--{variable}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\)", STYLE
    ).groups()


def test_lab_is_that_of_the_books():
    np.testing.assert_allclose(lab(linear("#ffffff")), [100, 0, 0], atol=0.01)
    np.testing.assert_allclose(lab(linear("#ff0000")), [53.24, 80.09, 67.20], atol=0.02)
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


@pytest.mark.parametrize("sight", SIGHT)
def test_colours_are_told_apart(sight):
    seen = [lab(np.clip(SIGHT[sight] @ linear(colour), 0, 1)) for colour in series()]
    assert len(seen) == 8
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(one - other) >= LEAST_DISTANCE


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_stand_out_from_both_papers(scheme):
    for colour in series():
        assert contrast(colour, both("paper")[scheme]) >= LEAST_CONTRAST


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "ink-soft", "accent", "gain", "loss"])
def test_texts_are_read(text, scheme):
    for ground in ("paper", "card"):
        assert contrast(both(text)[scheme], both(ground)[scheme]) >= 4.5  # WCAG 2.1, 1.4.3


def test_gains_and_losses_are_told_apart():
    for scheme, sight in itertools.product((0, 1), SIGHT.values()):
        gain, loss = (
            lab(np.clip(sight @ linear(both(name)[scheme]), 0, 1)) for name in ("gain", "loss")
        )
        assert np.linalg.norm(gain - loss) >= LEAST_DISTANCE
