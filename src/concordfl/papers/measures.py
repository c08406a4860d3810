"""What is looked at in finished runs beyond their figures, by name.

A measure gives numbers by name, or `panels`: pictures as `report.pictures` draws them.
"""

from collections.abc import Callable
from typing import Any

from ..deploy.finished import FinishedRun
from ..study.encoders import encoder_tables
from .label_shares import label_shares

Measure = Callable[[FinishedRun], dict[str, Any]]

MEASURES: dict[str, Measure] = {
    "encoders": lambda finished: dict(encoder_tables(finished)),
    "label-shares": label_shares,
}
