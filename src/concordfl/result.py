"""Result: what a run has come to, and what can be done with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from .config import Config
from .core import Algorithm, ClientId, Examples, SettingError
from .core.settings import received
from .data.gather import client_name
from .data.labels import class_values
from .deploy import export, inputs, newcomer, saving
from .deploy.finished import FinishedRun
from .deploy.module import deployed_model
from .engine.records import RunFolder
from .metrics import METRICS
from .report.runs import Runs

ClientName = ClientId | int  # whole numbers are names too


@dataclass(frozen=True, eq=False)
class Opened:
    """A run that is open already; a function could not be pickled."""

    run: FinishedRun

    def __call__(self) -> FinishedRun:
        return self.run


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A finished run.

    Examples are given as they are outside: an array or a list of rows in their own units, or a data
    frame whose columns are matched by name; images as (N, H, W, C) bytes. `client` is a participant
    of the run or one that has joined it by `adapt`; without one, the model for somebody of whom
    nothing is known predicts, where the method has one.
    """

    summary: dict[str, Any]
    records: list[dict[str, Any]]
    folder: Path | None
    open_run: Callable[[], FinishedRun]
    # figures by evaluated round and client, of a run without a folder
    client_rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, folder: RunFolder, settings: Config, summary: dict[str, Any]) -> "Result":
        """Of a run in a folder, which is opened further when that is needed."""
        path = folder.path
        return cls(
            summary,
            folder.read_records(),
            path,
            partial(FinishedRun.open, path, settings=settings),
        )

    def __repr__(self) -> str:
        final, rounds = self.summary["final"], self.summary["rounds"]
        figures = [f"{name}={final[f'local_{name}']:.4g}" for name in self._metrics()[:1]]
        where = [] if self.folder is None else [f"folder={str(self.folder)!r}"]
        parts = [repr(self.summary["algorithm"]), f"rounds={rounds}", *figures, *where]
        return f"Result({', '.join(parts)})"

    @cached_property
    def finished(self) -> FinishedRun:
        """The run itself: its settings, its server's state, its clients."""
        return self.open_run()

    @property
    def server(self) -> Any:
        """The server's state at the end."""
        return self.finished.progress.server

    # --- figures ----------------------------------------------------------------------------------

    def clients(self) -> dict[str, dict[str, Any]]:
        """The figures of every client in the last evaluated round, by its id."""
        return self.figures_of(self.summary["final"]["round"])

    def figures_of(self, round: int) -> dict[str, dict[str, Any]]:
        """The figures of every client in an evaluated round, by its id."""
        evaluated = [record["round"] for record in self.records]
        if round not in evaluated:
            raise SettingError(
                f"a round must be one of the {len(evaluated)} that were evaluated, the last of "
                f"them {evaluated[-1]}, got {received(round)}"
            )
        if self.folder is not None:
            return RunFolder.open(self.folder).read_client_rows(round)
        return dict(self.client_rows[round])

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the participants' test splits in the last round, of a method that
        predicts classes; see `metric` for others.
        """
        return self.metric("accuracy")

    def metric(self, name: str) -> float:
        """A mean over the participants' test splits in the last round: "rmse", "accuracy", ..."""
        known = self._metrics()
        if name not in known:
            raise SettingError(f"the run must have the metric {name!r}, got {', '.join(known)}")
        return float(self.summary["final"][f"local_{name}"])

    def _metrics(self) -> list[str]:
        """Of which there is a mean over the participants, the headline first."""
        final = self.summary["final"]
        return [name for name in METRICS if final.get(f"local_{name}") is not None]

    # --- predictions ------------------------------------------------------------------------------

    @property
    def classes(self) -> np.ndarray:
        """(Y,) the classes in the order of `predict_proba`'s columns, as numbers where all are."""
        return class_values(self.finished.preprocessing.classes)

    def predict(self, x: Any, client: ClientName | None = None) -> np.ndarray:
        """(N,) the class of each example; of other targets their predicted values, (N,) or (N, D),
        or whether each of several labels is there, (N, L) of 0 and 1.
        """
        found: np.ndarray = self._predictions(x, client)
        kind = self.finished.objective.kind
        if kind == "regression":
            return found
        return self.classes[found.argmax(1)] if kind == "classification" else (found > 0.5) * 1

    def predict_proba(self, x: Any, client: ClientName | None = None) -> np.ndarray:
        """(N, Y) the probability of each class, or of each of several labels."""
        if self.finished.objective.kind == "regression":
            raise SettingError("predict_proba is for classes, got a run of regression: use predict")
        return self._predictions(x, client)

    def _predictions(self, x: Any, client: ClientName | None) -> np.ndarray:
        return self.finished.predictions(self._prepare(x), _id(client)).double().numpy()

    def score(self, x: Any, y: Any, client: ClientName | None = None) -> dict[str, Any]:
        """How good predictions are: accuracy, loss, weighted AUC and F1, or RMSE, MAE and R²."""
        return self.finished.scores(self._prepare(x, y), _id(client))

    def adapt(
        self, x: Any, y: Any = None, *, name: ClientName, test: bool = True
    ) -> dict[str, Any]:
        """A new client joins by the method's rule for those, and predicts as `client=name` then.

        What it predicts with is adapted to all examples. The answer says what was adapted and,
        unless `test` is off, how good a client is that adapts to one half of the examples, on the
        other half. In a run's folder it is kept for good.
        """
        id = client_name(name)
        if y is None:
            newcomer.require_no_labels(self.finished, id)
        return newcomer.join(self.finished, self._prepare(x, y), id, test=test)

    def _prepare(self, x: Any, y: Any = None) -> Examples:
        return inputs.prepare(x, self.finished.preprocessing, y, self.finished.columns_aside)

    # --- to take away -----------------------------------------------------------------------------

    def model(self, client: ClientName | None = None) -> nn.Module:
        """What a client predicts with as a plain module: it takes a tensor of examples in their
        own units and gives the probabilities that `predict_proba` gives, or the values of
        `predict`.
        """
        return deployed_model(self.finished.predictor_of(_id(client)), self.finished.preprocessing)

    def export(self, path: str | Path, client: ClientName | None = None) -> Path:
        """Write `model(client)` to a file: .safetensors, .onnx or .pt2, see `deploy.export`."""
        return export.write(self.finished, Path(path), _id(client))

    def report(self, file: str | Path) -> Path:
        """Write an .html file that shows the run: who is like whom, and every client's card."""
        from .study import reports  # which is about results

        reports.check_file(Path(file))
        name = str(self.summary["algorithm"])
        reports.write(name, Runs([reports.of_result(self, name)]), Path(file))
        return Path(file)

    def save(self, folder: str | Path) -> "Result":
        """Write the run to a new folder, from which `load` reads it; the result of that.

        A run that was played only `until` a round is not over, and is refused.
        """
        settings = self.finished.settings  # with objects that no other process could import
        if self.folder is None:
            saving.save(self.finished, self.records, self.figures_of, Path(folder))
        else:
            saving.copy(self.folder, Path(folder))
        return Result.of_folder(RunFolder.open(Path(folder)), settings, self.summary)


def load(
    folder: str | Path,
    *,
    trust: bool = False,
    model: nn.Module | Callable[..., nn.Module] | None = None,
    algorithm: Algorithm | None = None,
) -> Result:
    """The finished run in a folder.

    A model, method or embedding `package.module:name` is code that the folder asks to run: it is
    refused unless you `trust` the folder. A model or an algorithm that no other process can import,
    as one of a notebook, is given again.
    """
    opened = FinishedRun.open(Path(folder), trust=trust, model=model, algorithm=algorithm)
    return Result(
        opened.summary,
        RunFolder.open(Path(folder)).read_records(),
        Path(folder),
        Opened(opened),
    )


def _id(client: ClientName | None) -> ClientId | None:
    return None if client is None else client_name(client)
