"""Where nodes are, and how orders reach them."""

from .base import Executor, FarExecutor, Simulation
from .processes import Processes
from .serial import Serial
from .vectorized import Vectorized

__all__ = ["Executor", "FarExecutor", "Processes", "Serial", "Simulation", "Vectorized"]
