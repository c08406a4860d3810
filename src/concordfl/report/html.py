"""Tables as HTML, for notebooks. Names are anybody's: all text is escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from rich.table import Table
from rich.text import Text


def render(tables: Iterable[Table], sentences: Sequence[str]) -> str:
    shown = "".join(_table(table) for table in tables)
    return shown + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)


def _table(table: Table) -> str:
    columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
    head = "".join(f"<th>{_plain(column.header)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>"
        for row in zip(*columns, strict=True)
    )
    notes = f"<caption>{_plain(table.title)}</caption>" if table.title else ""
    below = f"<p>{_plain(table.caption)}</p>" if table.caption else ""
    return f"<table>{notes}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"


def _plain(cell: object) -> str:
    return escape(cell.plain if isinstance(cell, Text) else str(cell))
