"""Preprocessing: how a run reads examples, so that it can read a newcomer's like its own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import DataError, Examples, Scale
from ..core.objective import KINDS, Kind
from .arrays import Arrays, drop_colour, network_shape
from .columns import Column, columns_from_record, feature_names, indicators, to_record
from .labels import Labels, numbers_of
from .standardise import Moments, Standard
from .text import listing, printable, quote

IMAGE_TYPE = "uint8"


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """What examples must be, what their classes are called, and how features are standardised."""

    dtype: str  # numpy's name; IMAGE_TYPE says that examples are images
    input_shape: tuple[int, ...]  # as a network sees one example
    classes: tuple[str, ...]  # by number
    features: tuple[str, ...] = ()  # where they have names
    standard: Standard | None = None
    columns: tuple[Column, ...] = ()  # of a table, where some are categories
    ignored: tuple[str, ...] = ()  # columns of a table that are no features
    resize: tuple[int, int] | None = None  # height and width that images are brought to
    kind: Kind = "classification"  # of targets
    targets: tuple[str, ...] = ()  # names of targets that are no classes
    target_standard: Standard | None = None  # of numbers that are standardised

    @classmethod
    def plain(cls, x: np.ndarray, num_classes: int, y: np.ndarray | None = None) -> "Preprocessing":
        """Of examples that are taken as they are, with classes that are called by their numbers, or
        with the targets `y` that are none.
        """
        classes = tuple(str(number) for number in range(num_classes))
        shape = network_shape(x.shape[1:])
        kind = "classification" if y is None else kind_of_targets(y)
        if y is None or kind == "classification":
            return cls(x.dtype.name, shape, classes)
        targets = ("y",) if y.ndim == 1 else tuple(f"y{index}" for index in range(y.shape[1]))
        return cls(x.dtype.name, shape, (), kind=kind, targets=targets)

    @property
    def scale(self) -> Scale | None:
        """Of images that are standardised: kept as bytes, they are scaled where they are used."""
        return self.standard.scale() if self.standard and self.dtype == IMAGE_TYPE else None

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """The columns that a table must have, in the order of the features."""
        return self.columns or tuple(Column(name) for name in self.features)

    def with_standards(
        self, inputs: Sequence[Moments], targets: Sequence[Moments]
    ) -> "Preprocessing":
        """With what follows from sums over every participant's training examples, in the order of
        names; there are none of what is not standardised.
        """
        return replace(
            self,
            standard=self._input_standard(inputs) if inputs else None,
            target_standard=Standard.from_clients(targets) if targets else None,
        )

    def _input_standard(self, moments: Sequence[Moments]) -> Standard:
        """Categories stay 0 and 1, so that a rare one is no outlier and an unknown one is 0
        everywhere.
        """
        standard = Standard.from_clients(moments, self.features)
        if not self.columns:
            return standard
        categories = indicators(self.columns)
        return Standard(
            np.where(categories, 0.0, standard.mean), np.where(categories, 1.0, standard.deviation)
        )

    # --- a newcomer's data ------------------------------------------------------------------------

    def knows(self, labels: Labels) -> bool:
        """Whether all labels are classes of the run, or targets such as it has."""
        if self.kind == "classification":
            return set(labels.names) <= set(self.classes)
        try:
            self.number(labels, Path())
        except DataError:
            return False
        return True

    def number(self, labels: Labels, path: Path) -> np.ndarray:
        """Labels as the run numbers its classes; targets that are no classes in their own unit."""
        if self.kind != "classification":
            return self._values(labels, path)
        unknown = sorted(set(labels.names) - set(self.classes))
        if unknown:
            raise DataError(
                f"{printable(path)}: labels must be among {listing(self.classes)}, got "
                f"{listing(unknown)}"
            )
        return labels.number({name: number for number, name in enumerate(self.classes)})

    def _values(self, labels: Labels, path: Path) -> np.ndarray:
        """(N,) or (N, D) targets that are no classes."""
        count = len(self.targets)
        if max(len(labels.columns), 1) != count:
            raise DataError(
                f"{printable(path)}: targets must be {count} per example, got "
                f"{max(len(labels.columns), 1)}"
            )
        rule = f"{printable(path)}: targets must be numbers"
        values = numbers_of(labels.names, count, rule)
        if self.kind == "multi-label" and not np.isin(values, (0, 1)).all():
            raise DataError(f"{printable(path)}: labels must be 0 or 1, got others")
        found: np.ndarray = values[labels.index]
        return found[:, 0] if self.kind == "regression" and count == 1 else found

    def no_targets(self, count: int) -> np.ndarray:
        """What stands for the targets of examples that have none."""
        if self.kind == "classification":
            return np.zeros(count, np.int64)
        single = self.kind == "regression" and len(self.targets) == 1
        return np.zeros(count if single else (count, len(self.targets)))

    def prepare(self, arrays: Arrays, path: Path) -> Arrays:
        """As the run prepared its own examples, after a look whether they are of the same kind."""
        prepared = self.standardise(Arrays(self.inputs(arrays.x, path), arrays.y))
        if prepared.x.dtype.kind == "f" and not np.isfinite(prepared.x).all():
            raise DataError(f"{printable(path)}: features must be finite, got NaN or infinity")
        return prepared

    def inputs(self, x: np.ndarray, path: Path) -> np.ndarray:
        """Examples of the run's type and shape; others are refused."""
        x = drop_colour(x) if self.input_shape[:1] == (1,) else x
        if (x.dtype == np.uint8) != (self.dtype == IMAGE_TYPE):
            raise DataError(
                f"{printable(path)}: x must be of type {self.dtype} as in the run, got {x.dtype}"
            )
        shape = network_shape(x.shape[1:])
        if shape != self.input_shape:
            raise DataError(
                f"{printable(path)}: examples must have the shape {list(self.input_shape)}, got "
                f"{list(shape)}"
            )
        return x

    def standardise(self, arrays: Arrays) -> Arrays:
        """Rows of numbers are standardised here, also targets; images where they are used, see
        `scale`.
        """
        if self.target_standard is not None:
            arrays = Arrays(arrays.x, self.target_standard.apply_to_targets(arrays.y))
        if self.standard is None or self.dtype == IMAGE_TYPE:
            return arrays
        return self.standard.apply(arrays)

    def to_examples(self, arrays: Arrays) -> Examples:
        return Examples(
            torch.from_numpy(np.ascontiguousarray(arrays.x)),
            torch.from_numpy(arrays.y.astype(target_type(self.kind))),
            scale=self.scale,
        )

    # --- in summary.json --------------------------------------------------------------------------

    def to_record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "type": self.dtype,
            "input_shape": list(self.input_shape),
            "classes": list(self.classes),
        }
        if self.features:
            record["features"] = list(self.features)
        if self.standard is not None:
            record["standardised"] = self.standard.to_record()
        if self.columns:
            record["columns"] = [to_record(column) for column in self.columns]
        if self.ignored:
            record["ignored"] = list(self.ignored)
        if self.resize is not None:
            record["resize"] = list(self.resize)
        if self.kind != "classification":
            record |= {"objective": self.kind, "targets": list(self.targets)}
        if self.target_standard is not None:
            record["targets_standardised"] = self.target_standard.to_record()
        return record

    @classmethod
    def from_record(cls, record: Any) -> "Preprocessing":
        """What `to_record` gave; anything else is refused."""
        if not isinstance(record, Mapping):
            raise DataError(f"preprocessing must be a table, got {quote(str(record))}")
        made = cls(
            dtype=_checked_type(record.get("type")),
            input_shape=_checked_shape(record.get("input_shape")),
            classes=_checked_names(
                record.get("classes"), "classes", at_least="objective" not in record
            ),
            features=_checked_names(record.get("features", []), "features"),
            standard=(
                Standard.from_record(record["standardised"]) if "standardised" in record else None
            ),
            columns=columns_from_record(record.get("columns", [])),
            ignored=_checked_names(record.get("ignored", []), "ignored"),
            resize=_checked_size(record["resize"]) if "resize" in record else None,
            kind=_checked_kind(record.get("objective", "classification")),
            targets=_checked_names(
                record.get("targets", []), "targets", at_least="objective" in record
            ),
            target_standard=(
                Standard.from_record(record["targets_standardised"])
                if "targets_standardised" in record
                else None
            ),
        )
        made._check_lengths()
        return made

    def _check_lengths(self) -> None:
        if self.features and (len(self.features),) != self.input_shape:
            raise DataError(
                f"preprocessing.features must be {list(self.input_shape)} names, got "
                f"{len(self.features)}"
            )
        if self.columns and feature_names(self.columns) != self.features:
            raise DataError(
                f"preprocessing.columns must give the features {listing(self.features)}, got "
                f"{listing(feature_names(self.columns))}"
            )
        targets = self.target_standard
        if targets is not None and targets.mean.shape != (len(self.targets),):
            raise DataError(
                f"preprocessing.targets_standardised must be of {len(self.targets)} targets, got "
                f"shape {list(targets.mean.shape)}"
            )
        if self.standard is None:
            return
        # Images by channel, rows of numbers by feature.
        of_images = self.dtype == IMAGE_TYPE
        expected = self.input_shape[:1] if of_images else self.input_shape
        shape = self.standard.mean.shape
        if (shape if of_images else network_shape(shape)) != expected:
            raise DataError(
                f"preprocessing.standardised must be of shape {list(expected)}, got {list(shape)}"
            )


