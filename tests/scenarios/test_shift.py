import io
import itertools
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.ndimage import zoom
from torch import nn

import concordfl as cf
from concordfl import DataError, Key, SettingError
from concordfl.data import Arrays
from concordfl.data.datasets import DATASETS
from concordfl.runner import load_config, make_federation
from concordfl.scenarios import SHIFTS
from concordfl.scenarios.corruptions import CORRUPTIONS, STRENGTHS, corrupt

KEYS = Key("shared"), Key("own")


@cache
def digits():
    return DATASETS["digits"]().load(Key(0))


def large(x):
    """Digits of 32x32, smooth."""
    return zoom(x, (1, 4, 4, 1), order=1)


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return Arrays(rng.integers(256, size=(6, 12, 12, 3), dtype=np.uint8), np.arange(6) % 4)


def change(kind, arrays, **options):
    return SHIFTS[kind](**options).change(arrays, 4, *KEYS)


@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_corruptions_give_bytes_the_same_for_the_same_seed(name, channels, strength):
    rng = np.random.default_rng(0)
    images = np.repeat(rng.integers(256, size=(5, 28, 28, 1), dtype=np.uint8), channels, axis=3)

    def corrupted(images, severity):
        return corrupt(images, name, severity, np.random.default_rng(7), strength)

    for severity in (1, 5):
        first = corrupted(images, severity)
        assert first.dtype == np.uint8
        assert first.shape == images.shape
        assert first.tobytes() == corrupted(images, severity).tobytes()
        assert not np.array_equal(first, images)
    assert corrupted(images[:0], 3).shape == (0, 28, 28, channels)


# CIFAR-10-C's glass blurs more at severity 3 and 5, which takes back some of what is exchanged, and
# its elastic moves the whole image less and less: neither is ordered by how far pixels move.
ORDERED = [
    (strength, name)
    for strength in STRENGTHS
    for name in CORRUPTIONS
    if strength != "cifar-c" or name not in ("glass-blur", "elastic")
]


@cache
def moved(name, strength):
    x = large(digits().train.x[:200])
    return [
        np.abs(corrupt(x, name, s, np.random.default_rng(1), strength).astype(float) - x).mean()
        for s in range(1, 6)
    ]


@pytest.mark.parametrize(("strength", "name"), ORDERED)
def test_corruptions_move_further_with_severity(name, strength):
    assert (np.diff(moved(name, strength)) > -0.1).all()  # of 255: snow's third is a draw
    assert moved(name, strength)[4] > 1.5 * moved(name, strength)[0]


def test_glass_moves_further_where_pixels_are_exchanged_twice():
    once, more_blurred, twice, twice_blurred = (
        moved("glass-blur", "cifar-c")[s] for s in (1, 2, 3, 4)
    )
    assert min(twice, twice_blurred) > max(once, more_blurred)


@pytest.mark.parametrize("name", sorted(set(CORRUPTIONS) - {"motion-blur"}))
def test_small_images_are_changed_less_than_with_imagenets_strengths(name):
    """At the largest severity. CIFAR-10-C's motion blur is one-sided, which moves the image too."""
    assert moved(name, "cifar-c")[4] < moved(name, "imagenet-c")[4]


GREY = np.full((40, 32, 32, 1), 128, dtype=np.uint8)


def corrupted_grey(name, severity):
    return corrupt(GREY, name, severity, np.random.default_rng(0)) / 255.0


@pytest.mark.parametrize("severity", range(1, 6))
def test_strengths_are_those_of_cifar_c(severity):
    """Published numbers, measured in even grey images of 32x32."""
    level = 128 / 255

    def published(*numbers):
        return numbers[severity - 1]

    noise = corrupted_grey("gaussian-noise", severity).std()
    assert noise == pytest.approx(published(0.04, 0.06, 0.08, 0.09, 0.10), rel=0.02)
    shot = corrupted_grey("shot-noise", severity).var()
    assert level / shot == pytest.approx(published(500, 250, 100, 75, 50), rel=0.06)
    impulses = np.isin(corrupted_grey("impulse-noise", severity), (0, 1)).mean()
    assert impulses == pytest.approx(published(0.01, 0.02, 0.03, 0.05, 0.07), rel=0.1)
    added = corrupted_grey("brightness", severity).mean() - level
    assert added == pytest.approx(published(0.05, 0.1, 0.15, 0.2, 0.3), abs=0.003)


