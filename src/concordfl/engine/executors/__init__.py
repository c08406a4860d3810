"""Where client steps run."""

from .job import Executor, Job, Outcome, Task
from .processes import Processes
from .serial import Serial
from .workplace import Workplace

__all__ = ["Executor", "Job", "Outcome", "Processes", "Serial", "Task", "Workplace"]
