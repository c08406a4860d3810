"""Federated learning when clients' data differ.

>>> import concordfl as cf
>>> result = cf.run(data={"name": "digits"}, algorithm={"name": "fedavg"}, run={"rounds": 1})
"""

from .core import (
    About,
    Algorithm,
    Batch,
    CheckpointError,
    Client,
    ClientStepError,
    Cohort,
    ConcordError,
    DataError,
    Examples,
    FormatError,
    Key,
    Model,
    Replies,
    SettingError,
    Stage,
    Task,
    Training,
    Weighted,
    WorkerError,
    client_step,
    tree,
    weighted,
)
from .runner import Result, resume, run

__all__ = [
    "About",
    "Algorithm",
    "Batch",
    "CheckpointError",
    "Client",
    "ClientStepError",
    "Cohort",
    "ConcordError",
    "DataError",
    "Examples",
    "FormatError",
    "Key",
    "Model",
    "Replies",
    "Result",
    "SettingError",
    "Stage",
    "Task",
    "Training",
    "Weighted",
    "WorkerError",
    "client_step",
    "resume",
    "run",
    "tree",
    "weighted",
]
