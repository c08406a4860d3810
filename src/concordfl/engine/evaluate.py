"""Evaluation: every client with what it would really predict with.

Local figures are means over the participants' test splits. Global figures are means over held-out
clients, which adapt on their train split, by the method's rule for new clients, and are measured on
their test split. Of methods whose participants have whole models of their own, the mean of these
models is scored on held-out clients too, as it is. Nothing here changes training state, so
evaluating more often changes no result.

The steps below are the engine's own: an order may name them beside the steps of a method.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core import Algorithm, Client, ClientId, Examples, Mean, Predictor, Total, Tree
from ..data import Splits
from ..metrics import METRICS, agreement, criterion_in

NUM_QUANTILES = 200  # of likelihoods; verdicts at a stated false-alarm rate are made from them
NUM_BINS = 2400  # of the likelihoods' histograms
MIN_NARROWING = 20  # a range is narrowed if it becomes shorter by more
MAX_NARROWINGS = 5
BINS_REACH = 12.0  # deviations on both sides of the mean: a bin is a hundredth of a deviation

Range = tuple[float, float]
Evaluation = Callable[[Algorithm, Client, Splits, Tree | None, Tree, Mapping[str, Any]], Any]


# --- at a client ----------------------------------------------------------------------------------


def evaluate(
    algorithm: Algorithm,
    client: Client,
    splits: Splits,
    state: Tree | None,
    message: Tree,
    options: Mapping[str, Any],
) -> Tree:
    """Scores on the splits that `options` names, and what is worth knowing of the client."""
    new = options["new"]
    if new and not client.size and algorithm.unadapted(client, message) is None:
        return {"scores": {}, "inspect": {}}  # there is nothing that it could predict with
    predictor = Predictor.prepare(
        algorithm, client, state, message, new=new, tune_epochs=options["tune_epochs"]
    )
    scores = {
        name: _scores(predictor, getattr(splits, name))
        for name in options["splits"]
        if len(getattr(splits, name))
    }
    return {"scores": scores, "inspect": predictor.inspect()}


def add_personal_model(
    algorithm: Algorithm,
    client: Client,
    _splits: Splits,
    state: Tree | None,
    _message: Tree,
    _options: Mapping[str, Any],
) -> dict[str, Mean]:
    """The client's own model, for the mean over clients; nothing of one that has not trained."""
    own = None if state is None else algorithm.personal_model(client, state)
    return {} if own is None else {"own": Mean(own, 1, around=own)}


def score_model(
    _algorithm: Algorithm,
    client: Client,
    splits: Splits,
    _state: Tree | None,
    message: Tree,
    _options: Mapping[str, Any],
) -> Tree:
    """Scores of the model in `message` as it is, on the test split."""
    examples, objective = splits.test, client.objective
    if not len(examples):
        return {"scores": {}}
    found = objective.in_own_unit(client.predictions(message, examples))
    return {"scores": {"test": objective.scores(found, objective.in_own_unit(examples.y))}}


def sum_likelihoods(
    algorithm: Algorithm,
    client: Client,
    splits: Splits,
    _state: Tree | None,
    message: Tree,
    _options: Mapping[str, Any],
) -> Total:
    """Moments of the held-out examples' log-likelihoods: where they lie, and how far apart."""
    found = algorithm.likelihood(client, None, message, splits.validation).by_name()
    return Total({name: moments(values) for name, values in found.items()})


def count_likelihoods(
    algorithm: Algorithm,
    client: Client,
    splits: Splits,
    _state: Tree | None,
    message: Tree,
    options: Mapping[str, Any],
) -> Total:
    """Histograms of the held-out examples' log-likelihoods, within the ranges that are given."""
    found = algorithm.likelihood(client, None, message, splits.validation).by_name()
    ranges = options["ranges"]
    return Total({name: histogram(found[name], ranges[name]) for name in ranges})


EVALUATION_STEPS: dict[str, Evaluation] = {
    "evaluate": evaluate,
    "add_personal_model": add_personal_model,
    "score_model": score_model,
    "sum_likelihoods": sum_likelihoods,
    "count_likelihoods": count_likelihoods,
}


def _scores(predictor: Predictor, examples: Examples) -> dict[str, float]:
    values: dict[str, float] = {"examples": len(examples)}
    if predictor.algorithm.classifies:
        values |= predictor.scores(examples)
    if predictor.algorithm.scores_samples:
        values["log_likelihood"] = float(predictor.likelihood(examples).joint.mean())
    return values


def moments(values: Tensor) -> Tensor:
    """How many of the values are finite, their sum and the sum of their squares."""
    finite = values[values.isfinite()].double()
    count = torch.tensor(float(len(finite)), dtype=torch.float64)
    return torch.stack([count, finite.sum(), (finite**2).sum()])


def histogram(values: Tensor, bounds: Sequence[float]) -> Tensor:
    """(NUM_BINS,) how many values lie in each of equal bins; those outside count at the ends."""
    low, high = bounds
    known = values[~values.isnan()].clamp(low, high).numpy()
    return torch.from_numpy(np.histogram(known, np.linspace(low, high, NUM_BINS + 1))[0])


