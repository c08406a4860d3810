"""Evaluation: every client with what it would really predict with.

Local figures are means over the participants' test splits. Global figures are means over held-out
clients, which adapt on their train split, by the method's rule for new clients, and are measured on
their test split. Nothing here changes training state, so evaluating more often changes no result.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core import Algorithm, Client, ClientId, Examples, Tree
from ..data import Splits
from ..metrics import agreement, score

SCORES = ("accuracy", "loss", "auc", "f1", "log_likelihood")
QUANTILES = 200  # of held-out scores, from which verdicts at a stated false-alarm rate are made


@dataclass(frozen=True)
class Examination:
    """The call that evaluates one client; a new one may tune what it receives."""

    algorithm: Algorithm
    new: bool
    splits: tuple[str, ...]
    tune_epochs: int = 0

    def __call__(
        self, client: Client, splits: Splits, state: Tree, message: Tree
    ) -> tuple[Tree, Tree]:
        start = self.algorithm.init_client(client, message) if state is None else state
        adapted = self.algorithm.adapt(client, start, message, new=self.new)
        if self.tune_epochs:
            message = self.algorithm.tuned(client, adapted, message, self.tune_epochs)
        scores = {
            name: self._scores(client, adapted, message, getattr(splits, name))
            for name in self.splits
            if len(getattr(splits, name))
        }
        reply = {"scores": scores, "inspect": self.algorithm.inspect(client, adapted, message)}
        if self.algorithm.scores_samples and not self.new:
            held_out = self.algorithm.likelihood(client, None, message, splits.validation)
            reply["novelty"] = {"log_x": held_out.log_x, "joint": held_out.joint}
        return state, reply

    def _scores(
        self, client: Client, adapted: Tree, message: Tree, examples: Examples
    ) -> dict[str, float]:
        values: dict[str, float] = {"examples": len(examples)}
        if self.algorithm.classifies:
            values |= score(
                self.algorithm.predict(client, adapted, message, examples).numpy(),
                examples.y.numpy(),
            )._asdict()
        if self.algorithm.scores_samples:
            values["log_likelihood"] = float(
                self.algorithm.likelihood(client, adapted, message, examples).joint.mean()
            )
        return values


def summarise(replies: Mapping[ClientId, Tree], split: str) -> dict[str, Any]:
    """Means over clients, the spread and the worst tenth of accuracy, and the values per client."""
    scored = {
        id: reply["scores"][split]
        for id, reply in sorted(replies.items())
        if split in reply["scores"]
    }
    if not scored:
        return {}
    names = [name for name in SCORES if any(name in values for values in scored.values())]
    summary: dict[str, Any] = {
        name: _mean([values[name] for values in scored.values()]) for name in names
    }
    if "accuracy" in names:
        accuracies = sorted(values["accuracy"] for values in scored.values())
        summary["accuracy_std"] = _std(accuracies)
        for name in ("auc", "f1"):
            known = [values[name] for values in scored.values() if not math.isnan(values[name])]
            summary[f"{name}_std"] = _std(known) if known else None
        summary["worst_tenth"] = _mean(accuracies[: max(1, round(len(accuracies) / 10))])
    summary["clients"] = {
        name: {id: defined(values[name]) for id, values in scored.items()}
        for name in (*names, "examples")
    }
    return summary


def thresholds(replies: Mapping[ClientId, Tree]) -> dict[str, list[float]] | None:
    """Quantiles 0..1 of the held-out examples' log-likelihoods, pooled over clients, where a method
    has them.
    """
    pooled = [reply["novelty"] for _, reply in sorted(replies.items()) if "novelty" in reply]
    if not pooled or not sum(len(part["log_x"]) for part in pooled):
        return None
    steps = torch.linspace(0, 1, QUANTILES + 1, dtype=torch.float64)
    return {
        name: torch.quantile(torch.cat([part[name] for part in pooled]).double(), steps).tolist()
        for name in pooled[0]
    }


def grouping(
    replies: Mapping[ClientId, Tree], groups: Mapping[ClientId, Mapping[str, str]]
) -> dict[str, float] | None:
    """Agreement of the groups that a method reports with the true ones, where there are any:
    concepts, or the partition's.
    """
    for kind in ("concept", "partition"):
        ids = [
            id
            for id, reply in sorted(replies.items())
            if "group" in reply["inspect"] and kind in groups.get(id, {})
        ]
        if len({groups[id][kind] for id in ids}) > 1:
            return agreement(
                [replies[id]["inspect"]["group"] for id in ids], [groups[id][kind] for id in ids]
            )._asdict()
    return None


def defined(value: float) -> float | None:
    """None for what is undefined: JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None


def _std(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))
