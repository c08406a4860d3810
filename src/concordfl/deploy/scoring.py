"""How familiar samples are to a finished run, and how well that tells familiar from novel ones.

A method that models p(x) scores a sample by log p(x) + log p(y|x), or by log p(x) where it has no
label. Any other method is scored by the highest probability that it gives to a class; where clients
predict with something of their own, by the highest over all of them. A sample is novel if it scores
below a threshold that a stated share of held-out training data, the false alarms, falls below.
Where familiar and novel samples are scored together, the two terms may be brought to one range
before they are added (`normalise`).
"""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import CheckpointError, DataError, Examples, SettingError
from ..data import Arrays
from ..engine.evaluate import NUM_QUANTILES
from ..engine.files import to_json, write_atomically
from ..engine.threads import one_thread
from .finished import FinishedRun

FAMILIAR, NOVEL = "familiar", "novel"
FORMAT = 1  # of scores as JSON
Scorer = Callable[[Examples], dict[str, Tensor]]


class Scored(NamedTuple):
    """Columns by name, the last `score`; and the threshold below which a sample is novel."""

    columns: dict[str, np.ndarray]
    threshold: float | None
    false_alarm: float

    @property
    def score(self) -> np.ndarray:
        return self.columns["score"]

    @property
    def novel(self) -> np.ndarray | None:
        """(N,) whether each sample is novel, where there is a threshold."""
        return None if self.threshold is None else self.score < self.threshold


def score(
    folder: Path,
    data: Path,
    false_alarm: float = 0.05,
    *,
    labels: bool = True,
    trust: bool = False,
) -> Scored:
    """Score the samples in a file; see `score_examples`. Labels that the run does not know do not
    count. `trust` is `FinishedRun.open`'s.
    """
    run = FinishedRun.open(folder, trust=trust)
    own = run.read(data)
    if not len(own.x):
        raise DataError(f"{data}: there must be at least one sample, got none")
    known = own.labels is not None and labels and run.preprocessing.knows(own.labels)
    numbers = (
        run.preprocessing.number(own.labels, data)
        if known and own.labels is not None
        else run.preprocessing.no_targets(len(own.x))
    )
    arrays = run.preprocessing.prepare(Arrays(own.x, numbers), data)
    return score_examples(run, run.preprocessing.to_examples(arrays), known, false_alarm)


def score_both(
    folder: Path, data: Path, against: Path, false_alarm: float = 0.05, *, trust: bool = False
) -> tuple[Scored, Scored]:
    """Two files scored alike: with labels only if both have them."""

    def both(labels: bool) -> tuple[Scored, Scored]:
        first, second = (
            score(folder, path, false_alarm, labels=labels, trust=trust) for path in (data, against)
        )
        return first, second

    first, second = both(labels=True)
    alike = list(first.columns) == list(second.columns)
    return (first, second) if alike else both(labels=False)


def normalise(*parts: Scored) -> list[Scored]:
    """Samples that are scored together, with log p(x) and log p(y|x) each brought to 0..1 over all
    of them before they are added: the spread of one does not drown the other.

    Such a score depends on what is scored together, and has no threshold. Where there are not two
    terms to add, nothing changes.
    """
    terms = [name for name in parts[0].columns if name != "score"]
    if len(terms) < 2:
        return list(parts)
    everything = {name: np.concatenate([part.columns[name] for part in parts]) for name in terms}
    results = []
    for part in parts:
        columns = {name: to_unit_range(part.columns[name], everything[name]) for name in terms}
        score = np.sum(list(columns.values()), axis=0)
        results.append(Scored({**columns, "score": score}, None, part.false_alarm))
    return results


def to_unit_range(values: np.ndarray, everything: np.ndarray) -> np.ndarray:
    """Values by where they lie between the lowest and the highest of all; 0 where all are alike."""
    lowest, highest = everything.min(), everything.max()
    scaled: np.ndarray = (values - lowest) / ((highest - lowest) or 1.0)
    return scaled


