"""The metrics by their names: what tables call them, and which way is better."""

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """How a figure is read."""

    title: str
    higher_is_better: bool = True
    is_share: bool = False  # from 0 to 1, shown in percent; others are in a unit of their own
    has_spread: bool = True  # whether its deviation over clients is recorded


# In the order in which records have them.
METRICS = {
    "accuracy": Metric("accuracy", is_share=True),
    "rmse": Metric("RMSE", higher_is_better=False),
    "mae": Metric("MAE", higher_is_better=False),
    "r2": Metric("R²"),
    "hamming_accuracy": Metric("Hamming accuracy", is_share=True),
    "subset_accuracy": Metric("subset accuracy", is_share=True),
    "macro_f1": Metric("macro F1", is_share=True),
    "loss": Metric("loss", higher_is_better=False, has_spread=False),
    "auc": Metric("AUC", is_share=True),
    "f1": Metric("F1", is_share=True),
    "log_likelihood": Metric("log-likelihood", has_spread=False),
}
# The headline metric of each kind of objective: rounds are selected and clients ranked by it.
CRITERIA = {
    "classification": "accuracy",
    "regression": "rmse",
    "multi-label": "hamming_accuracy",
}


def is_better(name: str, value: float, than: float) -> bool:
    """Whether a value of the metric `name` is better than another."""
    return value > than if METRICS[name].higher_is_better else value < than


def criterion_in(figures: Mapping[str, object]) -> str | None:
    """The metric among `figures` to go by; a method that predicts nothing has its likelihood."""
    known = (*CRITERIA.values(), "log_likelihood")
    return next((name for name in known if figures.get(name) is not None), None)
