"""A process that has imported torch and forks worker processes, so that each of them need not.

On Linux alone: elsewhere a process that has loaded torch cannot be forked safely, or at all, and
workers are started anew (`spawn`). The server belongs to the process of the run and serves all of
its executors; it does nothing but import, has one thread when it forks, and ends with the last
process that knows it, however that one ends.
"""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping
from multiprocessing import get_context
from typing import Any

CAN_FORK = sys.platform == "linux"
CAN_HOLD_BACK = hasattr(signal, "pthread_sigmask")  # not on Windows
# What every worker needs. The method may be code of the user's, which workers import themselves.
PRELOADED = ["concordfl.engine.executors.processes", "concordfl.algorithms", "concordfl.models"]
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # is read when torch is imported
STREAMS = (1, 2)  # standard output and errors
SOCKET = "/pymp-xxxxxxxx/listener-xxxxxxxx"  # of the server, in the folder for temporary files
MAX_SOCKET_PATH = 107  # what the operating system takes

_owner: dict[str, int] = {}  # the process that began a server


def context() -> Any:
    """How worker processes are made."""
    return get_context("forkserver" if _forks() else "spawn")


def begin() -> None:
    """Let the server begin with its imports, if it has not; returns at once."""
    if not _forks():
        return
    _owner["pid"] = os.getpid()
    from multiprocessing import forkserver

    # Modules come from where this process has them, and not from the folder that it is in.
    places = os.pathsep.join(os.path.abspath(folder) for folder in sys.path)  # noqa: PTH100
    own = {**ONE_THREAD, "PYTHONPATH": places, "PYTHONSAFEPATH": "1"}
    forkserver.set_forkserver_preload(PRELOADED)
    with _changed_environment(own), interrupts_held_back():
        forkserver.ensure_running()


def _forks() -> bool:
    """A process that is itself a fork of one with a server cannot ask for that one's state, and
    under a long path there can be no server.
    """
    fits = len(os.fsencode(tempfile.gettempdir() + SOCKET)) <= MAX_SOCKET_PATH
    return CAN_FORK and fits and _owner.get("pid", os.getpid()) == os.getpid()


def start(process: Any) -> None:
    """Start a process of `context`, with interrupts held back until it lets them in."""
    begin()
    with _changed_environment(ONE_THREAD), interrupts_held_back():
        process.start()


class Surroundings:
    """What a worker inherits from the process that starts it, but not from a fork server: its
    environment, standard output and errors.

    They are those of the moment when this is pickled, and are there where it is unpickled.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        if not CAN_FORK:
            return Surroundings, ()
        from multiprocessing.reduction import DupFd

        streams = {number: DupFd(number) for number in STREAMS if _is_open(number)}
        return _surround, (dict(os.environ), streams)


def _surround(environment: Mapping[str, str], streams: Mapping[int, Any]) -> Surroundings:
    os.environ.clear()
    os.environ.update(environment)
    for number, stream in streams.items():
        os.dup2(stream.detach(), number)
    return Surroundings()


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextlib.contextmanager
def interrupts_held_back() -> Iterator[None]:
    """A process begins with the signals held back that its parent holds back: Ctrl-C waits until a
    worker knows that it is not for it.
    """
    if not CAN_HOLD_BACK:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def let_interrupts_in() -> None:
    """In the worker, once it knows that they are not for it."""
    if CAN_HOLD_BACK:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
