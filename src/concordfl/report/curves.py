"""Curves, from the figures of comparisons. They need the extra `plot`."""

import importlib.util
import io
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core import SettingError
from ..metrics import CRITERIA, METRICS, criterion_in

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Summary = Mapping[str, Any]
KINDS = ("svg", "png", "pdf")
UNDATED = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}  # the same picture is the same file


def kind_of(file: Path) -> str:
    """What is to be drawn; refused before any work is done if it cannot be."""
    kind = file.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise SettingError(f"a picture must be a file of kind {', '.join(KINDS)}, got {file}")
    if file.is_dir() or not file.absolute().parent.is_dir():
        raise SettingError(f"a picture must be a file in a folder that exists, got {file}")
    require_matplotlib()
    return kind


def require_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingError("pictures need matplotlib, got none: pip install 'concordfl[plot]'")


def accuracy_against_bytes(title: str, runs: Mapping[str, Sequence[Summary]], kind: str) -> bytes:
    """A picture: a line per row over the bytes of training, down and up; a band is the standard
    deviation over seeds.

    Accuracy, or another criterion, is that of held-out clients where there are such, else the
    participants'.
    """
    from matplotlib import rc_context

    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "concordfl"}):
        draw(title, runs).savefig(drawn, format=kind, metadata=UNDATED.get(kind))
    return drawn.getvalue()


def draw(title: str, runs: Mapping[str, Sequence[Summary]]) -> "Figure":
    """The same as matplotlib's own object, which notebooks show."""
    require_matplotlib()
    from matplotlib.figure import Figure

    finals = [summary["final"] for summaries in runs.values() for summary in summaries]
    metric = _criterion(finals)
    scope = "global" if all(f"global_{metric}" in final for final in finals) else "local"
    unit = 100 if METRICS[metric].is_share else 1
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, summaries in runs.items():
        history = _history(summaries, f"{scope}_{metric}")
        sent = [
            statistics.mean(one["bytes"]["down"] + one["bytes"]["up"] for one in several) / 1e6
            for several in history
        ]
        reached = [[unit * one[f"{scope}_{metric}"] for one in several] for several in history]
        middle, spread = (
            [statistics.mean(values) for values in reached],
            [statistics.pstdev(values) for values in reached],
        )
        (line,) = axes.plot(sent, middle, marker=".", label=literal(row))
        low, high = (
            [m + sign * s for m, s in zip(middle, spread, strict=True)] for sign in (-1, 1)
        )
        axes.fill_between(sent, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    label = f"{scope} {METRICS[metric].title}" + " in percent" * METRICS[metric].is_share
    axes.set(title=literal(title), xlabel="MB sent, down and up", ylabel=label)
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def _criterion(finals: Sequence[Mapping[str, Any]]) -> str:
    """Of the first run that has any, among participants or held-out clients."""
    for final in finals:
        for scope in ("global", "local"):
            found = criterion_in({name: final.get(f"{scope}_{name}") for name in CRITERIA.values()})
            if found is not None:
                return found
    return "accuracy"


def literal(text: str) -> str:
    """Text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def _history(summaries: Sequence[Summary], figure: str) -> list[list[Mapping[str, Any]]]:
    """Of every evaluated round, what each seed had come to by then."""
    by_round: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for evaluated in (one for summary in summaries for one in summary["history"]):
        if evaluated.get(figure) is None:
            raise SettingError(
                "a curve of accuracy needs methods that predict labels, got one that does not"
            )
        by_round[evaluated["round"]].append(evaluated)
    return [by_round[round] for round in sorted(by_round)]
