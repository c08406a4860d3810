"""Runs as a report sees them: their figures, who took part, what was found of every client."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ..core import ClientId
from ..metrics import METRICS
from . import verdict
from .document import Gallery
from .pictures import Panel

Rows = Mapping[ClientId, Mapping[str, Any]]  # figures of every client in an evaluated round
TRUE_KINDS = ("concept", "partition")  # of groups, the first that tells clients apart


@dataclass(frozen=True)
class Portrait:
    """What a finished run shows only with its data at hand."""

    labels_by_model: Panel | None = None
    novelty: Sequence[Panel] = ()
    typical: Sequence[Gallery] = ()
    problem: str | None = None  # why there is none


@dataclass(frozen=True, eq=False)
class Run:
    """One method with one seed. A kept result has figures only."""

    row: str  # the method, with settings that were varied
    seed: int
    figures: Mapping[str, Any]  # as they are kept
    records: Sequence[Mapping[str, Any]] = ()
    clients: Sequence[Mapping[str, Any]] = ()  # who took part, as the run's folder has it
    rows: Rows = field(default_factory=dict)  # of the last evaluated round
    read_rows: Callable[[int], Rows] | None = None  # of another one
    classes: Sequence[str] = ()
    task: str = ""  # equal where data and scenario are
    config: str = ""
    command: str = ""
    portrait: Portrait = Portrait()
    diagnosis: Mapping[str, Any] | None = None  # what diagnosis.json holds of its clients

    @property
    def name(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def method(self) -> str:
        return str(self.figures.get("algorithm") or self.row.partition(",")[0])

    @cached_property
    def participants(self) -> dict[ClientId, Mapping[str, Any]]:
        """What was found of those that took part in training."""
        return {id: row for id, row in self.rows.items() if not row["new"]}

    @cached_property
    def true_groups(self) -> dict[ClientId, str]:
        """Nothing where nobody knows them, or all are alike."""
        for kind in TRUE_KINDS:
            found = {
                client["id"]: client["groups"][kind]
                for client in self.clients
                if kind in client.get("groups", {})
            }
            if len(set(found.values())) > 1:
                return found
        return {}

    @cached_property
    def weights(self) -> dict[ClientId, dict[str, float]]:
        """How much every participant uses each model; a method that puts clients into groups has
        them use one. Nothing for other methods.
        """
        return mixture_weights(self.participants)

    @property
    def models(self) -> list[str]:
        return list(next(iter(self.weights.values()), {}))


def mixture_weights(rows: Rows) -> dict[ClientId, dict[str, float]]:
    """By client and model."""
    found = {id: _own_weights(row) for id, row in rows.items()}
    known = {id: own for id, own in found.items() if own is not None}
    if known:
        return known
    groups = {id: group_name(row["group"]) for id, row in rows.items() if "group" in row}
    names = sorted(set(groups.values()), key=_natural)
    return {id: {name: float(name == own) for name in names} for id, own in groups.items()}


def group_name(group: Any) -> str:
    """Groups are numbers or names."""
    return str(int(group)) if isinstance(group, float) else str(group)


def _own_weights(row: Mapping[str, Any]) -> dict[str, float] | None:
    own = row.get("weights")
    if own is None:
        return None
    if isinstance(own, Mapping):
        return {str(model): float(weight) for model, weight in own.items()}
    values = np.asarray(own, dtype=float)
    if values.ndim == 2:  # Gaussians times classifiers
        return {
            f"{g}/{c}": float(value)
            for g, line in enumerate(values)
            for c, value in enumerate(line)
        }
    return {str(model): float(value) for model, value in enumerate(values)}


def _natural(name: str) -> tuple[int, str]:
    return (int(name) if name.isascii() and name.isdigit() else -1, name)


@dataclass(frozen=True, eq=False)
class Runs:
    """All that are shown together, in the order of their rows."""

    all: Sequence[Run]

    @cached_property
    def by_row(self) -> dict[str, list[Run]]:
        found: dict[str, list[Run]] = {}
        for run in self.all:
            found.setdefault(run.row, []).append(run)
        return found

    @cached_property
    def figures(self) -> dict[str, list[Mapping[str, Any]]]:
        """As verdicts read them."""
        return {row: [run.figures for run in runs] for row, runs in self.by_row.items()}

    @cached_property
    def firsts(self) -> list[Run]:
        """The first seed of every row."""
        return [runs[0] for runs in self.by_row.values()]

    @cached_property
    def criterion(self) -> str | None:
        return verdict.criterion_of(self.figures)

    @property
    def unit(self) -> float:
        """By which figures of the criterion are multiplied to be shown."""
        return 100.0 if self.criterion is not None and METRICS[self.criterion].is_share else 1.0

    @property
    def criterion_label(self) -> str:
        if self.criterion is None:
            return ""
        metric = METRICS[self.criterion]
        return metric.title + " in percent" * metric.is_share

    @cached_property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.all})

    def row_of(self, method: str) -> str | None:
        """The best row of a method; None where it was not run."""
        if self.criterion is None:
            return None
        ranked = verdict.ranking(self.figures, self.criterion)
        return next((row for row in ranked if self.by_row[row][0].method == method), None)

    def scores(self, run: Run) -> dict[ClientId, float]:
        """The criterion on every participant's test examples."""
        if self.criterion is None:
            return {}
        if not run.rows:
            return dict(run.figures.get("client_scores") or {})
        return {
            id: float(row[self.criterion])
            for id, row in run.participants.items()
            if row.get(self.criterion) is not None
        }

    def mean_scores(self, row: str) -> dict[ClientId, float]:
        """Over seeds, of clients that have one with each of them."""
        each = [self.scores(run) for run in self.by_row[row]]
        common = [id for id in each[0] if all(id in one for one in each)]
        return {id: float(np.mean([one[id] for one in each])) for id in common}
