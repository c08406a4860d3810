"""What a reader of a run's figures must know of how they came about."""

from collections.abc import Iterator, Mapping
from typing import Any


def notes_on(summary: Mapping[str, Any]) -> Iterator[str]:
    """A line each, from a run's summary."""
    if summary.get("stopped_early"):  # by run.patience, or by a function that watched it
        selected, where = summary["selected"], f"on {summary['selected_on']} data"
        best = f": round {selected['round']} was the best {where}" if selected else ""
        yield f"Stopped early, after round {summary['rounds']}{best}"
    missing = {reason: count for reason, count in summary["missing"].items() if count}
    if missing:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(missing.items()))
        yield f"Replies that do not count: {reasons}"
    if summary["failures"]:
        first = summary["failures"][0]
        where = f"client {first['client']!r}, step {first['step']!r}, round {first['round']}"
        yield f"The first of those with a reason: {where}: {first['detail']}"
    if summary["void_rounds"]:
        yield f"{summary['void_rounds']} rounds were void: fewer answered than run.min_replies asks"
    if summary["clients_without_test"]:
        yield f"{summary['clients_without_test']} clients have no test examples, and no figures"
    for problem in summary["damaged_checkpoints"]:
        yield f"A checkpoint was damaged, and the one before it was used: {problem}"
