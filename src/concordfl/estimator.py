"""Estimators with scikit-learn's manners: `groups` say whose each row is.

    est = FederatedClassifier("fedconceptem", rounds=30).fit(X, y, groups=hospitals)
    est.predict(X, groups=hospitals)

A group that was not in training is a new client: `score` then adapts to one half of its rows by
the method's rule and tests on the other half, exactly as `Result.adapt` does, but keeps nothing.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, validate_data

from .core import DataError, SettingError
from .core.settings import received
from .data.labels import class_name
from .data.text import quote
from .deploy import inputs, newcomer
from .inputs import AlgorithmLike, ModelLike
from .runner import run

NEWCOMER = "new client"
TEST_SHARE = 0.1


# scikit-learn publishes no types, hence `ignore[misc]` for its classes
class _Federated(BaseEstimator):  # type: ignore[misc]
    """What a classifier and a regressor share."""

    _kind: ClassVar[str]  # of objective

    def __init__(
        self,
        algorithm: AlgorithmLike = "fedavg",
        *,
        model: ModelLike = "mlp",
        rounds: int | None = None,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        seed: int = 0,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.model = model
        self.rounds = rounds
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.seed = seed
        self.settings = settings

    def _fit(self, x: np.ndarray, y: np.ndarray, groups: Any) -> None:
        clients = {name: (x[rows], y[rows]) for name, rows in _rows_by_group(groups, x)}
        sections: dict[str, Any] = {**(self.settings or {})}
        for name in ("algorithm", "model"):
            if name in sections:
                raise SettingError(
                    f"settings must leave {name} to the argument of that name, got "
                    f"{received(sections[name])}"
                )
        scenario, objective = (_section(sections, name) for name in ("scenario", "objective"))
        if objective.get("kind", "auto") not in ("auto", self._kind):
            raise SettingError(
                f"objective.kind must be {self._kind!r} in a {type(self).__name__}, got "
                f"{received(objective['kind'])}"
            )
        sections["objective"] = {**objective, "kind": self._kind}
        sections["scenario"] = {"split": _split(clients), **scenario}
        self.result_ = run(
            clients=clients,
            algorithm=self.algorithm,
            model=self.model,
            rounds=self.rounds,
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            seed=self.seed,
            **sections,
        )

    def _check(self, x: Any) -> np.ndarray:
        """Rows to predict, as those in training were."""
        check_is_fitted(self, "result_")
        rows: np.ndarray = validate_data(
            self, x, reset=False, allow_nd=True, ensure_all_finite="allow-nan"
        )
        return rows

    def _by_client(self, x: np.ndarray, groups: Any) -> Iterator[tuple[str | None, np.ndarray]]:
        """Rows by who predicts them: a client of the run, or None where it is not known."""
        if groups is None:
            yield None, np.arange(len(x))
            return
        for name, rows in _rows_by_group(groups, x):
            yield (name if self._knows(name) else None), rows

    def _knows(self, name: str) -> bool:
        kept = self.result_.finished.kept
        return name in kept.participants or kept.newcomer(name) is not None

    def _score(self, x: Any, y: Any, groups: Any, metric: str) -> float:
        """A figure of every group, in the mean over tested rows."""
        rows = self._check(x)
        check_consistent_length(rows, y)
        targets, tested = np.asarray(y), []
        grouped = [(None, np.arange(len(rows)))] if groups is None else _rows_by_group(groups, rows)
        for name, of_group in grouped:
            examples, own = rows[of_group], targets[of_group]
            if name is not None and self._knows(name):
                found = self.result_.score(examples, own, client=name)
            else:
                found = self._score_newcomer(examples, own)
            if found[metric] is not None:  # as the R² of a target that does not vary
                tested.append((found[metric], found["examples"]))
        if not tested:
            return float("nan")
        values, counts = zip(*tested, strict=True)
        return float(np.average(values, weights=counts))

    def _score_newcomer(self, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
        """How good a new client is that adapts to one half of its rows, on the other half."""
        if len(x) < 2:
            raise DataError(
                "a new client must have at least two rows to be scored, one to adapt to and one to "
                f"test on, got {len(x)}"
            )
        name = NEWCOMER
        while name in self.result_.finished.kept.participants:
            name += "'"
        run = self.result_.finished
        examples = inputs.prepare(x, run.preprocessing, y, run.columns_aside)
        found: dict[str, Any] = newcomer.score_by_halves(run, examples, name)["tested_on"]
        return found


class FederatedClassifier(ClassifierMixin, _Federated):  # type: ignore[misc]
    """A classifier that is trained by clients together: `fit(X, y, groups=client_ids)`.

    algorithm, model: as `concordfl.run` takes them: names, tables or objects.
    rounds, lr, epochs, batch_size, seed: settings that are given by name; None is the default.
    settings: sections for all others, as in `settings={"run": {"cohort": 0.5}}`.

    `fit` trains on nine tenths of every client's rows and keeps the rest for the figures of the
    run, `result_`; `settings={"scenario": {"split": [0.6, 0.2, 0.2]}}` changes that. Features are
    standardised, and may be missing.
    """

    _kind: ClassVar[str] = "classification"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803 - scikit-learn's name
        rows, labels = validate_data(self, X, y, allow_nd=True, ensure_all_finite="allow-nan")
        check_classification_targets(labels)
        self.classes_ = np.unique(labels)
        if len(self.classes_) < 2:
            raise ValueError(
                f"FederatedClassifier needs at least two classes, got one class: {self.classes_[0]}"
            )
        self._fit(rows, labels, groups)
        return self

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:  # noqa: N803
        """(N,) classes: by the client's own model where `groups` name clients of the run, else by
        the model for somebody of whom nothing is known.
        """
        probabilities = self.predict_proba(X, groups)
        found: np.ndarray = self.classes_[probabilities.argmax(axis=1)]
        return found

    def predict_proba(self, X: Any, groups: Any = None) -> np.ndarray:  # noqa: N803
        """(N, Y) the probability of each of `classes_`."""
        rows = self._check(X)
        known = [class_name(value) for value in self.result_.classes.tolist()]
        columns = [known.index(class_name(value)) for value in self.classes_.tolist()]
        found = np.zeros((len(rows), len(columns)))
        for client, of_client in self._by_client(rows, groups):
            found[of_client] = self.result_.predict_proba(rows[of_client], client)[:, columns]
        return found

    def score(self, X: Any, y: Any, groups: Any = None) -> float:  # noqa: N803
        """Accuracy. Rows of a client in training are predicted by its own model.

        Those of another group, or all of them without `groups`, are one new client: it adapts to
        one half of them by the method's rule, and is tested on the other.
        """
        return self._score(X, y, groups, "accuracy")


class FederatedRegressor(RegressorMixin, _Federated):  # type: ignore[misc]
    """As FederatedClassifier, for numbers: y of shape (N,) or (N, D)."""

    _kind = "regression"

    def fit(self, X: Any, y: Any, groups: Any = None) -> Self:  # noqa: N803
        rows, targets = validate_data(
            self,
            X,
            y,
            allow_nd=True,
            ensure_all_finite="allow-nan",
            multi_output=True,
            y_numeric=True,
        )
        self._fit(rows, targets, groups)
        self._target_shape = targets.shape[1:]
        return self

    def predict(self, X: Any, groups: Any = None) -> np.ndarray:  # noqa: N803
        """(N,) or (N, D) values: by the client's own model where `groups` name clients of the run,
        else by the model for somebody of whom nothing is known.
        """
        rows = self._check(X)
        found = np.zeros((len(rows), *self._target_shape))
        for client, of_client in self._by_client(rows, groups):
            predicted = self.result_.predict(rows[of_client], client)
            found[of_client] = predicted.reshape(-1, *self._target_shape)
        return found

    def score(self, X: Any, y: Any, groups: Any = None) -> float:  # noqa: N803
        """R² of every group, in the mean over tested rows; new clients as FederatedClassifier has
        them.
        """
        return self._score(X, y, groups, "r2")


def _section(sections: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = sections.get(name, {})
    if not isinstance(section, Mapping):
        raise SettingError(f"{name} must be a dict of settings, got {received(section)}")
    return section


def _split(clients: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[float, float, float]:
    """A run must have test examples for its figures: a tenth, and one at least where clients are
    small.
    """
    test = max(TEST_SHARE, 1 / max(len(y) for _, y in clients.values()))
    return 1 - test, 0.0, test


def _rows_by_group(groups: Any, x: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The rows of every group, by its name."""
    if groups is None:
        raise ValueError(
            "groups must say whose each row is, got none: fit(X, y, groups=...), and in "
            'cross_val_score params={"groups": groups} besides'
        )
    check_consistent_length(x, groups)
    values, index = np.unique(np.asarray(groups), return_inverse=True)
    names = [_name(value) for value in values.tolist()]
    return [(name, np.flatnonzero(index == number)) for number, name in enumerate(names)]


def _name(group: object) -> str:
    if isinstance(group, (str, int)) and str(group).strip():
        return str(group)
    if isinstance(group, float) and group.is_integer():
        return str(int(group))
    raise ValueError(f"groups must be text or whole numbers, got {quote(str(group))}")
