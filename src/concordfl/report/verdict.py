"""What a comparison says: which method is best for participants, whether that is more than chance,
who gains and who loses by it, and what would mislead.

A difference of two methods is *paired*: both have met the same clients with the same seeds. With
several seeds the mean difference over clients is taken for each of them, and a t-test asks whether
it is 0; with one seed Wilcoxon's signed-rank test asks it of the clients. It is more than chance if
p < 0.05.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..metrics import METRICS, criterion_in

Figures = Mapping[str, Any]
Runs = Mapping[str, Sequence[Figures]]  # the figures of a row by seed
Scores = Mapping[str, float]  # the criterion of every client on its test examples

SIGNIFICANT = 0.05
MIN_CLIENTS = 6  # with fewer differences no rank test gets below 0.05
CLEARLY_ABOVE = 0.005  # a ceiling that is so much lower is none
ROUNDING = 1e-12  # differences up to this are made by the order of a sum
RELATIVE_ROUNDING = 1e-9  # the same beside large figures
ALONE, POOLED = "local", "centralized"
DATA = "data"  # the kind of warnings that are about the data, not about a method
# Warnings that several methods have alike are said once, in these words.
SAID_ONCE = {
    "still-improving": "still improving at the last round: more rounds may change the order",
    "few-evaluations": "too few evaluations to tell whether it was still improving",
    "never-asked": "some clients were never asked to train",
}


class Difference(NamedTuple):
    """How much better one method is than another: positive is better, whichever way the criterion
    goes.
    """

    mean: float
    p: float | None  # None where too little is known
    over: str  # what it is paired over

    @property
    def is_significant(self) -> bool:
        return self.p is not None and self.p < SIGNIFICANT and self.mean > 0

    @property
    def is_tie(self) -> bool:
        return abs(self.mean) <= ROUNDING


class Gain(NamedTuple):
    """A method beside training alone, over the clients of all seeds."""

    better: int
    worse: int
    clients: int  # each counted once per seed
    seeds: int
    mean: float
    worst: float  # the largest loss, negative; 0 where nobody loses


def criterion_of(runs: Runs) -> str | None:
    """The metric by which methods are ranked: that of the first run that has any."""
    for figures in _all(runs):
        final = figures["final"]
        named = {name: final.get(f"local_{name}") for name in METRICS}
        if (found := criterion_in(named)) is not None:
            return found
    return None


def mean_criterion(figures: Sequence[Figures], criterion: str) -> float | None:
    """Over seeds, of the participants' test examples."""
    values = [run["final"].get(f"local_{criterion}") for run in figures]
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def ranking(runs: Runs, criterion: str) -> list[str]:
    """Rows from the best to the worst for participants, without pooled data, which are no
    federation.
    """
    means = {row: mean_criterion(figures, criterion) for row, figures in runs.items()}
    known = {
        row: mean
        for row, mean in means.items()
        if mean is not None and method_of(runs, row) != POOLED
    }
    sign = -1 if METRICS[criterion].higher_is_better else 1
    return sorted(known, key=lambda row: sign * known[row])


def method_of(runs: Runs, row: str) -> str:
    """Rows may be called `method, setting = value`, or anything in Python."""
    told = runs[row][0].get("algorithm") if runs[row] else None
    return told or row.partition(",")[0]


def baseline(runs: Runs, criterion: str) -> str | None:
    """The row that trains alone; the best, where settings of it were varied."""
    return next((row for row in ranking(runs, criterion) if method_of(runs, row) == ALONE), None)


# --- differences ----------------------------------------------------------------------------------


def difference(left: Sequence[Figures], right: Sequence[Figures], criterion: str) -> Difference:
    """How much better `left` is than `right`, and the chance of that where they are alike."""
    if len(left) > 1 and len(left) == len(right):
        by_seed = [
            _seed_difference(one, other, criterion) for one, other in zip(left, right, strict=True)
        ]
        if known := [value for value in by_seed if value is not None]:
            return Difference(statistics.mean(known), _t_test(known), f"{len(known)} seeds")
        return _unpaired(left, right, criterion)
    paired = _client_differences(left[0], right[0], criterion)
    if paired is None:
        return _unpaired(left, right, criterion)
    return Difference(statistics.mean(paired), _rank_test(tuple(paired)), f"{len(paired)} clients")


def _unpaired(left: Sequence[Figures], right: Sequence[Figures], criterion: str) -> Difference:
    means = [mean_criterion(side, criterion) or 0.0 for side in (left, right)]
    return Difference(_signed(means[0] - means[1], criterion), None, "")


def _seed_difference(one: Figures, other: Figures, criterion: str) -> float | None:
    paired = _client_differences(one, other, criterion)
    if paired:
        return statistics.mean(paired)
    values = [run["final"].get(f"local_{criterion}") for run in (one, other)]
    return None if None in values else _signed(values[0] - values[1], criterion)


