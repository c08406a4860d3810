"""Writes the heart-disease data as a user would have them: a CSV file per hospital, and one table
of all hospitals.

`python examples/heart_disease_csv.py` makes `hospitals/*.csv` and `all.csv` in the current folder.
"""

import csv
from pathlib import Path

import numpy as np

from concordfl import Key
from concordfl.data.datasets import DATASETS

FEATURES = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
]


def main() -> None:
    data = DATASETS["heart-disease"]().load(Key(0))
    labels = np.array(data.classes)[data.train.y]
    rows = [["" if np.isnan(value) else f"{value:g}" for value in row] for row in data.train.x]
    Path("hospitals").mkdir(exist_ok=True)
    with open("all.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["hospital", *FEATURES, "diagnosis"])
        table.writerows(
            [owner, *row, label]
            for owner, row, label in zip(data.owners, rows, labels, strict=True)
        )
    for hospital in np.unique(data.owners):
        with open(f"hospitals/{hospital}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*FEATURES, "diagnosis"])
            own = data.owners == hospital
            table.writerows(
                [*row, label] for row, label, mine in zip(rows, labels, own, strict=True) if mine
            )
        print(f"hospitals/{hospital}.csv: {own.sum()} patients")


if __name__ == "__main__":
    main()
