"""UCI heart disease (Janosi et al. 1988): 920 patients of four hospitals, 13 features."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...core import DataError
from ..arrays import Arrays
from ..dataset import Dataset, FileSource, Form
from .formats import read_npz

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


@dataclass(frozen=True)
class HeartDisease(FileSource):
    name: ClassVar[str] = "heart-disease"
    about: ClassVar[str] = (
        "920 patients of four hospitals, 13 features, disease or not; natural clients are the "
        "hospitals"
    )
    advice: ClassVar[str] = (
        "put the four processed.*.data files of the UCI repository into one of these"
    )

    has_clients: ClassVar[bool] = True

    def forms(self) -> Sequence[Form]:
        return (
            Form(("heart_disease_4hospitals.npz",), _from_npz),
            Form(tuple(f"processed.{hospital}.data" for hospital in HOSPITALS), _from_uci),
        )


def _from_npz(folder: Path) -> Dataset:
    x, y, client, names = read_npz(
        folder / "heart_disease_4hospitals.npz", "X", "y", "client", "client_names"
    )
    return _dataset(x, y, names[client])


def _from_uci(folder: Path) -> Dataset:
    """Comma-separated numbers, `?` where one is missing; the last column is 0 for no disease."""
    rows, owners = [], []
    for hospital in HOSPITALS:
        path = folder / f"processed.{hospital}.data"
        with open(path, newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                try:
                    rows.append(
                        [np.nan if value.strip() in ("?", "-9") else float(value) for value in row]
                    )
                except ValueError:
                    raise DataError(
                        f"{path} must hold numbers or ?, got {','.join(row)!r} in line {number}"
                    ) from None
                owners.append(hospital)
    table = np.array(rows)
    return _dataset(table[:, :-1], table[:, -1] > 0, np.array(owners))


def _dataset(x: np.ndarray, y: np.ndarray, owners: np.ndarray) -> Dataset:
    features = x.astype(np.float32)
    nobody = Arrays(features[:0], np.zeros(0, dtype=np.int64))
    return Dataset(
        Arrays(features, y.astype(np.int64)),
        nobody,
        2,
        owners=owners,
        classes=("healthy", "disease"),
    )
