"""What the library says while it works, such as how many images it has read: a line each."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .terminal import say


class _Speaker(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(record.getMessage())


@contextmanager
def spoken_log() -> Iterator[None]:
    """Print what concordfl logs, on standard output."""
    logger, speaker = logging.getLogger("concordfl"), _Speaker()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(speaker)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # else it would be said twice
    try:
        yield
    finally:
        logger.removeHandler(speaker)
        logger.setLevel(level)
        logger.propagate = propagate
