"""What is looked at in finished runs beyond their figures, by name.

A measure gives numbers by name, or `panels`: pictures as `report.pictures` draws them.
"""

from collections.abc import Callable
from typing import Any

from ..deploy.finished import FinishedRun

Measure = Callable[[FinishedRun], dict[str, Any]]

MEASURES: dict[str, Measure] = {}
