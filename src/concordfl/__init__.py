"""Federated learning when clients' data differ.

>>> import concordfl as cf
>>> result = cf.run(data={"name": "digits"}, algorithm={"name": "fedavg"}, run={"rounds": 1})
"""

import typing

if typing.TYPE_CHECKING:
    from . import algorithms, track
    from .comparison import compare
    from .core import (
        ANY_KIND,
        About,
        Aggregation,
        Algorithm,
        Batch,
        CheckpointError,
        Chosen,
        Classification,
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
        MultiLabel,
        Objective,
        Regression,
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
    from .diagnosis.run import Diagnosis, diagnose
    from .engine.experiment import Event, Stop
    from .estimator import FederatedClassifier, FederatedRegressor
    from .result import Result, load
    from .runner import resume, run
    from .study.compare import Comparison
    from .study.tune import Tuning
    from .tuning import tune

__all__ = [
    "ANY_KIND",
    "About",
    "Aggregation",
    "Algorithm",
    "Batch",
    "CheckpointError",
    "Chosen",
    "Classification",
    "Client",
    "ClientStepError",
    "Cohort",
    "Comparison",
    "ConcordError",
    "DataError",
    "Diagnosis",
    "Event",
    "Examples",
    "FederatedClassifier",
    "FederatedRegressor",
    "FormatError",
    "Key",
    "Mean",
    "Model",
    "MultiLabel",
    "Objective",
    "Regression",
    "Replies",
    "Result",
    "SettingError",
    "Stage",
    "Stop",
    "Task",
    "Total",
    "Training",
    "Tuning",
    "WorkerError",
    "algorithms",
    "client_step",
    "compare",
    "diagnose",
    "load",
    "resume",
    "run",
    "track",
    "tree",
    "tune",
]


# where public names are that are not of `core`
_HOMES = {
    "Comparison": "study.compare",
    "compare": "comparison",
    "Diagnosis": "diagnosis.run",
    "diagnose": "diagnosis.run",
    "Event": "engine.experiment",
    "FederatedClassifier": "estimator",
    "FederatedRegressor": "estimator",
    "Result": "result",
    "Stop": "engine.experiment",
    "load": "result",
    "resume": "runner",
    "run": "runner",
    "Tuning": "study.tune",
    "tune": "tuning",
}

if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Public names are imported when they are first used: the command line must be able to
        answer before torch is loaded, which takes seconds.
        """
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import importlib

        if name in ("algorithms", "track"):
            return importlib.import_module(f"{__name__}.{name}")
        home = importlib.import_module(f"{__name__}.{_HOMES.get(name, 'core')}")
        found = globals()[name] = getattr(home, name)
        return found


def __dir__() -> list[str]:
    return __all__
