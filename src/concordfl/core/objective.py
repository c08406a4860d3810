"""Objectives: what a network's outputs mean, how wrong they are, and by which figures they are
judged.

A loss is the negative log-likelihood of an example, so that exp(-loss) is what methods that mix
models weigh them by. Losses are named here and nowhere else.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..metrics import CRITERIA, score, score_multi_label, score_regression
from .errors import SettingError
from .modules import FirstOutputs, Rescaled
from .settings import Count, Finite, Positive, Settings, received

Kind = Literal["classification", "regression", "multi-label"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# what a method supports that needs no more of an objective than its loss
ANY_KIND: frozenset[str] = frozenset(KINDS)
HALF_LOG_TWO_PI = math.log(2 * math.pi) / 2
# of the logarithm of a learnt deviation, on both sides of 0: from 0.02 to 55 deviations of a target
MAX_LOG_DEVIATION = 4.0


@dataclass(frozen=True)
class ObjectiveChoice(Settings):
    """The `[objective]` section of a run file: what is to be predicted, and by which loss."""

    # auto: targets that are no whole numbers are values, several columns of 0 and 1 are labels
    kind: Literal["auto", "classification", "regression", "multi-label"] = "auto"
    # of regression: a Gaussian's log-likelihood, or ½ squared error
    likelihood: Literal["gaussian", "squared"] = "gaussian"
    # of the Gaussian, in deviations of the target: how sharply mixtures tell models apart
    deviation: Positive | Literal["learnt"] = 0.5
    # of classification: examples of rare classes count for more, so that all classes weigh the same
    class_weights: Literal["balanced"] | None = None

    def refuse_unused(self, kind: Kind) -> None:
        """Refuse options that an objective of this kind would ignore."""
        default = ObjectiveChoice()
        used = {"classification": ("class_weights",), "regression": ("likelihood", "deviation")}
        for name in ("likelihood", "deviation", "class_weights"):
            value = getattr(self, name)
            if value != getattr(default, name) and name not in used.get(kind, ()):
                owner = next(other for other, names in used.items() if name in names)
                raise SettingError(f"objective.{name} is for {owner}, got {value!r} for {kind}")
        if self.likelihood == "squared" and self.deviation != default.deviation:
            raise SettingError(
                "objective.deviation is for likelihood = 'gaussian', got 'squared' with "
                f"{self.deviation!r}"
            )


@dataclass(frozen=True)
class Objective(Settings, ABC):
    """What is to be predicted, and what a wrong prediction costs."""

    kind: ClassVar[Kind]

    @property
    def criterion(self) -> str:
        """The name of the metric that rounds are selected and clients ranked by."""
        return CRITERIA[self.kind]

    @property
    def num_classes(self) -> int:
        """How many classes there are; 0 where targets are no classes."""
        return 0

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """How many numbers a network gives for an example."""

    @property
    def num_predicted(self) -> int:
        """How many numbers a prediction has: one per class, target or label."""
        return self.num_outputs

    @property
    @abstractmethod
    def outputs_are(self) -> str:
        """What these numbers are, as the rule for networks says it."""

    @abstractmethod
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(N,) the negative log-likelihood of each target."""

    @abstractmethod
    def readout(self) -> nn.Module:
        """What turns outputs (N, O) into predictions, which may be averaged."""

    def predictions(self, outputs: Tensor) -> Tensor:
        """What the outputs (N, O) predict."""
        return cast(Tensor, self.readout()(outputs))

    @abstractmethod
    def scores(self, predictions: Any, targets: Any) -> dict[str, float]:
        """The metrics of predictions, and the number of examples; arrays or tensors on the CPU,
        both in the targets' own unit.
        """

    def weights(self, targets: Tensor) -> Tensor | None:
        """(N,) how much each example counts in training; None for 1."""
        return None

    def unit(self) -> nn.Module | None:
        """What brings predictions into the targets' own unit, where they are standardised."""
        return None

    def in_own_unit(self, values: Tensor) -> Tensor:
        """Predictions or targets as the user knows them, where training knows them standardised."""
        unit = self.unit()
        return values if unit is None else cast(Tensor, unit(values))


