"""The sign that a run is under way, for whoever watches its folder.

Nobody may try the folder's own lock to see whether it is held: a run that begins in that instant
would find it taken, and be refused. So a run locks a second file, `.running`, that it can do
without. Whoever watches tries that one; a run that cannot have it at first tries again whenever it
tells of its progress. The lock ends with the process, however that ends, and it is seen from other
containers too, whose processes have numbers of their own.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

from .files import NO_LINK

RUNNING_FILE = ".running"


class Sign:
    """A run's side: `.running` is locked from `show` to `take_down`."""

    def __init__(self, folder: Path) -> None:
        self._lock = FileLock(folder / RUNNING_FILE)

    def show(self) -> None:
        """Lock the file, unless it is locked already or somebody is just looking at it."""
        if not self._lock.is_locked:
            with suppress(Timeout, OSError):
                self._lock.acquire(timeout=0)

    def take_down(self) -> None:
        self._lock.release()


def is_running(folder: Path) -> bool:
    """Whether a process runs the run in `folder`."""
    file = folder / RUNNING_FILE
    try:
        return _is_locked(file)
    except OSError:  # no such file, or a file system without locks
        return False


if sys.platform == "win32":

    def _is_locked(file: Path) -> bool:
        if not file.exists():
            return False
        try:
            with FileLock(file).acquire(timeout=0):
                return False
        except Timeout:
            return True
else:
    import fcntl

    def _is_locked(file: Path) -> bool:
        handle = os.open(file, os.O_RDONLY | NO_LINK)
        try:
            # Shared: several that watch do not take each other for the run. Closing gives it back.
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False
