"""Centralized: one model trained on all clients' examples pooled. The ceiling for a global model;
for simulation only.

The engine pools the training data into a single client; a round is one visit to it.
"""

from dataclasses import dataclass
from typing import ClassVar

from ..core import About
from .fedavg import FedAvg


@dataclass(frozen=True)
class Centralized(FedAvg):
    about = About("Centralized", "-", 0, travels="all data", private="nothing", cost="1")
    pools_data: ClassVar[bool] = True
