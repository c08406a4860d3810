"""What ends a command early: one line for what can be expected, a traceback only for a bug."""

import errno
import sys
from typing import NoReturn

import typer

from .signals import exit_code
from .spoken_log import spoken_log
from .streams import drop_output
from .terminal import CLOSED_PIPE, complain

REFUSED = 2  # the exit code of everything that we refuse or cannot do


def finish(app: typer.Typer) -> NoReturn:
    """Run `app` and end the process; what can be expected to go wrong is one line and exit code
    2.
    """
    sys.exit(_status(app))


def _status(app: typer.Typer) -> int:
    try:
        with spoken_log():
            status = app(standalone_mode=False)
        sys.stdout.flush()
    except KeyboardInterrupt as interrupt:
        return exit_code(interrupt)
    except BrokenPipeError:
        drop_output()
        return CLOSED_PIPE
    except Exception as error:
        if hasattr(error, "show"):
            error.show()  # a usage error, which click knows how to show
        elif (message := _explain(error)) is not None:
            complain(message)
        else:
            raise
        return REFUSED
    return status if isinstance(status, int) else 0


def _explain(error: Exception) -> str | None:
    """A line for what can be expected to go wrong; None for a bug, which keeps its traceback."""
    from ..core import ConcordError  # takes seconds, where nothing has needed it before

    if isinstance(error, ConcordError):
        return str(error)
    if isinstance(error, OSError):
        if error.errno == errno.ENOSPC:
            drop_output()  # it may be standard output that is full
        return _operating_system(error)
    # torch has no exception of its own for memory that cannot be had
    is_torch_memory = isinstance(error, RuntimeError) and "allocate memory" in str(error)
    return _memory(error) if is_torch_memory or isinstance(error, MemoryError) else None


def _operating_system(error: OSError) -> str:
    reason = error.strerror or str(error) or type(error).__name__
    names = [str(name) for name in (error.filename, error.filename2) if name is not None]
    return f"the operating system refused: {reason}" + (f": {', '.join(names)}" if names else "")


def _memory(error: Exception) -> str:
    reason = str(error).partition("\n")[0]
    return "the run must fit into memory, got too little of it" + (f": {reason}" if reason else "")
