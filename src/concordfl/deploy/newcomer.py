"""A client that was not in training joins a finished run: nothing of the run is changed.

What is kept of it is adapted to all of its examples. How good that is can only be said from
examples that were not adapted to: for the reported figures, the same is done with one half of them
and tested on the other.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core import ClientId, DataError, Examples, Key, Predictor, tree
from ..data.text import printable, quote
from ..engine.evaluate import none_for_nan
from ..engine.threads import one_thread
from . import inputs
from .finished import FinishedRun
from .kept import Newcomer


def adapt(
    folder: Path, data: Path, *, client: ClientId | None = None, trust: bool = False
) -> dict[str, Any]:
    """A client joins the run in `folder` with its examples in the file `data`, by the name of the
    file or the one that is given; see `join`. `trust` is `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    run.require("accepts_new_clients", "adapt", "has a rule for new clients")
    samples = run.read(data)
    if samples.labels is None:
        require_no_labels(run, str(data))
    if len(samples.x) < 2:
        raise DataError(
            f"{data}: at least two examples are needed, one to adapt to and one to test on, got "
            f"{len(samples.x)}"
        )
    examples = inputs.prepare_rows(samples.x, samples.labels, run.preprocessing, data)
    return join(run, examples, samples.client if client is None else client)


def require_no_labels(run: FinishedRun, where: str) -> None:
    """Refuse examples without labels where the method needs them."""
    if run.algorithm.classifies:
        raise DataError(f"{printable(where)}: a client that joins must have labels, got none")


@one_thread()
def join(
    run: FinishedRun, examples: Examples, id: ClientId, *, test: bool = True
) -> dict[str, Any]:
    """Adapt to the examples by the method's rule for new clients and keep what comes of it; asked
    again, the answer is the same. `test` says how good it is, which takes as long again.
    """
    run.require("accepts_new_clients", "adapt", "has a rule for new clients")
    if id in run.kept.participants:
        raise DataError(
            f"a client that joins must have another name than those in training, got {quote(id)}"
        )
    if not len(examples):
        raise DataError(f"client {quote(id)} must have at least one example to adapt to, got none")
    predictor = run.predictor(id, examples, new=True)
    shared = run.message(None)
    is_tuned = tree.digest(predictor.message) != tree.digest(shared)
    answer = {
        "client": id,
        "algorithm": run.name,
        "adapted": _what_adapted(run, predictor, examples, is_tuned=is_tuned),
        "kept_from": len(examples),  # examples that the kept predictor is adapted to
        **(score_by_halves(run, examples, id) if test and len(examples) > 1 else {}),
        "inspect": predictor.inspect(),
        "parameters_sha256": run.summary["parameters_sha256"],
    }
    message = predictor.message if is_tuned else None
    run.kept.keep(Newcomer(answer, tree.normal(predictor.state), tree.normal(message)))
    return answer


def _what_adapted(
    run: FinishedRun, predictor: Predictor, examples: Examples, *, is_tuned: bool
) -> dict[str, Any]:
    """What was made of the examples, and whether predictions depend on it: compared with what
    somebody without examples would predict.
    """
    algorithm, somebody = run.algorithm, run.unadapted()
    is_same_state = somebody is not None and (
        tree.digest(somebody.state) == tree.digest(predictor.state)
    )
    is_same_prediction = (
        somebody is not None
        and algorithm.classifies
        and torch.equal(predictor.predictions(examples), somebody.predictions(examples))
    )
    parts = [] if is_same_state else [algorithm.adapts or "its state"]
    if is_tuned:
        epochs = run.settings.run.tune_new
        parts.append(f"the shared model, tuned for {epochs} epoch{'s' * (epochs > 1)}")
    return {"parts": parts, "changes_predictions": bool(parts) and not is_same_prediction}


def sentence(answer: dict[str, Any]) -> str:
    """What was adapted, in words."""
    adapted, name = answer["adapted"], answer["algorithm"]
    if not adapted["parts"]:
        return f"nothing to adapt: {name} serves new clients with the shared model as it is"
    parts = " and ".join(adapted["parts"])
    if not adapted["changes_predictions"]:
        return f"adapted: {parts}; predictions are those of the shared model"
    return f"adapted: {parts}"


@one_thread()
def score_by_halves(run: FinishedRun, examples: Examples, id: ClientId) -> dict[str, Any]:
    """How good a predictor is that adapted to one half of the examples, on the other; nothing is
    kept of it.
    """
    run.require("accepts_new_clients", "adapt", "has a rule for new clients")
    train, test = _halves(run, examples, id)
    predictor = run.predictor(id, train, new=True)
    found: dict[str, Any] = {"adapted_on": len(train), "tested_on": {"examples": len(test)}}
    if run.algorithm.classifies:
        found["tested_on"] = none_for_nan(predictor.scores(test))
    if run.algorithm.scores_samples:
        found["log_likelihood"] = {
            "own_weights": float(predictor.likelihood(test).joint.mean()),
            "all_clients": float(predictor.likelihood_anywhere(test).joint.mean()),
        }
    return found


def _halves(run: FinishedRun, examples: Examples, id: ClientId) -> tuple[Examples, Examples]:
    """What the client adapts to, and what it is tested on."""
    order = Key(run.settings.run.seed, "adapt", id).numpy().permutation(len(examples))
    first, second = (torch.from_numpy(half) for half in np.array_split(order, 2))
    return _take(examples, first), _take(examples, second)


def _take(examples: Examples, index: torch.Tensor) -> Examples:
    return Examples(examples.x[index], examples.y[index], scale=examples.scale)