def kind_of_targets(y: np.ndarray) -> Kind:
    """What targets (N,) or (N, D) are by their type: single whole numbers stand for classes."""
    if y.dtype.kind == "f":
        return "regression"
    return "classification" if y.ndim == 1 else "multi-label"


def target_type(kind: Kind) -> type[np.generic]:
    """As a network's loss takes targets."""
    return np.int64 if kind == "classification" else np.float32


def _checked_kind(value: Any) -> Kind:
    if value not in KINDS:
        raise DataError(
            f"preprocessing.objective must be one of {', '.join(KINDS)}, got {quote(str(value))}"
        )
    kind: Kind = value
    return kind


def _checked_type(value: Any) -> str:
    try:
        if (
            isinstance(value, str)
            and np.dtype(value).name == value
            and np.dtype(value).kind in "fiub"
        ):
            return value
    except TypeError:
        pass
    raise DataError(f"preprocessing.type must be a type of numbers, got {quote(str(value))}")


def _checked_shape(value: Any) -> tuple[int, ...]:
    if isinstance(value, list) and value and all(type(size) is int and size > 0 for size in value):
        return tuple(value)
    rule = "preprocessing.input_shape must be a list of whole numbers > 0"
    raise DataError(f"{rule}, got {quote(str(value))}")


def _checked_size(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2:
        height, width = _checked_shape(value)
        return height, width
    raise DataError(f"preprocessing.resize must be two numbers, got {quote(str(value))}")


def _checked_names(value: Any, key: str, at_least: int = 0) -> tuple[str, ...]:
    if (
        isinstance(value, list)
        and len(value) >= at_least
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    ):
        return tuple(value)
    raise DataError(
        f"preprocessing.{key} must be a list of different names, got {quote(str(value))}"
    )
