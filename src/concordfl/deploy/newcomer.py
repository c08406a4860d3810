"""A client that was not in training joins a finished run: nothing of the run is changed."""

from pathlib import Path
from typing import Any

import numpy as np

from ..core import DataError, Examples, Key
from ..data import Arrays
from ..data.own import Samples
from ..engine.evaluate import none_for_nan
from ..engine.files import file_name, make_folder, to_json, write_atomically
from ..engine.threads import one_thread
from .finished import FinishedRun

FORMAT = 1  # of the answer


def adapt(folder: Path, data: Path, *, trust: bool = False) -> dict[str, Any]:
    """Adapt to one half of a client's labelled examples by the method's rule for new clients, and
    test on the other half.

    The answer is written to `answer_file` in the run's folder; asked again, it is the same. `trust`
    is `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    run.require("accepts_new_clients", "adapt", "has a rule for new clients")
    samples = _read(run, data)
    with one_thread():
        answer = _answer(run, samples, data)
    file = answer_file(run.path, samples.client)
    make_folder(file.parent)
    write_atomically(file, to_json(answer, indent=2) + "\n")
    return answer


def answer_file(folder: Path, client: str) -> Path:
    """Where the answer to a client that joined the run in `folder` is written."""
    return folder / "adapted" / file_name(client, ".json")


def _read(run: FinishedRun, data: Path) -> Samples:
    samples = run.read(data)
    if samples.labels is None and run.settings.algorithm.classifies:
        raise DataError(f"{data}: a client that joins must have labels, got none")
    if len(samples.x) < 2:
        raise DataError(
            f"{data}: at least two examples are needed, one to adapt to and one to test on, got "
            f"{len(samples.x)}"
        )
    return samples


def _answer(run: FinishedRun, samples: Samples, data: Path) -> dict[str, Any]:
    algorithm = run.settings.algorithm
    train, test = _halves(run, samples, data)
    predictor = run.predictor(samples.client, train, new=True)
    answer = {
        "format": FORMAT,
        "client": samples.client,
        "algorithm": run.summary["algorithm"],
        "adapted_on": len(train),
        "tested_on": {"examples": len(test)},
        "inspect": predictor.inspect(),
    }
    if algorithm.classifies:
        answer["tested_on"] = none_for_nan(predictor.scores(test))
    if algorithm.scores_samples:
        answer["log_likelihood"] = {
            "own_weights": float(predictor.likelihood(test).joint.mean()),
            "all_clients": float(predictor.likelihood_anywhere(test).joint.mean()),
        }
    return answer


def _halves(run: FinishedRun, samples: Samples, data: Path) -> tuple[Examples, Examples]:
    """What the client adapts to, and what it is tested on."""
    labels = np.zeros(len(samples.x), np.int64)
    if samples.labels is not None:
        labels = run.preprocessing.number(samples.labels, data)
    arrays = run.preprocessing.prepare(Arrays(samples.x, labels), data)
    order = Key(run.settings.run.seed, "adapt", samples.client).numpy().permutation(len(arrays.y))
    adapt_to, test_on = (
        run.preprocessing.to_examples(arrays.take(half)) for half in np.array_split(order, 2)
    )
    return adapt_to, test_on
