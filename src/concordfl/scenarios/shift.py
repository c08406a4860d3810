"""Shifts: how each client's data differ from what they were given."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le

from ..core import Count, DataError, Key, Positive, Probability, SettingError, Settings, Share
from ..core.settings import Finite
from ..data import Arrays
from .corruptions import CORRUPTIONS, Strength, corrupt
from .image_filters import rotate, scale, to_bytes

UNCHANGED = "original"


@dataclass(frozen=True)
class Shift(Settings, ABC):
    """A change to the data of a share of the clients, to a share of every client's examples, or to
    a share of the pool of all examples before they are dealt out.

    Clients with shifts of one family do not overlap, nor do the parts of the pool that are changed.
    With `among`, only clients of that concept are chosen from. With `from_round`, the shift begins
    in that training round, and the data drift; rounds of stages that only prepare training do not
    count.
    """

    about: ClassVar[str]
    family: ClassVar[str]  # what differs: "concept", "feature", "label" or "joint"

    share: Share = 0.25
    # examples: of every client's; pool: of all examples, before they are dealt out
    share_of: Literal["clients", "examples", "pool"] = "clients"
    among: str | None = None
    from_round: Count | None = None  # the training round in which it begins

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("among", "from_round"):
            value = getattr(self, name)
            if self.share_of == "pool" and value is not None:
                raise SettingError(f"{name} must be left out for a share of the pool, got {value}")

    @property
    @abstractmethod
    def group(self) -> str:
        """The name of the true group of clients with this shift."""

    @property
    def needs_classes(self) -> bool:
        """Whether it changes labels, which must be classes."""
        return self.family in ("concept", "label")

    @property
    def changes_concept(self) -> bool:
        """Whether P(y|x) is another one: such clients are a group of their own, and new clients are
        made for it.
        """
        return False

    @abstractmethod
    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        """Changed examples; `shared_key` is the same for all clients with this shift,
        `client_key` is the client's.
        """

    def apply(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        if self.share_of == "clients":
            return self.change(arrays, num_classes, shared_key, client_key)
        chosen = np.sort(
            client_key.child("examples")
            .numpy()
            .permutation(len(arrays.y))[: round(self.share * len(arrays.y))]
        )
        return self.change_rows(arrays, chosen, num_classes, shared_key, client_key)

    def change_rows(
        self,
        arrays: Arrays,
        rows: np.ndarray,
        num_classes: int,
        shared_key: Key,
        client_key: Key,
    ) -> Arrays:
        """All examples, some of them changed."""
        changed = self.change(arrays.take(rows), num_classes, shared_key, client_key)
        x, y = arrays.x.copy(), arrays.y.copy()
        x[rows], y[rows] = changed.x, changed.y
        return Arrays(x, y)


@dataclass(frozen=True)
class LabelMap(Shift):
    """Another concept: the same inputs have other labels."""

    about: ClassVar[str] = (
        "labels are renamed: reverse (C-1-y), shift (y + `by` mod C), random, or a given list"
    )
    family: ClassVar[str] = "concept"

    map: Literal["reverse", "shift", "random"] | tuple[int, ...] = "reverse"
    by: Count = 1  # for "shift"

    @property
    def group(self) -> str:
        if isinstance(self.map, tuple):
            return "map-" + "-".join(str(label) for label in self.map)
        return f"shift-{self.by}" if self.map == "shift" and self.by > 1 else self.map

    @property
    def changes_concept(self) -> bool:
        return True

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        return Arrays(arrays.x, self._table(num_classes, shared_key)[arrays.y])

    def _table(self, num_classes: int, shared_key: Key) -> np.ndarray:
        labels = np.arange(num_classes)
        if self.map == "reverse":
            return num_classes - 1 - labels
        if self.map == "shift":
            return (labels + self.by) % num_classes
        if self.map == "random":
            return shared_key.child("label-map").numpy().permutation(num_classes)
        if len(self.map) != num_classes or not set(self.map) <= set(range(num_classes)):
            raise SettingError(
                f"map must list {num_classes} labels in 0..{num_classes - 1}, got {list(self.map)}"
            )
        return np.array(self.map)


@dataclass(frozen=True)
class LabelNoise(Shift):
    """A share of the labels is replaced by other ones at random."""

    about: ClassVar[str] = "`rate` of the labels replaced by other ones at random"
    family: ClassVar[str] = "label"

    rate: Probability = 0.2

    @property
    def group(self) -> str:
        return f"label-noise-{self.rate:g}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        rng = client_key.child("label-noise").numpy()
        wrong = rng.random(len(arrays.y)) < self.rate
        other = (arrays.y + rng.integers(1, max(num_classes, 2), size=len(arrays.y))) % num_classes
        return Arrays(arrays.x, np.where(wrong, other, arrays.y))


@dataclass(frozen=True)
class Corrupt(Shift):
    """A common corruption of images; `random` draws one, or its severity, for each client."""

    about: ClassVar[str] = f"a common corruption at severity 1-5: random, {', '.join(CORRUPTIONS)}"
    family: ClassVar[str] = "feature"

    name: str = "random"
    severity: Annotated[int, Ge(1), Le(5)] | Literal["random"] = 3
    strength: Strength = "cifar-c"  # whose strengths the severities have

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name != "random" and self.name not in CORRUPTIONS:
            raise SettingError(
                f"name must be random or one of {', '.join(CORRUPTIONS)}, got {self.name!r}"
            )

    @property
    def group(self) -> str:
        name = "corrupted" if self.name == "random" else self.name
        return name if self.severity == "random" else f"{name}-{self.severity}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        rng = client_key.child("corruption").numpy()
        drawn_name = CORRUPTIONS[int(rng.integers(len(CORRUPTIONS)))]
        drawn_severity = int(rng.integers(1, 6))
        name = drawn_name if self.name == "random" else self.name
        severity = drawn_severity if self.severity == "random" else self.severity
        images, noise = _images(arrays, "corrupt"), client_key.child("noise").numpy()
        return Arrays(corrupt(images, name, severity, noise, self.strength), arrays.y)


@dataclass(frozen=True)
class Rotate(Shift):
    about: ClassVar[str] = "images turned by `degrees`, anti-clockwise"
    family: ClassVar[str] = "feature"

    degrees: Finite = 90.0

    @property
    def group(self) -> str:
        return f"rotate-{self.degrees:g}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        return Arrays(_turn(_images(arrays, "rotate"), self.degrees), arrays.y)


@dataclass(frozen=True)
class Flip(Shift):
    about: ClassVar[str] = "images mirrored left to right, or upside down"
    family: ClassVar[str] = "feature"

    axis: Literal["horizontal", "vertical"] = "horizontal"

    @property
    def group(self) -> str:
        return f"flip-{self.axis}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        return Arrays(
            np.flip(_images(arrays, "flip"), axis=2 if self.axis == "horizontal" else 1).copy(),
            arrays.y,
        )


@dataclass(frozen=True)
class Invert(Shift):
    about: ClassVar[str] = "light and dark exchanged"
    family: ClassVar[str] = "feature"

    @property
    def group(self) -> str:
        return "invert"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        return Arrays(255 - _images(arrays, "invert"), arrays.y)


@dataclass(frozen=True)
class Scale(Shift):
    about: ClassVar[str] = "images larger or smaller about their centre, by `factor`"
    family: ClassVar[str] = "feature"

    factor: Positive = 0.5

    @property
    def group(self) -> str:
        return f"scale-{self.factor:g}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        return Arrays(to_bytes(scale(_images(arrays, "scale") / 255.0, self.factor)), arrays.y)


@dataclass(frozen=True)
class MissingFeatures(Shift):
    """The same features are missing at all these clients: black pixels, or NaN, which standardising
    makes the mean.
    """

    about: ClassVar[str] = (
        "a share of the features (or pixels) is missing; tables must be standardised"
    )
    family: ClassVar[str] = "feature"

    missing: Share = 0.25

    @property
    def group(self) -> str:
        return f"missing-{self.missing:g}"

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        flat = arrays.x.reshape(len(arrays.x), -1).copy()
        gone = (
            shared_key.child("missing")
            .numpy()
            .permutation(flat.shape[1])[: round(self.missing * flat.shape[1])]
        )
        flat[:, gone] = 0 if flat.dtype == np.uint8 else np.nan
        return Arrays(flat.reshape(arrays.x.shape), arrays.y)


@dataclass(frozen=True)
class Joint(Shift):
    """FedGMM 4.1: images inverted, flipped and turned by 90 degrees, and their labels permuted; or
    one of the two.
    """

    about: ClassVar[str] = (
        "images inverted, flipped and turned by 90 degrees, labels permuted (FedGMM)"
    )
    family: ClassVar[str] = "joint"

    images: bool = True
    labels: bool = True

    @property
    def group(self) -> str:
        return (
            "joint"
            if self.images and self.labels
            else "joint-images"
            if self.images
            else "joint-labels"
        )

    @property
    def needs_classes(self) -> bool:
        return self.labels

    @property
    def changes_concept(self) -> bool:
        return self.labels

    def change(self, arrays: Arrays, num_classes: int, shared_key: Key, client_key: Key) -> Arrays:
        x, y = arrays
        if self.images:
            x = _turn(255 - np.flip(_images(arrays, "joint"), axis=2), 90)
        if self.labels:
            y = shared_key.child("label-map").numpy().permutation(num_classes)[y]
        return Arrays(x, y)


SHIFTS: dict[str, type[Shift]] = {
    "corrupt": Corrupt,
    "flip": Flip,
    "invert": Invert,
    "joint": Joint,
    "label-map": LabelMap,
    "label-noise": LabelNoise,
    "missing-features": MissingFeatures,
    "rotate": Rotate,
    "scale": Scale,
}


def _images(arrays: Arrays, kind: str) -> np.ndarray:
    if arrays.x.ndim != 4 or arrays.x.dtype != np.uint8:
        raise DataError(
            f"the shift {kind!r} needs images, got examples of shape {arrays.x.shape[1:]} and type "
            f"{arrays.x.dtype}"
        )
    return arrays.x


def _turn(images: np.ndarray, degrees: float) -> np.ndarray:
    whole_turns = degrees % 180 == 0 or (degrees % 90 == 0 and images.shape[1] == images.shape[2])
    return rotate(images, degrees) if whole_turns else to_bytes(rotate(images / 255.0, degrees))
