"""What is printed, and how: text is text, whatever characters a name or a path has."""

import os
import sys
import unicodedata
from contextlib import suppress
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from .streams import drop_output

PIPE_WIDTH = 120  # columns of a table where nobody says how wide a line may be
CLOSED_PIPE = 141  # the exit code of a process that SIGPIPE ended
# What steers a terminal or breaks a line: control characters, lone surrogates, line and paragraph
# separators, and marks that turn the direction of writing.
UNPRINTABLE_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")
DIRECTION_MARKS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


def printable(text: str) -> str:
    """`text` on one line, with characters that would steer the terminal written out."""
    if text.isprintable():
        return text
    return "".join(_written_out(letter) for letter in text)


def _written_out(letter: str) -> str:
    if unicodedata.category(letter) in UNPRINTABLE_CATEGORIES or letter in DIRECTION_MARKS:
        return letter.encode("unicode_escape").decode("ascii")
    return letter


class PlainConsole(Console):
    """A console without markup, emoji codes and highlighting: `[/x]` is printed as it is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string of a table, a title or a message passes here."""
        return super().render_str(printable(text), **options)

    def on_broken_pipe(self) -> None:
        """Whoever read our output has left (`concordfl list | head -1`)."""
        self.quiet = True
        drop_output()
        raise SystemExit(CLOSED_PIPE)


# A pipe has no width: tables need not be broken there.
console = PlainConsole(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH)
_errors = PlainConsole(stderr=True)


def say(*lines: str) -> None:
    """Print each of `lines` on a line of its own, however long."""
    for line in lines:
        console.print(line, soft_wrap=True)


def show(part: RenderableType) -> None:
    """Print a table."""
    console.print(part)


def complain(message: str) -> None:
    """Print a line to standard error; a terminal that is gone hears nothing."""
    with suppress(OSError):
        _errors.print(f"concordfl: {message}", soft_wrap=True)
