"""What the FedGMM paper's novelty tables and pictures show: how well samples that were never seen
are told from familiar ones, the example on a line, and how new clients adapt.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..core import Key
from ..data import Arrays
from ..data.datasets.two_gaussians import CENTRES, VARIANCE
from ..deploy.finished import FinishedRun
from ..deploy.scoring import Scored, normalise, score_examples, to_unit_range
from ..metrics import novelty
from ..report.pictures import Panel
from ..scenarios.shift import Flip, Rotate, Scale, Shift
from ..study.portraits import scatter_by_term

UNSEEN = 1  # the digit
LINE = np.linspace(-6, 6, 241)
E_STEPS = (1, 2, 3, 5, 10, 20, 50)
NUM_BINS = 40
LOG_X, LOG_Y = "log_p_x", "log_p_y_given_x"


# --- figure 1 -------------------------------------------------------------------------------------


def labels_along_a_line(finished: FinishedRun) -> dict[str, Any]:
    """Figure 1: P(y = 1|x) as the participants have it, in the mean, and as it is."""
    line = finished.preprocessing.to_examples(
        Arrays(LINE.astype(np.float32)[:, None], np.zeros(len(LINE), np.int64))
    )
    each = [finished.predictions(line, id)[:, 1].numpy() for id in finished.kept.participants]
    density = np.exp(-((LINE[:, None] - CENTRES) ** 2) / (2 * VARIANCE))
    true = (density * (LINE[:, None] < CENTRES)).sum(1) / density.sum(1)
    panel: Panel = {
        "kind": "lines",
        "title": "",
        "x_label": "x",
        "y_label": "P(y = 1 | x)",
        "series": [
            {"name": "true", "x": LINE.tolist(), "y": true.tolist()},
            {"name": finished.name, "x": LINE.tolist(), "y": np.mean(each, 0).tolist()},
        ],
    }
    return {"panels": [panel], "accuracy": finished.summary["final"]["global_accuracy"]}


# --- novel samples --------------------------------------------------------------------------------


def novel_images(finished: FinishedRun) -> dict[str, Any]:
    """Table 4, figure 5: the participants' test images, and the same at half size, turned by 90
    degrees and mirrored. Of methods that model p(x) also by log p(x) alone, and with both terms
    brought to one range.
    """
    familiar = _test_images(finished)
    changes = (Scale(factor=0.5), Rotate(degrees=90.0), Flip())
    seen, unseen = _scored(finished, familiar, _changed(familiar, finished, changes))
    found = {"panels": [_histogram(seen, unseen)], **_told_apart(seen, unseen)}
    if LOG_X in seen.columns:
        found[LOG_X] = _told_apart(seen, unseen, LOG_X)
        seen, unseen = normalise(seen, unseen)
        found["normalised"] = _told_apart(seen, unseen)
    return found


def altered_images(finished: FinishedRun) -> dict[str, Any]:
    """Figure 6, left: the participants' test images, and the same at 0.8 of their size and turned
    by 90 degrees.
    """
    familiar = _test_images(finished)
    changes = (Scale(factor=0.8), Rotate(degrees=90.0))
    seen, unseen = _scored(finished, familiar, _changed(familiar, finished, changes))
    return {"panels": [_histogram(seen, unseen)], **_told_apart(seen, unseen)}


def altered_labels(finished: FinishedRun) -> dict[str, Any]:
    """Figure 6, right: the participants' test images with their labels, and with others."""
    seen, unseen = _with_altered_labels(finished)
    return {"panels": [_histogram(seen, unseen)], **_told_apart(seen, unseen)}


def altered_labels_by_term(finished: FinishedRun) -> dict[str, Any]:
    """Figure 7: the same, by log p(x) and log p(y|x)."""
    seen, unseen = _with_altered_labels(finished)
    points = scatter_by_term({"familiar": seen, "altered labels": unseen})
    return {"panels": [points], **_told_apart(seen, unseen, LOG_Y)}


