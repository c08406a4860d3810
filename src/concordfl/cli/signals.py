"""Ctrl-C, SIGTERM and SIGHUP: no traceback, and a word on how to go on."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

# SIGHUP, which Windows lacks, comes when a terminal is closed.
ENDING_SIGNALS = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None
)

_received: list[int] = []  # what asked us to end; a process has its signals as a whole


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
    """Raise `Stopped` on SIGTERM and SIGHUP, so that worker processes and locks end in order, and
    remember these and Ctrl-C for `heed_signals`.
    """
    numbers = (signal.SIGINT, *ENDING_SIGNALS)
    heeded = [number for number in numbers if signal.getsignal(number) is _usual(number)]
    for number in heeded:
        signal.signal(number, _raise)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, _usual(number))
        _received.clear()


def heed_signals() -> None:
    """Raise a signal once more that has come within `raised_signals` and is lost: Python drops an
    exception raised where nothing can receive it, such as in the destructor of an object.
    """
    if _received:
        _raise_as_exception(_received[-1])


def _end_at_once(number: int, _: FrameType | None) -> None:
    os._exit(128 + number)


def _raise(number: int, _: FrameType | None) -> None:
    # Asked a second time, the process ends at once, or is interrupted in what it does to end.
    signal.signal(number, _usual(number))
    _received.append(number)
    _raise_as_exception(number)


def _raise_as_exception(number: int) -> NoReturn:
    raise KeyboardInterrupt if number == signal.SIGINT else Stopped(number)


def _usual(number: int) -> Callable[..., Any] | signal.Handlers:
    """What Python does with a signal that nobody has asked to handle otherwise."""
    return signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
