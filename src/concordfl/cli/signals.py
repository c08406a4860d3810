"""Ctrl-C, SIGTERM and SIGHUP: no traceback, and a word on how to go on."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGHUP, which Windows lacks, comes when a terminal is closed.
ENDING_SIGNALS = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end; like Ctrl-C, no `except Exception` holds it up."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def exit_code(interrupt: KeyboardInterrupt) -> int:
    """128 and the signal's number, as a shell reports it."""
    return 128 + (interrupt.number if isinstance(interrupt, Stopped) else signal.SIGINT)


@contextmanager
def quiet_interrupts() -> Iterator[None]:
    """While modules are imported, Ctrl-C ends the process at once: there is nothing to save, and
    a half-imported module may turn the exception into another.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # whoever started us wants it ignored, or handles it
        return
    signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def raised_signals() -> Iterator[None]:
    """Raise `Stopped` on SIGTERM and SIGHUP, so that worker processes and locks end in order."""
    heeded = [number for number in ENDING_SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in heeded:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, signal.SIG_DFL)


def _end_at_once(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


def _raise(number: int, _: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)  # asked a second time, the process ends at once
    raise Stopped(number)
