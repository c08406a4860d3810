"""Trackers: a run's settings and figures in the files of other tools, as the run goes on."""

from ..core import SettingError
from ..core.settings import nearest
from .csv import CSV
from .mlflow import MLflow
from .tensorboard import TensorBoard
from .tracker import Tracker
from .wandb import WandB

__all__ = ["CSV", "TRACKERS", "MLflow", "TensorBoard", "Tracker", "WandB", "by_names"]

TRACKERS: dict[str, type[Tracker]] = {
    tracker.name: tracker for tracker in (CSV, TensorBoard, MLflow, WandB)
}


def by_names(names: str) -> list[Tracker]:
    """The trackers that `names`, separated by commas, are of."""
    found: dict[str, Tracker] = {}
    for name in (name.strip() for name in names.split(",")):
        if name not in TRACKERS:
            known = ", ".join(TRACKERS)
            raise SettingError(
                f"a tracker must be one of {known}, got {name!r}{nearest(name, TRACKERS)}"
            )
        found.setdefault(name, TRACKERS[name]())
    return list(found.values())