# --- at the server --------------------------------------------------------------------------------


def summarise(replies: Mapping[ClientId, Tree], split: str) -> dict[str, Any]:
    """Means over clients, their spread, the worst tenth by the criterion, and how many clients
    count.

    A client without examples in the split has no scores, and is left out.
    """
    scored = [
        reply["scores"][split] for _, reply in sorted(replies.items()) if split in reply["scores"]
    ]
    if not scored:
        return {}
    names = [name for name in METRICS if any(name in values for values in scored)]
    summary: dict[str, Any] = {name: _mean([values[name] for values in scored]) for name in names}
    for name in names:
        if METRICS[name].has_spread:
            known = [values[name] for values in scored if not math.isnan(values[name])]
            summary[f"{name}_std"] = _std(known) if known else None
    criterion = criterion_in(summary)
    if criterion is not None and METRICS[criterion].has_spread:
        summary["worst_tenth"] = _worst_tenth(criterion, [values[criterion] for values in scored])
    return {**summary, "num_clients": len(scored)}


def _worst_tenth(criterion: str, values: Sequence[float]) -> float | None:
    """The mean over the tenth of the clients that are served worst."""
    ranked = sorted(values, reverse=not METRICS[criterion].higher_is_better)
    return _mean(ranked[: max(1, round(len(ranked) / 10))])


def client_rows(replies: Mapping[ClientId, Tree], *, new: bool) -> dict[ClientId, dict[str, Any]]:
    """A row per client: its scores on the test split, on others under their names, and more."""
    rows = {}
    for id, reply in replies.items():
        scores = reply["scores"]
        row: dict[str, Any] = {"new": new, **none_for_nan(scores.get("test", {}))}
        for split in ("validation", "train"):
            values = none_for_nan(scores.get(split, {}))
            row |= {f"{split}_{name}": value for name, value in values.items()}
        rows[id] = {**row, **reply["inspect"]}
    return rows


def first_ranges(sums: Mapping[str, Tensor]) -> dict[str, Range]:
    """Where the bins of the histograms begin and end, from summed moments."""
    ranges = {}
    for name, values in sums.items():
        count, total, squares = values.tolist()
        if count:
            mean = total / count
            reach = BINS_REACH * math.sqrt(max(squares / count - mean**2, 0.0)) or 1.0
            ranges[name] = (mean - reach, mean + reach)
    return ranges


def narrower_ranges(
    counts: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> dict[str, Range] | None:
    """Ranges that hold the wanted quantiles more closely; None where none would be worth while.

    A few values far away make the first range so wide that nearly all others share a bin.
    """
    closer = {}
    for name, (low, high) in ranges.items():
        filled = np.cumsum(counts[name].numpy())
        if not filled[-1]:
            return None
        first = int(np.searchsorted(filled, filled[-1] / NUM_QUANTILES / 2))
        last = int(np.searchsorted(filled, filled[-1] * (1 - 1 / NUM_QUANTILES / 2)))
        edges = np.linspace(low, high, NUM_BINS + 1)
        closer[name] = (float(edges[first]), float(edges[min(last + 1, NUM_BINS)]))
    worth_while = any(
        closer[name][1] - closer[name][0] < (high - low) / MIN_NARROWING
        for name, (low, high) in ranges.items()
    )
    return closer if worth_while else None


def thresholds(
    counts: Mapping[str, Tensor], ranges: Mapping[str, Range]
) -> dict[str, list[float]] | None:
    """Quantiles 0..1 of the log-likelihoods in the histograms, even steps apart."""
    levels = np.linspace(0, 1, NUM_QUANTILES + 1)
    found = {}
    for name, (low, high) in ranges.items():
        cumulated = np.concatenate([[0], np.cumsum(counts[name].numpy())])
        if not cumulated[-1]:
            continue
        edges = np.linspace(low, high, NUM_BINS + 1)
        # Where nothing was counted the sum stands still: levels lie between edges where it rises.
        rises = np.flatnonzero(np.diff(cumulated))
        bounds = np.unique(np.concatenate([rises, rises + 1]))
        reached = cumulated[bounds] / cumulated[-1]
        found[name] = np.interp(levels, reached, edges[bounds]).tolist()
    return found or None


def grouping(
    replies: Mapping[ClientId, Tree], groups: Mapping[ClientId, Mapping[str, str]]
) -> dict[str, float] | None:
    """Agreement of the groups that a method reports with the true ones, where there are any.

    The true ones are concepts, or else the partition's.
    """
    for kind in ("concept", "partition"):
        ids = [
            id
            for id, reply in sorted(replies.items())
            if "group" in reply["inspect"] and kind in groups.get(id, {})
        ]
        if len({groups[id][kind] for id in ids}) > 1:
            found = [replies[id]["inspect"]["group"] for id in ids]
            return agreement(found, [groups[id][kind] for id in ids])._asdict()
    return None


def none_for_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None for what is undefined: JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in values.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None


def _std(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))
