"""Evaluation: every client with what it would really predict with.

Local figures are means over the participants' test splits. Global figures are means over held-out clients, which adapt on their
train split, by the method's rule for new clients, and are measured on their test split. Nothing here changes training state, so
evaluating more often changes no result.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core import Algorithm, Client, ClientId, Tree
from ..data import Splits
from ..metrics import agreement, score

SCORES = ("accuracy", "loss", "auc", "f1")


@dataclass(frozen=True)
class Examination:
    """The call that evaluates one client."""

    algorithm: Algorithm
    new: bool
    splits: tuple[str, ...]

    def __call__(self, client: Client, splits: Splits, state: Tree, message: Tree) -> tuple[Tree, Tree]:
        start = self.algorithm.init_client(client, message) if state is None else state
        adapted = self.algorithm.adapt(client, start, message, new=self.new)
        scores = {}
        for name in self.splits:
            examples = getattr(splits, name)
            if len(examples):
                probabilities = self.algorithm.predict(client, adapted, message, examples)
                scores[name] = score(probabilities.numpy(), examples.y.numpy())._asdict()
        return state, {"scores": scores, "inspect": self.algorithm.inspect(client, adapted, message)}


def summarise(replies: Mapping[ClientId, Tree], split: str) -> dict[str, Any]:
    """Means over clients, the spread and the worst tenth of accuracy, and the values per client."""
    scored = {id: reply["scores"][split] for id, reply in sorted(replies.items()) if split in reply["scores"]}
    if not scored:
        return {}
    summary: dict[str, Any] = {name: _mean([values[name] for values in scored.values()]) for name in SCORES}
    accuracies = sorted(values["accuracy"] for values in scored.values())
    tenth = accuracies[: max(1, round(len(accuracies) / 10))]
    summary["accuracy_std"] = _std(accuracies)
    summary["worst_tenth"] = _mean(tenth)
    summary["clients"] = {name: {id: _defined(values[name]) for id, values in scored.items()} for name in (*SCORES, "examples")}
    return summary


def grouping(
    replies: Mapping[ClientId, Tree], groups: Mapping[ClientId, Mapping[str, str]], kind: str = "concept"
) -> dict[str, float] | None:
    """Agreement of the groups that a method reports with the true ones, where both are known."""
    ids = [id for id, reply in sorted(replies.items()) if "group" in reply["inspect"] and kind in groups.get(id, {})]
    if not ids:
        return None
    return agreement([replies[id]["inspect"]["group"] for id in ids], [groups[id][kind] for id in ids])._asdict()


def _defined(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _mean(values: Sequence[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return math.fsum(known) / len(known) if known else None


def _std(values: Sequence[float]) -> float:
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / len(values))
