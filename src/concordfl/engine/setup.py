"""Setup: what reaches a node once, before the first order. Configuration only."""

from dataclasses import dataclass
from typing import Literal

from ..core import Aggregation, Algorithm, Model, Objective, SettingError, Training
from .evaluate import EVALUATION_STEPS

OnError = Literal["stop", "skip"]


@dataclass(frozen=True)
class Setup:
    """The method, the network and how to train it: the same at every node of a run."""

    algorithm: Algorithm
    model: Model
    training: Training
    objective: Objective
    seed: int
    aggregation: Aggregation = Aggregation()  # noqa: RUF009 - frozen
    on_error: OnError = "stop"

    def __post_init__(self) -> None:
        for name in EVALUATION_STEPS:
            if getattr(getattr(self.algorithm, name, None), "is_client_step", False):
                raise SettingError(
                    f"a client step must not have the name of one of the engine's, got {name!r}"
                )
        if self.aggregation.steps and not self.algorithm.averages:
            raise SettingError(
                "aggregation.server_lr and server_momentum need a method whose new models are "
                f"means of the clients', got {type(self.algorithm).__name__}"
            )
        if self.algorithm.needs_sgd and self.training.optimizer != "sgd":
            raise SettingError(
                f"{type(self.algorithm).__name__} needs training.optimizer = 'sgd', whose steps "
                f"are multiples of gradients, got {self.training.optimizer!r}"
            )
        methods = (self.algorithm, *self.algorithm.parts().values())
        if self.aggregation.pad_choices and not any(method.chooses for method in methods):
            raise SettingError(
                "aggregation.pad_choices needs a method whose clients choose among models and "
                f"reply for one of them, got {type(self.algorithm).__name__}"
            )