@one_thread()
def score_examples(
    run: FinishedRun, examples: Examples, labelled: bool, false_alarm: float = 0.05
) -> Scored:
    """Scores of examples as the run prepares them; labels count only where they are known."""
    if not 0 < false_alarm < 1:
        raise SettingError(f"the false-alarm rate must be between 0 and 1, got {false_alarm}")
    scorer, held_out = (
        _by_likelihood(run, labelled, false_alarm)
        if run.settings.algorithm.scores_samples
        else _by_confidence(run)
    )
    columns = {name: values.double().numpy() for name, values in scorer(examples).items()}
    threshold = None if held_out is None else float(np.quantile(held_out, false_alarm))
    return Scored(columns, threshold, false_alarm)


def _by_likelihood(
    run: FinishedRun, labelled: bool, false_alarm: float
) -> tuple[Scorer, np.ndarray | None]:
    """By log p(x) and log p(y|x) under the weights of all clients; held-out scores are in the run's
    summary.
    """
    algorithm = run.settings.algorithm
    labelled = labelled and algorithm.classifies
    message = run.message(None)

    def scorer(examples: Examples) -> dict[str, Tensor]:
        found = algorithm.likelihood(run.client("samples", examples), None, message, examples)
        if found.log_y is None or not labelled:
            return {"log_p_x": found.log_x, "score": found.log_x}
        return {"log_p_x": found.log_x, "log_p_y_given_x": found.log_y, "score": found.joint}

    recorded = run.summary.get("thresholds")
    if recorded is not None and not 1 / NUM_QUANTILES <= false_alarm <= 1 - 1 / NUM_QUANTILES:
        finest = 1 / NUM_QUANTILES
        raise SettingError(
            f"the false-alarm rate must be from {finest} to {1 - finest}, as the run keeps it, got "
            f"{false_alarm}"
        )
    if recorded is None:
        return scorer, None
    name = "joint" if labelled else "log_x"
    if name not in recorded:
        raise CheckpointError(f"summary.json must give thresholds of {name}, got none")
    return scorer, np.array(recorded[name])


def _by_confidence(run: FinishedRun) -> tuple[Scorer, np.ndarray | None]:
    """By the highest probability of any class, at any client; needs the run's data, as clients may
    predict with them.
    """
    if run.objective.kind != "classification":
        run.require("scores_samples", f"scoring of {run.objective.kind}", "models p(x)")
    federation, rounds = run.federation(), run.summary["training_rounds"]
    ids = (
        federation.participants if run.settings.algorithm.personal else federation.participants[:1]
    )

    predictors = [run.predictor(id, federation.splits(id, rounds).train, new=False) for id in ids]

    def scorer(examples: Examples) -> dict[str, Tensor]:
        each = [predictor.predictions(examples).max(1).values for predictor in predictors]
        return {"score": torch.stack(each).max(0).values}

    parts = [federation.splits(id, rounds).validation for id in federation.participants]
    held_out = Examples(
        torch.cat([part.x for part in parts]),
        torch.cat([part.y for part in parts]),
        scale=parts[0].scale,
    )
    return scorer, scorer(held_out)["score"].numpy() if len(held_out) else None


def write(scored: Scored, path: Path) -> None:
    """A row per sample, as .csv or .json."""
    rows = _rows(scored)
    if path.suffix.lower() == ".json":
        threshold = {"threshold": scored.threshold, "false_alarm": scored.false_alarm}
        text = to_json({"format": FORMAT, **threshold, "samples": rows}, indent=1) + "\n"
    else:
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        text = buffer.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)


def _rows(scored: Scored) -> list[dict[str, Any]]:
    novel = scored.novel
    verdicts = {} if novel is None else {"verdict": np.where(novel, NOVEL, FAMILIAR)}
    columns = scored.columns | verdicts
    return [
        {"sample": index, **{name: values[index].item() for name, values in columns.items()}}
        for index in range(len(scored.score))
    ]
