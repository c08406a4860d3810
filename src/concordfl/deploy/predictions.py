"""What a finished run predicts of the samples in a file."""

import csv
import io
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core import ClientId, DataError, Objective
from ..engine.files import write_atomically
from . import inputs
from .finished import FinishedRun

SAMPLE, LABEL, PREDICTION = "sample", "label", "prediction"


class Predictions(NamedTuple):
    """Of every sample what is predicted; and how good it is, where the file has labels that the run
    knows.
    """

    objective: Objective
    names: tuple[str, ...]  # of the classes, the labels or the targets
    values: np.ndarray  # (N, Y) probabilities, or predicted numbers
    labels: list[str] | None  # as the file has them
    scores: dict[str, Any] | None
    unknown: tuple[str, ...]  # labels that the run does not know: nothing is said of accuracy
    client: ClientId | None  # who predicts; None for the model that serves everybody

    @property
    def columns(self) -> dict[str, list[Any]]:
        """The class and the probability of each; of several labels those that are likely; of
        numbers the numbers.
        """
        if self.objective.kind == "regression":
            return {f"{PREDICTION}({name})": each for name, each in self._by_name()}
        probabilities = {f"p({name})": each for name, each in self._by_name()}
        return {PREDICTION: self.predicted, **probabilities}

    def _by_name(self) -> Iterator[tuple[str, list[float]]]:
        yield from zip(self.names, self.values.T.tolist(), strict=True)

    @property
    def predicted(self) -> list[str]:
        if self.objective.kind == "classification":
            return [self.names[number] for number in self.values.argmax(1)]
        likely = (self.values > 0.5).tolist()
        return [" ".join(itertools.compress(self.names, row)) for row in likely]


def predict(
    folder: Path, data: Path, *, client: ClientId | None = None, trust: bool = False
) -> Predictions:
    """Of the samples in the file `data`, by a client of the run in `folder`; else by the client
    whose folder it is, or by the model for somebody of whom nothing is known. `trust` is
    `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    client = run.own_client if client is None else client
    samples = run.read(data)
    if not len(samples.x):
        raise DataError(f"{data}: there must be at least one sample, got none")
    preprocessing, labels = run.preprocessing, samples.labels
    known = labels is not None and preprocessing.knows(labels)
    examples = inputs.prepare_rows(samples.x, labels if known else None, preprocessing, data)
    values = run.predictions(examples, client).double().numpy()
    scores = run.scores(examples, client) if known else None
    names = None if labels is None else [labels.names[index] for index in labels.index]
    classes = preprocessing.classes
    unknown = set() if labels is None or known else set(labels.names) - set(classes)
    return Predictions(
        run.objective,
        classes or preprocessing.targets,
        values.reshape(len(values), -1),
        names,
        scores,
        tuple(sorted(unknown)),
        client,
    )


def write(predictions: Predictions, path: Path) -> None:
    """A row per sample as .csv: its number, its label where it has one, and what is predicted."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    labels = {} if predictions.labels is None else {LABEL: predictions.labels}
    numbers = {SAMPLE: list(range(len(predictions.values)))}
    columns = {**numbers, **labels, **predictions.columns}
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
