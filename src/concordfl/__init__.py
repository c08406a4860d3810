"""Federated learning when clients' data differ.

>>> import concordfl as cf
>>> result = cf.run(data={"name": "digits"}, algorithm={"name": "fedavg"}, run={"rounds": 1})
"""

import typing

if typing.TYPE_CHECKING:
    from .core import (
        About,
        Aggregation,
        Algorithm,
        Batch,
        CheckpointError,
        Chosen,
        Client,
        ClientStepError,
        Cohort,
        ConcordError,
        DataError,
        Examples,
        FormatError,
        Key,
        Mean,
        Model,
        Replies,
        SettingError,
        Stage,
        Task,
        Total,
        Training,
        WorkerError,
        client_step,
        tree,
    )
    from .result import Result, load
    from .runner import resume, run

__all__ = [
    "About",
    "Aggregation",
    "Algorithm",
    "Batch",
    "CheckpointError",
    "Chosen",
    "Client",
    "ClientStepError",
    "Cohort",
    "ConcordError",
    "DataError",
    "Examples",
    "FormatError",
    "Key",
    "Mean",
    "Model",
    "Replies",
    "Result",
    "SettingError",
    "Stage",
    "Task",
    "Total",
    "Training",
    "WorkerError",
    "client_step",
    "load",
    "resume",
    "run",
    "tree",
]


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Public names are imported when they are first used: the command line must be able to
        answer before torch is loaded, which takes seconds.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import core, result, runner

        homes = {"Result": result, "load": result, "resume": runner, "run": runner}
        found = getattr(homes.get(name, core), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return __all__
