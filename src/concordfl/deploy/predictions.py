"""What a finished run predicts of the samples in a file."""

import csv
import io
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..core import ClientId, DataError
from ..engine.files import write_atomically
from . import inputs
from .finished import FinishedRun

SAMPLE, LABEL, PREDICTION = "sample", "label", "prediction"


class Predictions(NamedTuple):
    """Of every sample the class and the probabilities; and how good they are, where the file has
    labels that the run knows.
    """

    classes: tuple[str, ...]
    probabilities: np.ndarray  # (N, Y)
    labels: list[str] | None  # as the file has them
    scores: dict[str, Any] | None
    unknown: tuple[str, ...]  # labels that the run does not know: nothing is said of accuracy

    @property
    def predicted(self) -> list[str]:
        return [self.classes[number] for number in self.probabilities.argmax(1)]


def predict(
    folder: Path, data: Path, *, client: ClientId | None = None, trust: bool = False
) -> Predictions:
    """Of the samples in the file `data`, by a client of the run in `folder`, or by the model for
    somebody of whom nothing is known. `trust` is `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    samples = run.read(data)
    if not len(samples.x):
        raise DataError(f"{data}: there must be at least one sample, got none")
    preprocessing, labels = run.preprocessing, samples.labels
    known = labels is not None and preprocessing.knows(labels)
    examples = inputs.prepare_rows(samples.x, labels if known else None, preprocessing, data)
    probabilities = run.predictions(examples, client).double().numpy()
    scores = run.scores(examples, client) if known else None
    names = None if labels is None else [labels.names[index] for index in labels.index]
    unknown = set() if labels is None else set(labels.names) - set(preprocessing.classes)
    return Predictions(preprocessing.classes, probabilities, names, scores, tuple(sorted(unknown)))


def write(predictions: Predictions, path: Path) -> None:
    """A row per sample as .csv: its number, its label where it has one, the predicted class and the
    probability of every class.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    labels = predictions.labels
    marks = [] if labels is None else [LABEL]
    columns = [f"p({name})" for name in predictions.classes]
    writer.writerow([SAMPLE, *marks, PREDICTION, *columns])
    for index, name in enumerate(predictions.predicted):
        mark = [] if labels is None else [labels[index]]
        writer.writerow([index, *mark, name, *predictions.probabilities[index].tolist()])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, buffer.getvalue())