@dataclass(frozen=True)
class Classification(Objective):
    """One of several classes: cross-entropy of the logits."""

    kind: ClassVar[Kind] = "classification"

    num_classes: Count = 2  # a field here
    class_weights: tuple[Positive, ...] | None = None  # (Y,) of examples in training

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.class_weights is not None and len(self.class_weights) != self.num_classes:
            raise SettingError(
                f"class_weights must be {self.num_classes} numbers, one per class, got "
                f"{len(self.class_weights)}"
            )

    @property
    def num_outputs(self) -> int:
        return self.num_classes

    @property
    def outputs_are(self) -> str:
        return "one per class"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def readout(self) -> nn.Module:
        """(N, Y) class probabilities."""
        return nn.Softmax(-1)

    def scores(self, predictions: Any, targets: Any) -> dict[str, float]:
        return score(np.asarray(predictions), np.asarray(targets))._asdict()

    def weights(self, targets: Tensor) -> Tensor | None:
        if self.class_weights is None:
            return None
        return torch.tensor(self.class_weights)[targets]


@dataclass(frozen=True)
class Regression(Objective):
    """One or several numbers, standardised: squared error, or the likelihood of a Gaussian.

    The gradient of a Gaussian's loss is scaled by its variance, which makes it that of ½ (y - m)²
    for the mean m: how sharply models are told apart by their likelihoods does not change how fast
    they learn. The minimum, for any one deviation, is the same.
    """

    kind: ClassVar[Kind] = "regression"

    num_targets: Count = 1
    likelihood: Literal["gaussian", "squared"] = "gaussian"
    deviation: Positive | Literal["learnt"] = 0.5  # of a Gaussian, in deviations of the target
    # the targets' own mean and deviation, (D,); none for targets that are taken as they are
    target_mean: tuple[Finite, ...] = ()
    target_deviation: tuple[Positive, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("target_mean", "target_deviation"):
            if len(getattr(self, name)) not in (0, self.num_targets):
                raise SettingError(
                    f"{name} must be {self.num_targets} numbers, one per target, got "
                    f"{len(getattr(self, name))}"
                )

    @property
    def learns_deviation(self) -> bool:
        return self.likelihood == "gaussian" and self.deviation == "learnt"

    @property
    def num_outputs(self) -> int:
        return 2 * self.num_targets if self.learns_deviation else self.num_targets

    @property
    def num_predicted(self) -> int:
        return self.num_targets

    @property
    def outputs_are(self) -> str:
        if self.learns_deviation:
            return "a mean per target and then a log-deviation per target"
        return "one per target"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        means = outputs[:, : self.num_targets]
        squares = (targets.reshape(means.shape).to(means) - means).square() / 2
        if self.likelihood == "squared":
            return squares.sum(1)
        log_deviation = self._log_deviation(outputs)
        variance = (2 * log_deviation).exp()
        losses = squares / variance + log_deviation + HALF_LOG_TWO_PI
        scaled = losses * variance.detach()
        return (scaled + (losses - scaled).detach()).sum(1)

    def _log_deviation(self, outputs: Tensor) -> Tensor:
        """(N, D), or one number for all."""
        if not isinstance(self.deviation, str):
            return torch.tensor(math.log(self.deviation), dtype=outputs.dtype)
        bounded = torch.tanh(outputs[:, self.num_targets :] / MAX_LOG_DEVIATION)
        return MAX_LOG_DEVIATION * bounded

    def readout(self) -> nn.Module:
        """The means: (N,) of one target, (N, D) of several."""
        return FirstOutputs(self.num_targets)

    def scores(self, predictions: Any, targets: Any) -> dict[str, float]:
        return score_regression(np.asarray(predictions), np.asarray(targets))._asdict()

    def unit(self) -> nn.Module | None:
        return Rescaled(self.target_mean, self.target_deviation) if self.target_mean else None


@dataclass(frozen=True)
class MultiLabel(Objective):
    """Any number of labels, each there or not: the sum of their binary cross-entropies."""

    kind: ClassVar[Kind] = "multi-label"

    num_labels: Count = 2

    @property
    def num_outputs(self) -> int:
        return self.num_labels

    @property
    def outputs_are(self) -> str:
        return "one per label"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(outputs, targets.to(outputs), reduction="none")
        return each.sum(1)

    def readout(self) -> nn.Module:
        """(N, L) the probability of each label."""
        return nn.Sigmoid()

    def scores(self, predictions: Any, targets: Any) -> dict[str, float]:
        return score_multi_label(np.asarray(predictions), np.asarray(targets))._asdict()


OBJECTIVES: Mapping[str, type[Objective]] = {
    kind.kind: kind for kind in (Classification, Regression, MultiLabel)
}


def objective_of(kind: Any, table: Any) -> Objective:
    """The objective that a summary names, from its table; anything else is refused."""
    if kind not in KINDS:
        raise SettingError(f"the objective must be one of {', '.join(KINDS)}, got {received(kind)}")
    return OBJECTIVES[kind].from_table(table, "objective")
