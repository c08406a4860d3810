"""MLflow: figures as metrics, settings as parameters, in a database of the run's own or in the
store that MLFLOW_TRACKING_URI names.
"""

import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..engine.files import make_folder
from ..engine.observers import Watched
from .figures import Point, Value, plain_text, selected, settings
from .tracker import RUN_ID, Sheet, Tracker

MAX_PARAMS, MAX_METRICS = 100, 1000  # in one request, by MLflow's rule


class MLflow(Tracker):
    """A run in MLflow, called like the run's folder, in the experiment MLFLOW_EXPERIMENT_NAME or
    `concordfl`.

    The id of the MLflow run is kept in the run's folder, so that it is continued. A `folder` goes
    before MLFLOW_TRACKING_URI.
    """

    name = library = "mlflow"

    def open(self, run: Watched) -> Sheet:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI") if self.folder is None else None
        artifacts = None
        if not uri:
            folder = self.folder_of(run)
            uri = f"sqlite:///{quote(str(folder / 'mlflow.db'))}"
            artifacts = (folder / "artifacts").as_uri()
        client = MlflowClient(uri)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "concordfl")
        known = client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else client.create_experiment(name, artifacts)
        return _Run(client, experiment, run)


class _Run(Sheet):
    is_final = True

    def __init__(self, client: Any, experiment: str, run: Watched) -> None:
        self.client, self.experiment, self.run = client, experiment, run
        self.id = ""  # until it is begun or found

    def held(self) -> list[Point] | None:
        """Of the run that the folder names; None where the store does not have it."""
        noted = None if self.run.folder is None else RUN_ID.read(self._note(self.run.folder))
        found = None if noted is None else self._find(noted["run_id"])
        if found is None:
            return None
        self.id = found.info.run_id
        self.client.update_run(self.id, status="RUNNING")
        rounds: dict[int, dict[str, Value]] = defaultdict(dict)
        for name in found.data.metrics:
            for metric in self.client.get_metric_history(self.id, name):
                rounds[metric.step][name] = _unclipped(metric.value)
        return [Point(round, rounds[round]) for round in sorted(rounds)]

    def _find(self, id: str) -> Any:
        from mlflow import MlflowException

        try:
            found = self.client.get_run(id)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return found if found.info.lifecycle_stage == "active" else None

    def restart(self, points: Sequence[Point]) -> None:
        """What was tracked cannot be taken back; it is left, and a new run takes its place."""
        from mlflow.entities import Param

        name = plain_text(self.run.name)
        self.id = self.client.create_run(self.experiment, run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in settings(self.run).items()]
        for begin in range(0, len(params), MAX_PARAMS):
            self.client.log_batch(self.id, params=params[begin : begin + MAX_PARAMS])
        if self.run.folder is not None:
            note = self._note(self.run.folder)
            make_folder(note.parent)
            RUN_ID.write(note, {"run_id": self.id})
        self.add(points)

    def add(self, points: Sequence[Point]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        for one in points:
            metrics = [Metric(name, value, now, one.round) for name, value in one.figures.items()]
            for begin in range(0, len(metrics), MAX_METRICS):
                self.client.log_batch(self.id, metrics=metrics[begin : begin + MAX_METRICS])

    def close(self, summary: Mapping[str, Any] | None) -> None:
        for name, value in ({} if summary is None else selected(summary)).items():
            self.client.set_tag(self.id, name, value)
        self.client.set_terminated(self.id, "KILLED" if summary is None else "FINISHED")

    @staticmethod
    def _note(folder: Path) -> Path:
        return folder / "tracked" / "mlflow" / "run.json"


def _unclipped(value: float) -> float:
    """MLflow's databases hold the largest number in the place of infinity."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value
