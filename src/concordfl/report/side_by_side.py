"""A paper's numbers beside ours: as a table for the terminal, as Markdown and as CSV."""

import csv
import io
import math
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from rich.table import Table
from rich.text import Text

from .tables import ABSENT, plain, size

FEWEST_RANKS = 3  # an order of two is a coin's throw


class Cell(NamedTuple):
    """The paper's text, and ours: a value, the bytes sent and the seconds for every seed."""

    paper: str = ""
    ours: tuple[float, ...] = ()
    sent: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    spread: float | None = None  # where it is not that of the seeds

    @property
    def paper_value(self) -> float | None:
        """The first number of the paper's text; commas part thousands."""
        number = re.search(r"-?\d+(\.\d+)?", self.paper.replace(",", ""))
        return float(number.group()) if number else None

    @property
    def mean(self) -> float | None:
        return statistics.mean(self.ours) if self.ours else None

    @property
    def text(self) -> str:
        """Ours: the mean, with ± standard deviation where it is known."""
        if self.mean is None:
            return ABSENT
        spread = self.spread
        if spread is None and len(self.ours) > 1:
            spread = statistics.stdev(self.ours)
        return _number(self.mean) + (
            "" if spread is None else f" ± {_deviation(spread, self.mean)}"
        )


@dataclass(frozen=True)
class SideBySide:
    """Cells by row and column; methods, whose order counts, are the rows or the columns."""

    title: str
    cells: Mapping[tuple[str, str], Cell]
    methods_are: Literal["rows", "columns"] = "rows"
    apart: tuple[str, ...] = ()  # methods that have no place in the order

    @property
    def rows(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.cells))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(column for _, column in self.cells))

    @property
    def has_paper(self) -> bool:
        return any(cell.paper for cell in self.cells.values())

    @property
    def is_computed(self) -> bool:
        return any(cell.ours for cell in self.cells.values())

    def computed(self) -> "SideBySide":
        """Without the rows and columns that have none of our figures."""
        places = [place for place, cell in self.cells.items() if cell.ours]
        rows, columns = {row for row, _ in places}, {column for _, column in places}
        return replace(
            self,
            cells={
                (row, column): cell
                for (row, column), cell in self.cells.items()
                if row in rows and column in columns
            },
        )

    # --- how alike --------------------------------------------------------------------------------

    def rank_correlations(self) -> dict[str, float]:
        """Of the methods' order in the paper and here (Spearman), wherever three or more are known:
        by column, or by row where methods are the columns.
        """
        lines, methods = (
            (self.columns, self.rows) if self.methods_are == "rows" else (self.rows, self.columns)
        )
        found = {}
        for line in lines:
            both = [
                (cell.paper_value, cell.mean)
                for cell in (
                    self._cell(method, line) for method in methods if method not in self.apart
                )
                if cell.paper_value is not None and cell.mean is not None
            ]
            value = _rank_correlation(both) if len(both) >= FEWEST_RANKS else None
            if value is not None:
                found[line] = value
        return found

    def _cell(self, method: str, line: str) -> Cell:
        return self.cells[(method, line) if self.methods_are == "rows" else (line, method)]

    def rank_sentence(self) -> str | None:
        found = self.rank_correlations()
        if not found:
            return None
        listed = ", ".join(
            f"{line} {value:.2f}" if line else f"{value:.2f}" for line, value in found.items()
        )
        mean = f"; mean {statistics.mean(found.values()):.2f}" if len(found) > 1 else ""
        return f"Rank correlation of the order in the paper and here: {listed}{mean}"

    # --- what it cost -----------------------------------------------------------------------------

    def costs(self, method: str) -> tuple[str, str]:
        """Bytes and seconds of a run of a method, in the mean over its cells and seeds."""
        at = 0 if self.methods_are == "rows" else 1
        own = [cell for place, cell in self.cells.items() if place[at] == method]
        sent, seconds = (
            [value for cell in own for value in getattr(cell, name)] for name in ("sent", "seconds")
        )
        return (
            size(statistics.mean(sent)) if sent else ABSENT,
            f"{statistics.mean(seconds):.1f} s" if seconds else ABSENT,
        )

    # --- as a table -------------------------------------------------------------------------------

    def table(self) -> Table:
        table = Table()
        if self.has_paper:
            table.caption = "ours, and below it the paper's"
            table.caption_justify = "left"
        table.add_column("")
        head, *lines = self._lines("\n")
        for name in head[1:]:
            table.add_column(plain(name), justify="right")
        for line in lines:
            table.add_row(*(plain_lines(part) for part in line))
        return table

    def markdown(self) -> Iterator[str]:
        head, *lines = self._lines("<br>")
        yield f"| {' | '.join(head)} |"
        yield "|---" * len(head) + "|"
        for line in lines:
            yield f"| {' | '.join(line)} |"

    def _lines(self, between: str) -> Iterator[list[str]]:
        """Ours and, `between` them a break, the paper's; bytes and seconds beside the methods,
        where they are known.
        """
        known = any(cell.sent for cell in self.cells.values())
        beside = known and self.methods_are == "rows"
        yield ["", *self.columns, *(["sent", "time"] if beside else [])]
        for row in self.rows:
            parts = [_both(self.cells[row, column], between) for column in self.columns]
            yield [row, *parts, *(self.costs(row) if beside else ())]
        if known and not beside:
            costs = [self.costs(column) for column in self.columns]
            yield ["sent", *(sent for sent, _ in costs)]
            yield ["time", *(seconds for _, seconds in costs)]

    def to_csv(self) -> str:
        """A line per cell and seed; one without a seed where only the paper has a number."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["row", "column", "paper", "seed", "ours", "bytes", "seconds"])
        for (row, column), cell in self.cells.items():
            for seed, value in enumerate(cell.ours):
                known = [
                    each[seed] if seed < len(each) else "" for each in (cell.sent, cell.seconds)
                ]
                writer.writerow([row, column, cell.paper, seed, value, *known])
            if not cell.ours:
                writer.writerow([row, column, cell.paper, "", "", "", ""])
        return text.getvalue()


def plain_lines(text: str) -> Text:
    """Text of one or more lines in which nothing is markup."""
    first, *rest = text.split("\n")
    shown = plain(first)
    for line in rest:
        shown = shown.append("\n").append(plain(line, "dim"))
    return shown


def _both(cell: Cell, between: str) -> str:
    return f"{cell.text}{between}({cell.paper})" if cell.paper else cell.text


def _rank_correlation(pairs: list[tuple[float, float]]) -> float | None:
    from scipy.stats import spearmanr

    left, right = zip(*pairs, strict=True)
    if len(set(left)) == 1 or len(set(right)) == 1:
        return None  # there is no order where all are equal
    value = float(spearmanr(left, right).statistic)
    return value if math.isfinite(value) else None


def _number(value: float) -> str:
    if value.is_integer() and abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def _deviation(value: float, mean: float) -> str:
    """With one decimal where the mean has one, unless nothing would be left of it."""
    return f"{value:.1f}" if abs(mean) >= 1 and value >= 0.05 else _number(value)