@pytest.mark.parametrize("severity", range(1, 6))
def test_strengths_of_cifar_c_in_an_image_with_structure(severity):
    def published(*numbers):
        return numbers[severity - 1]

    ramp = np.tile(np.arange(32, dtype=np.uint8) * 8, (32, 1))[None, :, :, None]

    def corrupted(name):
        return corrupt(ramp, name, severity, np.random.default_rng(0))

    factor = corrupted("contrast").std() / ramp.std()
    assert factor == pytest.approx(published(0.75, 0.5, 0.4, 0.3, 0.15), abs=0.01)
    # whole pixels of a share of 0.95, 0.9, 0.85, 0.75, 0.65
    assert len(np.unique(corrupted("pixelate"))) == published(30, 28, 27, 24, 20)
    file = io.BytesIO()
    Image.fromarray(ramp[0, ..., 0]).save(file, "JPEG", quality=published(80, 65, 58, 50, 40))
    assert np.array_equal(corrupted("jpeg")[0, ..., 0], np.asarray(Image.open(file)))
    # the middle of the image stays, the sides come nearer by half of the largest zoom on average
    outermost = (ramp[0, 0, -1, 0] - corrupted("zoom-blur")[0, 0, -1, 0]) / 8
    largest = published(1.06, 1.11, 1.15, 1.20, 1.25)
    assert outermost == pytest.approx(15.5 * (1 - 1 / largest) / 2, abs=0.35)


@pytest.mark.parametrize("severity", range(1, 6))
def test_elastic_moves_pixels_by_smoothed_noise_beside_an_affine_map(severity):
    """What is left of the positions after an affine fit has the deviation of uniform noise that
    a Gaussian has smoothed: 1/sqrt(3) / (2 sqrt(pi) sigma).
    """
    reach, sigma = ((0, 1), (1.6, 6.4), (2.56, 1.92), (3.2, 1.28), (3.2, 0.96))[severity - 1]
    side, margin = 32, 5
    positions = np.tile(np.indices((side, side), dtype=float)[0], (200, 1, 1))[..., None]
    change, strengths = STRENGTHS["cifar-c"]["elastic"]
    found = change(positions, strengths[severity - 1], np.random.default_rng(0))
    inner = np.s_[margin:-margin]
    rows, columns = (each[inner, inner].ravel() for each in np.indices((side, side)))
    design = np.column_stack([rows, columns, np.ones_like(rows)])
    values = found[:, inner, inner, 0].reshape(len(found), -1).T
    left = values - design @ np.linalg.lstsq(design, values, rcond=None)[0]
    expected = reach / np.sqrt(3) / (2 * np.sqrt(np.pi) * sigma)
    assert left.std() == pytest.approx(expected, rel=0.2, abs=0.03)


@cache
def clean_model():
    """A network trained on clean digits, and test digits of 32x32."""
    data = digits()
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
    x = torch.from_numpy(large(data.train.x)).permute(0, 3, 1, 2).float() / 255
    y = torch.from_numpy(data.train.y)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return module.eval(), large(data.test.x), data.test.y


@pytest.mark.parametrize(("strength", "name"), ORDERED)
def test_a_clean_models_error_does_not_fall_with_severity(name, strength):
    module, x, y = clean_model()

    def error(severity):
        rng = np.random.default_rng(3)
        changed = corrupt(x, name, severity, rng, strength) if severity else x
        with torch.no_grad():
            predicted = (
                module(torch.from_numpy(changed).permute(0, 3, 1, 2).float() / 255)
                .argmax(1)
                .numpy()
            )
        return (predicted != y).mean()

    errors = [error(severity) for severity in (0, 1, 3, 5)]
    assert errors[0] < 0.1
    for milder, stronger in itertools.pairwise(errors):
        assert stronger >= milder - 0.015  # 364 digits: four of them


def test_geometry(images):
    assert np.array_equal(change("rotate", images, degrees=90.0).x, np.rot90(images.x, axes=(1, 2)))
    assert np.array_equal(
        change("rotate", images, degrees=-90.0).x, np.rot90(images.x, k=-1, axes=(1, 2))
    )
    assert np.array_equal(change("rotate", images, degrees=360.0).x, images.x)
    assert np.array_equal(change("flip", images).x, images.x[:, :, ::-1])
    assert np.array_equal(change("flip", images, axis="vertical").x, images.x[:, ::-1])
    assert np.array_equal(change("invert", images).x, 255 - images.x)
    small = change("scale", images, factor=0.5).x
    assert (small[:, :2] == 0).all()
    assert small[:, 4:8, 4:8].any()
    assert np.array_equal(change("scale", images, factor=1.0).x, images.x)
    slanted = change("rotate", images, degrees=10.0).x
    assert slanted.dtype == np.uint8
    back = SHIFTS["rotate"](degrees=-10.0).change(Arrays(slanted, images.y), 4, *KEYS).x
    smooth = np.abs(back[:, 4:8, 4:8].astype(float) - images.x[:, 4:8, 4:8]).mean()
    assert smooth < np.abs(slanted[:, 4:8, 4:8].astype(float) - images.x[:, 4:8, 4:8]).mean() + 20


