"""RMSE, MAE and R² of predicted values: means over the targets where there are several, as
scikit-learn has them.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class RegressionScores(NamedTuple):
    """Undefined values (no examples, or an R² of a target that does not vary) are NaN."""

    rmse: float
    mae: float
    r2: float
    examples: int


def score_regression(
    predicted: NDArray[np.floating], targets: NDArray[np.floating]
) -> RegressionScores:
    """From predictions and targets, (N,) or (N, D) each."""
    if not len(targets):
        return RegressionScores(math.nan, math.nan, math.nan, 0)
    truth = np.asarray(targets, dtype=np.float64).reshape(len(targets), -1)
    errors = np.asarray(predicted, dtype=np.float64).reshape(truth.shape) - truth
    squares = (errors**2).mean(axis=0)
    return RegressionScores(
        rmse=float(np.sqrt(squares).mean()),
        mae=float(np.abs(errors).mean(axis=0).mean()),
        r2=_mean_r2(squares, truth),
        examples=len(targets),
    )


def _mean_r2(squares: NDArray[np.floating], truth: NDArray[np.floating]) -> float:
    """Over the targets that vary."""
    varies = np.ptp(truth, axis=0) > 0
    if not varies.any():
        return math.nan
    return float((1 - squares[varies] / truth[:, varies].var(axis=0)).mean())
