"""Where nodes are, and how orders reach them."""

from .base import Executor, Simulation
from .processes import Processes
from .serial import Serial

__all__ = ["Executor", "Processes", "Serial", "Simulation"]