def test_label_noise_and_missing_features():
    many = Arrays(np.ones((4000, 8), dtype=np.float32), np.zeros(4000, dtype=int))
    noisy = change("label-noise", many, rate=0.3)
    assert (noisy.y != 0).mean() == pytest.approx(0.3, abs=0.03)
    assert set(noisy.y) == {0, 1, 2, 3}
    gone = change("missing-features", many, missing=0.5)
    assert np.isnan(gone.x).sum(axis=0).tolist().count(4000) == 4
    dark = change(
        "missing-features",
        Arrays(np.full((3, 2, 2, 1), 9, dtype=np.uint8), np.zeros(3, int)),
        missing=0.5,
    )
    assert dark.x.sum(axis=0).reshape(-1).tolist().count(0) == 2


def test_joint_changes_images_and_labels_or_one_of_them(images):
    both, only_images, only_labels = (
        change("joint", images, **o) for o in ({}, {"labels": False}, {"images": False})
    )
    assert np.array_equal(both.x, only_images.x)
    assert np.array_equal(both.y, only_labels.y)
    assert np.array_equal(both.x, np.rot90(255 - images.x[:, :, ::-1], axes=(1, 2)))
    assert np.array_equal(only_labels.x, images.x)
    assert not np.array_equal(both.y, images.y)


def test_a_share_of_the_examples(images):
    shifted = SHIFTS["invert"](share=0.5, share_of="examples").apply(images, 4, *KEYS)
    changed = [not np.array_equal(a, b) for a, b in zip(shifted.x, images.x, strict=True)]
    assert sum(changed) == 3


@pytest.mark.parametrize("kind", ["rotate", "flip", "invert", "scale", "corrupt", "joint"])
def test_shifts_of_images_refuse_tables(kind):
    with pytest.raises(DataError, match=f"the shift '{kind}' needs images, got examples of shape"):
        change(kind, Arrays(np.zeros((3, 4), dtype=np.float32), np.zeros(3, int)))


def test_unknown_corruptions_are_refused():
    with pytest.raises(SettingError, match="name must be random or one of gaussian-noise"):
        SHIFTS["corrupt"](name="rain")
    with pytest.raises(SettingError, match="severity must be <= 5 or one of 'random', got 6"):
        SHIFTS["corrupt"](severity=6)


@pytest.mark.parametrize("degrees", [float("nan"), float("inf")])
def test_images_are_turned_by_a_finite_angle(degrees):
    with pytest.raises(SettingError, match="degrees must be a finite number, got (nan|inf)"):
        SHIFTS["rotate"](degrees=degrees)


def test_drift_begins_at_its_round():
    settings = {
        "data": {"name": "digits", "limit": 200},
        "scenario": {
            "clients": 2,
            "shifts": [{"kind": "label-map", "share": 1.0, "from_round": 3}],
        },
        "run": {"rounds": 4, "evaluate_every": 1},
    }
    federation = make_federation(load_config(settings))
    before, after = (federation.splits("client-0", round) for round in (2, 3))
    assert np.array_equal(before.train.x, after.train.x)
    assert np.array_equal(9 - before.train.y, after.train.y)
    drifted = cf.run(settings).summary
    assert (
        cf.run(settings, run={"executor": "processes", "workers": 2}).summary["parameters_sha256"]
        == drifted["parameters_sha256"]
    )
    steady = cf.run(settings, scenario={"shifts": []}).records
    assert cf.run(settings).records[1]["local"] == steady[1]["local"]
    assert cf.run(settings).records[2]["local"] != steady[2]["local"]


def test_images_that_are_not_square_can_be_turned():
    plain = Arrays(np.full((2, 6, 10, 1), 100, dtype=np.uint8), np.zeros(2, int))
    turned = change("rotate", plain, degrees=90.0).x
    assert turned.shape == plain.x.shape
    assert set(np.unique(turned)) <= {0, 100}
    assert np.array_equal(change("rotate", plain, degrees=180.0).x, plain.x)
