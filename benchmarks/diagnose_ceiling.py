"""What a test that sees all data finds of the differences that `diagnose_grid.py` plants.

    python benchmarks/diagnose_ceiling.py run              # goes on where it was stopped
    python benchmarks/diagnose_ceiling.py show             # beside ours on the same cases

The test is DetectShift (Polo, Izbicki, Lacerda, Ibieta-Jimenez, Vicente: A unified framework for
dataset shift diagnostics, 2022), which compares two samples: labels are its P(y), concept its
P(y|x), features its P(x|y). It wants to be in an environment of its own, see INSTALL.

Every client in turn is the target, all others together are the source; p is the smallest of the
clients' p-values after the correction of Benjamini and Hochberg (Simes' test that no client
differs), which is never larger than Bonferroni's and so makes do with 99 draws; it asks that
p-values are not strongly negatively dependent. Inputs are the principal axes of `diagnose`. A
random half of every client's examples fits the models, the other is tested. Its models are gradient
boosting for P(x, y), as it proposes, and its logistic regression for P(y), as its other test of
labels is not defined where a client lacks a class. What it samples labels from may be of any kind:
logistic regression on the axes or their products, whichever predicts better; boosting takes 20
seconds on digits and seldom predicts better.

Its questions are not quite ours: a concept changes P(x|y) too, other label shares change P(y|x),
and so can other inputs. What it says then counts as a false alarm, as it would with us; `show` says
what was there.

The cases are those of the grid's first seed: all of 5 clients, and of 20 clients those of at most
200 examples with nothing or weak differences, 130 in all and half an hour of one core. Lines are
kept in experiments/diagnose/ceiling.csv.
"""

import argparse
import contextlib
import csv
import io
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import torch
from scipy import stats
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from concordfl.core import Key
from concordfl.engine.files import write_atomically
from concordfl.toolbox import axes
from diagnose_grid import FILE as GRID
from diagnose_grid import KINDS, LEVEL, STRENGTHS, Case, cases, make_clients, read

FILE = GRID.with_name("ceiling.csv")
COLUMNS = (*Case._fields, *(f"p_{kind}" for kind in KINDS), "seconds")
INSTALL = (
    "DetectShift 1.0.1 needs numpy < 2.4, and its requirements name a package that cannot be "
    'installed; beside concordfl: pip install catboost tqdm "numpy<2.4" && '
    "pip install --no-deps detectshift==1.0.1"
)
DIMENSIONS = 20  # as `diagnose` has by itself
DRAWS = 99  # of each test of each client
MIN_LOG = -7.0  # of a label's probability where models of it are compared


def sub_grid(data: list[str]) -> list[Case]:
    """5 clients first."""
    found = [
        case
        for case in cases(data)
        if case.seed == 0
        and (case.clients == 5 or (case.examples <= 200 and case.strength == "weak"))
    ]
    return sorted(found, key=lambda case: case.clients)


# --- DetectShift ----------------------------------------------------------------------------------


def p_values(case: Case) -> dict[str, float]:
    clients, _ = make_clients(case)
    rng = Key("diagnose ceiling", *case.name).numpy()
    np.random.seed(rng.integers(2**32))  # which the package draws from
    classes = 1 + max(int(y.max()) for _, y in clients.values())
    inputs = features([x for x, _ in clients.values()])
    fitted, tested = [], []
    for x, (_, y) in zip(inputs, clients.values(), strict=True):
        order = rng.permutation(len(y))
        for part, rows in zip((fitted, tested), np.array_split(order, 2), strict=True):
            part.append(_frames(x[rows], y[rows], classes))
    everything, labels = _pooled(fitted)
    model = label_model(everything.to_numpy(), _classes_of(labels))
    found = [compare(fitted, tested, target, model) for target in range(case.clients)]
    return {
        kind: float(stats.false_discovery_control([one[kind] for one in found]).min())
        for kind in KINDS
    }


def features(inputs: list[np.ndarray]) -> list[np.ndarray]:
    """On the principal axes that `diagnose` finds, here of one client that has everything."""
    pooled = torch.from_numpy(np.concatenate(inputs)).float()
    pooled = pooled.permute(0, 3, 1, 2) if pooled.ndim == 4 else pooled
    everyone = SimpleNamespace(examples=None, over=lambda _, shrink: shrink(pooled))
    frame = axes.axes_of(axes.moments_of(everyone), DIMENSIONS, pooled.shape[1:])
    found = frame.project(axes.inputs_of(everyone, None)).numpy()
    return np.split(found, np.cumsum([len(x) for x in inputs])[:-1])


def compare(fitted: list, tested: list, target: int, model: GridSearchCV) -> dict[str, float]:
    """p-values of a client against the others, by question."""
    from detectshift.tests import CondRand, LocalPermut, Permut
    from detectshift.tools import KL

    (xs, ys), (xt, yt) = _pooled(fitted, leave=target), fitted[target]
    joint, labels = KL(boost=True), KL(boost=False, cv=None)
    joint.fit(pd.concat([xs, ys], axis=1), pd.concat([xt, yt], axis=1))
    labels.fit(ys, yt)
    (xs, ys), (xt, yt) = _pooled(tested, leave=target), tested[target]
    # the divergence of P(x) is taken off what is observed and what is drawn: p is the same without
    inputs = SimpleNamespace(predict=lambda _: 0.0)
    drawn = LabelsDrawn(model, xt, ys.columns)
    said = {"B": DRAWS, "verbose": False}
    found = {
        "labels": Permut(ys, yt, labels, **said),
        "concept": CondRand(xs, ys, xt, yt, drawn, joint, inputs, **said),
        "features": LocalPermut(xs, ys, xt, yt, joint, labels, "class", **said),
    }
    return {kind: float(one["pval"]) for kind, one in found.items()}


