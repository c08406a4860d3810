"""Scenarios: a partition and a list of shifts turn a data set into a federation of clients that
differ.
"""

from .build import Scenario, build_federation
from .named import NAMED
from .partition import PARTITIONS, Partition
from .shift import SHIFTS, Shift

__all__ = ["NAMED", "PARTITIONS", "SHIFTS", "Partition", "Scenario", "Shift", "build_federation"]
