"""What a table's own columns say of its rows: which split they are for, or when they were made."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np

from ..core import DataError
from .text import listing, quote

SPLIT_NAMES = ("train", "validation", "test")


def parse_splits(cells: Iterable[str], column: str, where: str) -> np.ndarray:
    """(N,) the index among SPLIT_NAMES of every row."""
    numbers = {name: number for number, name in enumerate(SPLIT_NAMES)}
    cells = list(cells)
    unknown = sorted({cell for cell in cells if cell.lower() not in numbers})
    if unknown:
        raise DataError(
            f"{where}: column {quote(column)} must be train, validation or test, got "
            f"{listing(unknown)}"
        )
    return np.array([numbers[cell.lower()] for cell in cells], dtype=np.int8)


def require_both(counts: Mapping[str, int], column: str, where: str) -> None:
    """Refuse splits without a row to train on, or to test on; `counts` are all clients' rows."""
    for name in ("train", "test"):
        if not counts[name]:
            raise DataError(
                f"{where}: column {quote(column)} must be {name} in at least one row, got none"
            )


def count_splits(splits: np.ndarray) -> dict[str, int]:
    counts = np.bincount(splits, minlength=len(SPLIT_NAMES)).tolist()
    return dict(zip(SPLIT_NAMES, counts, strict=True))


def parse_times(cells: Iterable[str], column: str, where: str) -> np.ndarray:
    """(N,) numbers that order the rows of a client: numbers as they are, dates as seconds."""
    cells = list(cells)
    for parse in (float, _seconds):
        times = _parsed(cells, parse)
        if times is not None:
            return times
    wrong = next((cell for cell in cells if not _is_date(cell)), cells[0])
    raise DataError(
        f"{where}: column {quote(column)} must be numbers alone or dates as 2026-01-31 or "
        f"2026-01-31 12:30:00 alone, got {quote(wrong)}"
    )


def time_kinds(cells: Sequence[str]) -> tuple[str, ...]:
    """As what all of the cells can be read: numbers, dates, or perhaps both."""
    kinds: dict[str, Callable[[str], float]] = {"numbers": float, "dates": _seconds}
    return tuple(kind for kind, parse in kinds.items() if _parsed(cells, parse) is not None)


def _parsed(cells: Sequence[str], parse: Callable[[str], float]) -> np.ndarray | None:
    try:
        times = np.array([parse(cell) for cell in cells], dtype=np.float64)
    except (ValueError, OverflowError):
        return None
    return times if np.isfinite(times).all() else None


def _seconds(cell: str) -> float:
    """Of a date in ISO's form since 1970; one that tells no time zone is in UTC."""
    time = datetime.fromisoformat(cell)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _is_date(cell: str) -> bool:
    try:
        _seconds(cell)
    except (ValueError, OverflowError):
        return False
    return True