class LabelsDrawn:
    """Labels of these inputs by a model of P(y|x), in all columns also where a class is missing."""

    def __init__(self, model: GridSearchCV, x: pd.DataFrame, columns: pd.Index) -> None:
        self.names, self.columns = model.classes_, columns
        self.reached = model.predict_proba(x.to_numpy()).cumsum(1)[:, :-1]

    def sample(self, _: pd.DataFrame) -> pd.DataFrame:
        chosen = (np.random.random((len(self.reached), 1)) > self.reached).sum(1)
        return _indicators(self.names[chosen], 1 + len(self.columns))


def label_model(x: np.ndarray, y: np.ndarray) -> GridSearchCV:
    def score(model: GridSearchCV, x: np.ndarray, y: np.ndarray) -> float:
        logs = np.log(np.maximum(model.predict_proba(x), np.exp(MIN_LOG)))
        own = y[:, None] == model.classes_
        return float(np.where(own.any(1), (logs * own).sum(1), MIN_LOG).mean())

    products = PolynomialFeatures(include_bias=False)
    model = make_pipeline(StandardScaler(), products, LogisticRegression(max_iter=300))
    settings = {
        "polynomialfeatures__degree": (1, 2),
        "logisticregression__C": (0.001, 0.01, 0.1, 1.0),
    }
    folds = KFold(3, shuffle=True, random_state=0)
    return GridSearchCV(model, settings, scoring=score, cv=folds).fit(x, y)


def _frames(x: np.ndarray, y: np.ndarray, classes: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    return pd.DataFrame(x).add_prefix("x"), _indicators(y, classes)


def _indicators(y: np.ndarray, classes: int) -> pd.DataFrame:
    """As the package has them: the first class is where all are 0."""
    return pd.DataFrame(np.eye(classes, dtype=np.int32)[y][:, 1:]).add_prefix("y")


def _classes_of(indicators: pd.DataFrame) -> np.ndarray:
    return indicators.to_numpy() @ np.arange(1, 1 + indicators.shape[1])


def _pooled(parts: list, leave: int | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    kept = [part for number, part in enumerate(parts) if number != leave]
    x, y = (pd.concat(frames, ignore_index=True) for frames in zip(*kept, strict=True))
    return x, y


# --- running and showing --------------------------------------------------------------------------


def run(data: list[str], hours: float, file: Path) -> None:
    try:
        import detectshift  # noqa: F401
    except ImportError:
        sys.exit(INSTALL)
    if np.lib.NumpyVersion(np.__version__) >= "2.4.0":
        sys.exit(INSTALL)
    rows = read(file)
    done = {key_of(row) for row in rows}
    end = time.monotonic() + 3600 * hours
    for case in sub_grid(data):
        if case.name in done:
            continue
        if time.monotonic() > end:
            print(f"stopped after {hours} hours; run it again to go on")
            return
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):  # for its logs
            found = p_values(case)
        row = dict(zip(Case._fields, case.name, strict=True))
        row |= {f"p_{kind}": f"{p:.3g}" for kind, p in found.items()}
        rows.append(row | {"seconds": f"{time.monotonic() - began:.2f}"})
        write(rows, file)


def write(rows: list[dict[str, str]], file: Path) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(file, text.getvalue())


def key_of(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in Case._fields)


def show(file: Path) -> None:
    theirs = {key_of(row): row for row in read(file)}
    ours = {key: row for row in read(GRID) if (key := key_of(row)) in theirs}
    both = {"DetectShift": [theirs[key] for key in ours], "diagnose": list(ours.values())}
    print(f"{len(ours)} cases that both have; in how many p <= {LEVEL}\n")
    columns = ("false alarms", *(f"found, {name}" for name in STRENGTHS))
    print(f"{'question':<10}{'examples':<13}{'who':<13}" + "".join(f"{c:>16}" for c in columns))
    for kind in KINDS:
        for title, is_meant in (("50", lambda n: n < 200), ("200 or more", lambda n: n >= 200)):
            for who, rows in both.items():
                chosen = [row for row in rows if is_meant(int(row["examples"]))]
                there = [row for row in chosen if row[kind] == "1"]
                groups = (
                    [row for row in chosen if row[kind] == "0"],
                    *([row for row in there if row["strength"] == name] for name in STRENGTHS),
                )
                cells = "".join(f"{named(group, kind):>16}" for group in groups)
                print(f"{kind:<10}{title:<13}{who:<13}{cells}")
    print("\nfalse alarms by what is there:")
    for kind in KINDS:
        for who, rows in both.items():
            groups = defaultdict(list)
            for row in rows:
                if row[kind] == "0":
                    groups["+".join(one for one in KINDS if row[one] == "1") or "nothing"].append(
                        row
                    )
            parts = (f"{beside} {named(group, kind)}" for beside, group in sorted(groups.items()))
            print(f"  {kind:<10}{who:<13}" + ", ".join(parts))
    print()
    for who, rows in both.items():
        seconds = [float(row["seconds"]) for row in rows]
        print(
            f"{who}: {sum(seconds):,.0f} seconds, {min(seconds):.1f} to {max(seconds):.1f} a case"
        )


def named(rows: list[dict[str, str]], kind: str) -> str:
    return f"{sum(float(row[f'p_{kind}']) <= LEVEL for row in rows)} of {len(rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=("run", "show"))
    parser.add_argument("--data", nargs="+", default=["digits", "table", "fashion-mnist"])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--file", type=Path, default=FILE)
    given = parser.parse_args()
    if given.what == "run":
        run(given.data, given.hours, given.file.resolve())
    else:
        show(given.file)


if __name__ == "__main__":
    main()
