"""Who notices what was never seen: section 4.5 and table 4 of the FedGMM paper.

    python experiments/fedgmm/novelty.py [--set SECTION.KEY=VALUE ...] [--keep] [--fresh]

Trains FedGMM, FedEM and FedAvg on MNIST (in runs/) and prints AUROC, AP and max-F1 of telling novel
samples from familiar ones: an unseen digit, permuted labels, and images that are scaled, turned and
mirrored. Beside AP and max-F1 stands what a score that knows nothing gets. Figures that are kept
beside the run files are not computed again, unless with --fresh; --keep adds to them.
"""

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from concordfl import Key
from concordfl import config as configuration
from concordfl.cli import FreshOption, KeepOption, SetOption, script
from concordfl.data import Arrays
from concordfl.deploy.finished import FinishedRun
from concordfl.deploy.scoring import Scored, normalise, score_examples
from concordfl.metrics import novelty
from concordfl.scenarios import SHIFTS
from concordfl.study.cells import cells
from concordfl.study.measure import measure

HERE = Path(__file__).parent
METHODS = ("fedgmm", "fedem", "fedavg")
FALSE_ALARM = 0.05
NAMES = ("novel", "method", "score")
FIGURES = ("AUROC", "AP", "base rate", "max-F1", "base F1", "false alarms", "noticed")
SCORES = {1: "highest softmax", 2: "log p(x)", 3: "log p(x) + log p(y|x)"}  # by their columns
Row = list[str]


def main(
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    table = Table(
        title=f"Novel samples; false alarms asked for: {FALSE_ALARM:.0%}", title_justify="left"
    )
    for column in (*NAMES, *FIGURES):
        table.add_column(column, justify="left" if column in NAMES else "right")
    notes: list[str] = []
    for name, look in (("mnist_without_1", _unseen), ("mnist_novelty", _out_of_domain)):
        file = HERE / f"{name}.toml"
        given = configuration.override(configuration.read_table(file), set)
        measured = measure(
            cells(given, METHODS, [0]), file, "novelty", list[Row], look, keep=keep, fresh=fresh
        )
        for row in (row for rows in measured.figures.values() for row in rows):
            table.add_row(*row)
        notes += [f"{name}: {note}" for note in measured.notes]
    console = Console(width=140)
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def _unseen(finished: FinishedRun) -> list[Row]:
    """Section 4.5: the digit 1, and familiar digits under permuted labels, against the official
    test images of the others.
    """
    everything = type(finished.settings.data)().load(Key(0)).test
    seen, ones = (
        everything.take(np.flatnonzero(everything.y != 1)),
        everything.take(np.flatnonzero(everything.y == 1)),
    )
    permuted = Arrays(seen.x, _derangement(seen.y))
    unseen = _compare("digit 1", finished, seen, ones, [False])
    return unseen + _compare("permuted labels", finished, seen, permuted, [True])


def _out_of_domain(finished: FinishedRun) -> list[Row]:
    """Table 4: the clients' own test images, against the same images at half size, turned by 90
    degrees and mirrored.
    """
    federation = finished.federation()
    tests = [federation.splits(id).test for id in federation.participants]
    familiar = Arrays(
        *(np.concatenate([getattr(test, part).numpy() for test in tests]) for part in ("x", "y"))
    )
    novel = familiar
    for shift in (SHIFTS["scale"](factor=0.5), SHIFTS["rotate"](degrees=90.0), SHIFTS["flip"]()):
        novel = shift.change(novel, federation.num_classes, Key(0), Key(0))
    return _compare("scaled, turned, mirrored", finished, familiar, novel, [True, False])


def _derangement(labels: np.ndarray) -> np.ndarray:
    """Every label but 1 renamed to the next one."""
    classes = [label for label in range(10) if label != 1]
    following = dict(zip(classes, classes[1:] + classes[:1], strict=True))
    return np.array([following[label] for label in labels.tolist()])


def _compare(
    what: str, finished: FinishedRun, familiar: Arrays, novel: Arrays, labelled: list[bool]
) -> list[Row]:
    """A row for every score that the method has: with and without labels, and of those that know
    p(y|x) that alone, and both terms in one range.
    """
    both = [
        finished.preprocessing.to_examples(arrays) for arrays in (familiar, novel)
    ]  # embedded once, whatever is asked of them
    names = [what, finished.summary["algorithm"]]
    rows = []
    for known in labelled if finished.settings.algorithm.scores_samples else labelled[:1]:
        seen, unseen = (score_examples(finished, examples, known, FALSE_ALARM) for examples in both)
        kind = SCORES[len(seen.columns)]
        rows.append(_row([*names, kind], seen, unseen, "score"))
        if "log_p_y_given_x" in seen.columns:
            rows.append(_row([*names, "log p(y|x)"], seen, unseen, "log_p_y_given_x"))
            rows.append(_row([*names, f"{kind}, each 0 to 1"], *normalise(seen, unseen), "score"))
    return rows


def _row(names: list[str], seen: Scored, unseen: Scored, column: str) -> Row:
    found = novelty(seen.columns[column], unseen.columns[column])
    figures = (found.auroc, found.ap, found.base_rate, found.max_f1, found.base_f1)
    verdicts = [part.novel for part in (seen, unseen)] if column == "score" else [None, None]
    shares = ["-" if verdict is None else f"{verdict.mean():.1%}" for verdict in verdicts]
    return [*names, *(f"{100 * value:.1f}" for value in figures), *shares]


if __name__ == "__main__":
    script(main)
