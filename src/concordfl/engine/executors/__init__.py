"""Where nodes are, and how orders reach them."""

from .base import Executor, FarExecutor, Simulation
from .processes import Processes
from .serial import Serial

__all__ = ["Executor", "FarExecutor", "Processes", "Serial", "Simulation"]
