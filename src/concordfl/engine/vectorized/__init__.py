"""Clients of small dense networks computed together: many clients in one tensor operation."""

from .node import VectorNode
from .obstacles import TOLERANCE, find_obstacle

__all__ = ["TOLERANCE", "VectorNode", "find_obstacle"]
