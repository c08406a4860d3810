"""A client that was not in training joins a finished run: nothing of the run is changed."""

from pathlib import Path
from typing import Any

import numpy as np

from ..core import DataError, Key
from ..data import Arrays
from ..engine.evaluate import none_for_nan
from ..engine.files import to_json, write_atomically
from ..metrics import score
from .finished import FinishedRun


def adapt(folder: Path, data: Path, *, trust: bool = False) -> dict[str, Any]:
    """Adapt to one half of a client's labelled examples by the method's rule for new clients, and
    test on the other half.

    The answer is written to `adapted/<client>.json` in the run's folder; asked again, it is the
    same. `trust` is `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    algorithm = run.settings.algorithm
    run.require("accepts_new_clients", "adapt", "has a rule for new clients")
    own = run.read(data)
    if own.labels is None and algorithm.classifies:
        raise DataError(f"{data}: a client that joins must have labels, got none")
    if len(own.x) < 2:
        raise DataError(
            f"{data}: at least two examples are needed, one to adapt to and one to test on, got "
            f"{len(own.x)}"
        )
    labels = (
        np.zeros(len(own.x), np.int64)
        if own.labels is None
        else run.preprocessing.number(own.labels, data)
    )
    arrays = run.preprocessing.prepare(Arrays(own.x, labels), data)
    halves = np.array_split(
        Key(run.settings.run.seed, "adapt", own.client).numpy().permutation(len(arrays.y)), 2
    )
    train, test = (run.preprocessing.to_examples(arrays.take(half)) for half in halves)
    predictor = run.predictor(own.client, train, new=True)
    answer = {
        "client": own.client,
        "algorithm": run.summary["algorithm"],
        "adapted_on": len(train),
        "tested_on": {"examples": len(test)},
        "inspect": predictor.inspect(),
    }
    if algorithm.classifies:
        scores = score(predictor.probabilities(test).numpy(), test.y.numpy())
        answer["tested_on"] = none_for_nan(scores._asdict())
    if algorithm.scores_samples:
        answer["log_likelihood"] = {
            "own_weights": float(predictor.likelihood(test).joint.mean()),
            "all_clients": float(predictor.likelihood_anywhere(test).joint.mean()),
        }
    out = run.path / "adapted" / f"{own.client}.json"
    out.parent.mkdir(exist_ok=True)
    write_atomically(out, to_json(answer, indent=2) + "\n")
    return answer
