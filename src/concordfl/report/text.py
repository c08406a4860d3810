"""Tables as plain text, for `print`."""

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

WIDTH = 120  # characters


def render(tables: Iterable[Table], sentences: Sequence[str]) -> str:
    file = io.StringIO()
    console = Console(file=file, width=WIDTH, color_system=None, force_terminal=False)
    for table in tables:
        console.print(table)
    return file.getvalue() + "\n".join(sentences)