def unseen_digit(finished: FinishedRun) -> dict[str, Any]:
    """Figure 2: official test images of the digits that were in training, the same with altered
    labels, and the digit that was not.
    """
    test = replace(finished.settings.data, without=None).load(Key(0)).test
    known, ones = (
        test.take(np.flatnonzero(chosen)) for chosen in (test.y != UNSEEN, test.y == UNSEEN)
    )
    altered = Arrays(known.x, _next_labels(known.y))
    familiar, other_labels, digit = _scored(finished, known, altered, ones)
    points = {"familiar": familiar, "digit 1": digit, "altered labels": other_labels}
    return {
        "panels": [scatter_by_term(points)],
        "digit_1": _told_apart(familiar, digit, LOG_X)["auroc"],
        "altered_labels": _told_apart(familiar, other_labels, LOG_Y)["auroc"],
    }


def _test_images(finished: FinishedRun) -> Arrays:
    federation = finished.federation()
    tests = [federation.splits(id).test for id in federation.participants]
    x, y = (np.concatenate([getattr(test, part).numpy() for test in tests]) for part in ("x", "y"))
    return Arrays(x, y)


def _changed(images: Arrays, finished: FinishedRun, changes: Sequence[Shift]) -> Arrays:
    for change in changes:
        images = change.change(images, finished.objective.num_predicted, Key(0), Key(0))
    return images


def _with_altered_labels(finished: FinishedRun) -> list[Scored]:
    familiar = _test_images(finished)
    return _scored(finished, familiar, Arrays(familiar.x, _next_labels(familiar.y)))


def _next_labels(labels: np.ndarray) -> np.ndarray:
    """Every label renamed to the next one that there is: none keeps its meaning."""
    known, places = np.unique(labels, return_inverse=True)
    renamed: np.ndarray = np.roll(known, -1)[places]
    return renamed


def _scored(finished: FinishedRun, *parts: Arrays) -> list[Scored]:
    return [
        score_examples(finished, finished.preprocessing.to_examples(part), labelled=True)
        for part in parts
    ]


def _told_apart(familiar: Scored, novel: Scored, by: str = "score") -> dict[str, float]:
    found = novelty(familiar.columns[by], novel.columns[by])
    return {"auroc": found.auroc, "ap": found.ap, "max_f1": found.max_f1}


def _histogram(familiar: Scored, novel: Scored) -> Panel:
    """The share of samples by their score, which is 0 for the lowest and 1 for the highest."""
    both = np.concatenate([familiar.score, novel.score])
    edges = np.linspace(0, 1, NUM_BINS + 1)

    def shares(part: Scored) -> list[float]:
        counts, _ = np.histogram(to_unit_range(part.score, both), edges)
        return [float(count) / len(part.score) for count in counts]

    return {
        "kind": "histogram",
        "title": "",
        "x_label": "score, 0 to 1",
        "y_label": "share of the samples",
        "series": [
            {"name": "familiar", "x": edges.tolist(), "y": shares(familiar)},
            {"name": "novel", "x": edges.tolist(), "y": shares(novel)},
        ],
    }


# --- figure 8 -------------------------------------------------------------------------------------


def accuracy_by_steps(finished: FinishedRun) -> dict[str, Any]:
    """Figure 8: the accuracy of held-out clients whose π has had so many E-steps."""
    reached = {steps: _accuracy_after(finished, steps) for steps in E_STEPS}
    panel: Panel = {
        "kind": "lines",
        "title": "",
        "x_label": "E-steps",
        "y_label": "accuracy of new clients",
        "series": [{"name": finished.name, "x": list(reached), "y": list(reached.values())}],
    }
    return {"panels": [panel], "steps": {str(steps): value for steps, value in reached.items()}}


def _accuracy_after(finished: FinishedRun, steps: int) -> float:
    algorithm: Any = finished.algorithm
    settings = replace(finished.settings, algorithm=replace(algorithm, adapt_steps=steps))
    run, federation = replace(finished, settings=settings), finished.federation()
    splits = {id: federation.splits(id) for id in federation.held_out}
    return statistics.mean(
        run.predictor(id, own.train, new=True).scores(own.test)["accuracy"]
        for id, own in splits.items()
    )
