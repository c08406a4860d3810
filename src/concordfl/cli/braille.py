"""Curves made of characters."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rich.text import Text

BARS = "▁▂▃▄▅▆▇█"
FIRST_BRAILLE = 0x2800  # the character without dots; each dot is a bit, by its line and column
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
DOT_COLUMNS, DOT_LINES = 2, 4  # of a character

Point = tuple[float, float]


class Line(NamedTuple):
    points: Sequence[Point]  # from left to right
    style: str


class Range(NamedTuple):
    low: float
    high: float

    def place(self, value: float, size: int) -> int:
        """Which of `size` steps from low to high is nearest to `value`."""
        span = self.high - self.low
        share = (value - self.low) / span if span > 0 else 0.5
        return round(min(1.0, max(0.0, share)) * (size - 1))


def plot(
    lines: Sequence[Line], width: int, height: int, x_range: Range, y_range: Range
) -> list[Text]:
    """Lines of characters from the top; where curves meet, a character has the last one's style."""
    cells = [[0] * width for _ in range(height)]
    styles = [[""] * width for _ in range(height)]
    for line in lines:
        dots = [
            (x_range.place(x, width * DOT_COLUMNS), y_range.place(y, height * DOT_LINES))
            for x, y in line.points
        ]
        for x, up in _connected(dots):
            y = height * DOT_LINES - 1 - up
            row, column = y // DOT_LINES, x // DOT_COLUMNS
            cells[row][column] |= DOTS[y % DOT_LINES][x % DOT_COLUMNS]
            styles[row][column] = line.style
    return [_row(*row) for row in zip(cells, styles, strict=True)]


def _row(cells: Sequence[int], styles: Sequence[str]) -> Text:
    text = Text()
    for bits, style in zip(cells, styles, strict=True):
        text.append(chr(FIRST_BRAILLE + bits) if bits else " ", style or None)
    return text


def _connected(dots: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """All dots of the straight lines from each to the next."""
    yield from dots[:1]
    for (x, y), (next_x, next_y) in itertools.pairwise(dots):
        steps = max(abs(next_x - x), abs(next_y - y))
        for step in range(1, steps + 1):
            share = step / steps
            yield round(x + share * (next_x - x)), round(y + share * (next_y - y))


def sparkline(values: Sequence[float], width: int) -> str:
    """The last values as bars, the lowest of them the lowest bar.

    >>> sparkline([0.0, 0.5, 1.0], 8)
    '▁▅█'
    """
    shown = values[-width:]
    if not shown:
        return ""
    heights = Range(min(shown), max(shown))
    return "".join(BARS[heights.place(value, len(BARS))] for value in shown)
