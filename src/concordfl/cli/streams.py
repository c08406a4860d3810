"""Standard output and standard error that take whatever is written to them."""

import io
import os
import sys


def prepare_streams() -> None:
    """A closed stream swallows what is written; a character that a terminal cannot show is
    written out, as in `\\xb1`.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - for good
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Nobody reads standard output any more: what is left in its buffer goes nowhere."""
    try:
        target = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, target)
    os.close(nowhere)