def _client_differences(one: Figures, other: Figures, criterion: str) -> list[float] | None:
    """By client; None where the clients' own figures were not kept, or are of others."""
    left: Scores = one.get("client_scores") or {}
    right: Scores = other.get("client_scores") or {}
    if not left or left.keys() != right.keys():
        return None
    return [_signed(left[id] - right[id], criterion) for id in sorted(left)]


def _signed(value: float, criterion: str) -> float:
    return value if METRICS[criterion].higher_is_better else -value


def _t_test(values: Sequence[float]) -> float | None:
    """The p-value of a mean of 0; None for equal values: without a spread nothing is known."""
    from scipy import stats

    if len(values) < 2:
        return None
    largest = float(np.abs(values).max())
    if largest <= ROUNDING:
        return 1.0
    if np.ptp(values) <= max(ROUNDING, RELATIVE_ROUNDING * largest):
        return None
    return float(stats.ttest_1samp(values, 0.0).pvalue)


@lru_cache(maxsize=256)  # ties make it a permutation test, which takes a second
def _rank_test(values: tuple[float, ...]) -> float | None:
    from scipy import stats

    changed = [value for value in values if abs(value) > ROUNDING]
    if not changed:
        return 1.0
    return float(stats.wilcoxon(changed).pvalue) if len(changed) >= MIN_CLIENTS else None


def gain(runs: Runs, row: str, criterion: str) -> Gain | None:
    """A row beside training alone; None where there is no such row, or clients are not known."""
    alone = baseline(runs, criterion)
    if alone is None or len(runs[row]) != len(runs[alone]):
        return None
    by_seed = [
        _client_differences(one, other, criterion)
        for one, other in zip(runs[row], runs[alone], strict=True)
    ]
    values = [value for differences in by_seed for value in differences or []]
    if None in by_seed or not values:
        return None
    return Gain(
        better=sum(value > 0 for value in values),
        worse=sum(value < 0 for value in values),
        clients=len(values),
        seeds=len(by_seed),
        mean=statistics.mean(values),
        worst=min([0.0, *values]),
    )


# --- in words -------------------------------------------------------------------------------------


class Lead(NamedTuple):
    """The best row, the next one, and the difference."""

    first: str
    second: str
    found: Difference
    criterion: str


def lead(runs: Runs) -> Lead | None:
    """None where there is nothing to compare."""
    criterion = criterion_of(runs)
    rows = [] if criterion is None else ranking(runs, criterion)
    if criterion is None or len(rows) < 2:
        return None
    found = difference(runs[rows[0]], runs[rows[1]], criterion)
    return Lead(rows[0], rows[1], found, criterion)


def verdict(runs: Runs) -> str | None:
    """One sentence for somebody who reads nothing else, and one about who loses."""
    ahead = lead(runs)
    if ahead is None:
        return None
    first, found = ahead.first, ahead.found
    if found.is_tie:
        text = f"No method is clearly best for participants: {_tie(ahead)}"
        return f"{text}.{_losers(runs, first, ahead.criterion, subject=first)}"
    by = f"{amount(found.mean, ahead.criterion)} better than {ahead.second}"
    if found.is_significant:
        text = f"Best for participants: {first}, {by}, which is more than chance{_how(found)}"
    elif found.p is None:
        text = f"Ahead for participants: {first}, {by}; whether that is chance is not known"
    else:
        text = f"No method is clearly best for participants: {first} is {by}, which may be chance"
    return f"{text}.{_losers(runs, first, ahead.criterion)}"


def _tie(ahead: Lead) -> str:
    return f"{ahead.first} and {ahead.second} are equal on the mean"


def _how(found: Difference) -> str:
    if found.p is None:
        return ""
    shown = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.2g}"
    return f" ({shown}, paired over {found.over})"


def _losers(runs: Runs, best: str, criterion: str, subject: str = "It") -> str:
    if method_of(runs, best) == ALONE:
        return " No method that learns together is clearly better than training alone."
    found = gain(runs, best, criterion)
    if found is None:
        return ""
    counted = f" (each once per seed, {found.seeds} seeds)" if found.seeds > 1 else ""
    clients = f"{found.better} of {found.clients} clients{counted}"
    better = f" {subject} is better than {ALONE} at {clients}"
    if not found.worse:
        return f"{better} and worse at none."
    return f"{better}, worse at {found.worse}, at worst by {amount(-found.worst, criterion)}."


def amount(value: float, criterion: str) -> str:
    """A difference: points of a percentage, or the figure's own unit."""
    if METRICS[criterion].is_share:
        hidden = ROUNDING < abs(value) < 0.0005  # would be shown as 0.0
        return "less than 0.1 points" if hidden else f"{100 * value:.1f} points"
    return f"{value:.3g} ({METRICS[criterion].title})"


