"""Result: what a run has come to."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .core import SettingError
from .engine.records import RunFolder
from .metrics import METRICS


@dataclass(frozen=True)
class Result:
    """A finished run."""

    summary: dict[str, Any]
    records: list[dict[str, Any]]
    folder: Path | None
    server: Any
    # figures by evaluated round and client, of a run without a folder
    client_rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    def clients(self) -> dict[str, dict[str, Any]]:
        """The figures of every client in the last round, by its id."""
        if self.folder is not None:
            return RunFolder.open(self.folder).read_client_rows(self.summary["rounds"])
        return dict(self.client_rows[self.summary["rounds"]])

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the participants' test splits in the last round, of a method that
        predicts classes; see `metric` for others.
        """
        return self.metric("accuracy")

    def metric(self, name: str) -> float:
        """A mean over the participants' test splits in the last round: "rmse", "accuracy", ..."""
        final = self.summary["final"]
        value = final.get(f"local_{name}")
        if value is None:
            known = [known for known in METRICS if final.get(f"local_{known}") is not None]
            raise SettingError(f"the run must have the metric {name!r}, got {', '.join(known)}")
        return float(value)
