"""A client that was not in training joins a finished run: nothing of the run is changed."""

from pathlib import Path
from typing import Any

import numpy as np

from ..core import DataError, Key
from ..data import Arrays
from ..engine.evaluate import defined
from ..engine.files import write_atomically
from ..engine.records import to_json
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
        np.zeros(len(own.x), np.int64) if own.labels is None else run.numbered(own.labels, data)
    )
    arrays = run.prepared(Arrays(own.x, labels), data)
    halves = np.array_split(
        Key(run.settings.run.seed, "adapt", own.client).numpy().permutation(len(arrays.y)), 2
    )
    train, test = (run.examples(arrays.take(half)) for half in halves)
    client = run.client(own.client, train)
    message = algorithm.message(run.progress.server, None)
    state = algorithm.adapt(client, algorithm.init_client(client, message), message, new=True)
    if run.settings.run.tune_new:
        message = algorithm.tuned(client, state, message, run.settings.run.tune_new)
    answer = {
        "client": own.client,
        "algorithm": run.summary["algorithm"],
        "adapted_on": len(train),
        "tested_on": {"examples": len(test)},
        "inspect": algorithm.inspect(client, state, message),
    }
    if algorithm.classifies:
        scores = score(algorithm.predict(client, state, message, test).numpy(), test.y.numpy())
        answer["tested_on"] = {name: defined(value) for name, value in scores._asdict().items()}
    if algorithm.scores_samples:
        own_weights = algorithm.likelihood(client, state, message, test)
        answer["log_likelihood"] = {"own_weights": float(own_weights.joint.mean())}
        answer["log_likelihood"]["all_clients"] = float(
            algorithm.likelihood(client, None, message, test).joint.mean()
        )
    out = run.path / "adapted" / f"{own.client}.json"
    out.parent.mkdir(exist_ok=True)
    write_atomically(out, to_json(answer, indent=2) + "\n")
    return answer