# --- what would mislead ---------------------------------------------------------------------------


def warnings(runs: Runs) -> list[dict[str, str]]:
    """Of the comparison as a whole, and then of its runs, with the method's name."""
    criterion = criterion_of(runs)
    of_all = [] if criterion is None else [
        *_spread(runs), *_ceiling(runs, criterion), *_same_figures(runs, criterion)
    ]  # fmt: skip
    found = (*_of_data(runs), *of_all, *_of_runs(runs))
    return [{"kind": kind, "text": text} for kind, text in found]


def _of_data(runs: Runs) -> Iterator[tuple[str, str]]:
    """What was noticed in the data, which are the same for all methods and seeds."""
    of_runs = (each for run in _all(runs) for each in run.get("warnings") or [])
    texts = [each["text"] for each in of_runs if each["kind"] == DATA]
    yield from ((DATA, text) for text in dict.fromkeys(texts))


def _spread(runs: Runs) -> Iterator[tuple[str, str]]:
    ahead = lead(runs)
    if ahead is None or ahead.found.is_significant:
        return
    if ahead.found.is_tie:
        yield "spread", _tie(ahead)
        return
    size = amount(ahead.found.mean, ahead.criterion)
    pair = f"{ahead.first} and {ahead.second}"
    if ahead.found.p is None:
        yield "spread", f"whether {pair} differ by more than chance is not known: {size}"
    else:
        how = _how(ahead.found)
        yield "spread", f"{pair} differ by no more than chance would make: {size}{how}"


def _ceiling(runs: Runs, criterion: str) -> Iterator[tuple[str, str]]:
    pooled = [row for row in runs if method_of(runs, row) == POOLED]
    others = ranking(runs, criterion)
    if not pooled or not others:
        return
    ceiling = mean_criterion(runs[pooled[0]], criterion)
    best = mean_criterion(runs[others[0]], criterion)
    if ceiling is None or best is None:
        return
    above = _signed(best - ceiling, criterion)
    unit = 1.0 if METRICS[criterion].is_share else abs(ceiling)
    if above > CLEARLY_ABOVE * unit:
        yield (
            "ceiling",
            f"{pooled[0]} is {amount(above, criterion)} worse than {others[0]} and no ceiling "
            "here: one model for all cannot serve clients that differ, or it needs other training "
            "settings",
        )


def _same_figures(runs: Runs, criterion: str) -> Iterator[tuple[str, str]]:
    """Rows that are the same at every client; not where there is nothing left to be better at."""
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row, figures in runs.items():
        scores = [run.get("client_scores") for run in figures]
        known = [each for each in scores if each]
        if len(known) < len(figures) or any(map(_is_another, figures)):
            continue
        if not all(_is_perfect(value, criterion) for each in known for value in each.values()):
            key = tuple(tuple(sorted(each.items())) for each in known)
            alike.setdefault(key, []).append(row)
    for rows in alike.values():
        if len(rows) > 1:
            yield (
                "same-figures",
                f"{', '.join(rows)} have the same figures at every client: they cannot be told "
                "apart here",
            )


def _is_perfect(value: float, criterion: str) -> bool:
    metric = METRICS[criterion]
    return value == 1.0 if metric.is_share else value == 0.0 and not metric.higher_is_better


def _is_another(run: Figures) -> bool:
    """Whether the method itself says so."""
    return any(each["kind"].startswith("identical-to-") for each in run.get("warnings") or [])


def _of_runs(runs: Runs) -> Iterator[tuple[str, str]]:
    """A line per method and kind, whatever the number of seeds; one for all where the kind says the
    same of several methods.
    """
    several: dict[str, list[str]] = {}
    for row, figures in runs.items():
        texts: dict[str, list[str]] = {}
        for run in figures:
            for each in run.get("warnings") or []:
                if each["kind"] != DATA:
                    texts.setdefault(each["kind"], []).append(each["text"])
        for kind, found in texts.items():
            if kind in SAID_ONCE:
                several.setdefault(kind, []).append(row)
            else:
                count = f" ({len(found)} of {len(figures)} seeds)"
                seeds = count if len(found) < len(figures) else ""
                text = found[0].removeprefix(f"{method_of(runs, row)} ")
                yield kind, f"{row}{seeds}: {text}"
    for kind, rows in several.items():
        names = "all methods" if len(rows) == len(runs) > 1 else ", ".join(rows)
        yield kind, f"{names}: {SAID_ONCE[kind]}"


def _all(runs: Runs) -> Iterable[Figures]:
    return (run for figures in runs.values() for run in figures)
