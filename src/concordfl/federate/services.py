"""Flower's services as processes of this machine, for as long as they are needed."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ..core import ConcordError

BIN = Path(sys.executable).parent  # where the commands of this installation are
LOOPBACK = "127.0.0.1"
# Flower must not reach out.
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
GRACE_SECONDS = 15.0  # for a process to end by itself
POLL_SECONDS = 0.1


class ServiceError(ConcordError):
    """A process of a federation has ended, or failed."""


class Member(NamedTuple):
    """A process, told from a later one with the same number by when it was started."""

    pid: int
    started: str


class Services:
    """Processes, each a session of its own, and their logs; all are gone when it is left."""

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        self.logs = logs
        self.environment = {
            **os.environ,
            **OFFLINE,
            "PYTHONUNBUFFERED": "1",  # logs are read while they are written
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            **environment,
        }
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._log_begins: dict[str, int] = {}  # where a log's part of the present process begins

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, *_: object) -> None:
        with undisturbed():
            # The first is the server, at which the others sign off.
            self.stop(*list(self.processes)[1:])
            self.stop(*self.processes)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        folder: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a process in `folder`; what it prints is added to its log."""
        file = self.log(name)
        self._log_begins[name] = file.stat().st_size if file.exists() else 0
        # A signal that comes between the start and the entry would leave a process behind.
        with undisturbed(), open(file, "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(environment or {})},
                cwd=folder,
                start_new_session=True,  # the Ctrl-C of a terminal is for us, who end it in order
            )

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def log_text(self, name: str) -> str:
        """What a process has printed since it was started."""
        if name not in self._log_begins:
            return ""
        with open(self.log(name), "rb") as file:
            file.seek(self._log_begins[name])
            return file.read().decode(errors="replace")

    def refuse_ended(self, *tasks: str) -> None:
        """Whoever has ended ends all; `tasks` are processes that may end well."""
        for name, process in self.processes.items():
            code = process.poll()
            if code is not None and not (name in tasks and code == 0):
                raise ServiceError(f"{name} has ended with code {code}: see {self.log(name)}")

    def stop(self, *names: str, how: signal.Signals = signal.SIGTERM) -> None:
        """End processes, and all that they have started."""
        ending = [self.processes.pop(name) for name in names]
        leaders = [process.pid for process in ending]
        family = descendants(leaders)
        for leader in leaders:
            _signal_group(leader, how)
        family = _wait_for_end(ending, family)
        for leader in leaders:
            _signal_group(leader, signal.SIGKILL)  # whoever is left of the session
        for member in family:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member.pid, signal.SIGKILL)
        _wait_for_end(ending, family)


def _wait_for_end(leaders: Sequence[subprocess.Popen[bytes]], family: set[Member]) -> set[Member]:
    """Whoever of the family, and of those that it has started meanwhile, is left after a while."""
    end = time.monotonic() + GRACE_SECONDS
    while family or any(leader.poll() is None for leader in leaders):
        if time.monotonic() > end:
            break
        time.sleep(POLL_SECONDS)
        family = alive(family | descendants([member.pid for member in family]))
    return family


def _signal_group(leader: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that would end us wait until this is over."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    numbers = [
        number
        for name in ("SIGINT", "SIGTERM", "SIGHUP")
        if (number := getattr(signal, name, None)) is not None
    ]
    before = {number: signal.signal(number, lambda n, _: pending.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in dict.fromkeys(pending):
            signal.raise_signal(number)


# --- families of processes ------------------------------------------------------------------------


def descendants(pids: Sequence[int]) -> set[Member]:
    """All that these processes have started: a service of Flower puts some in other sessions."""
    children: dict[int, list[Member]] = {}
    for member, parent in _all_processes().items():
        children.setdefault(parent, []).append(member)
    found: set[Member] = set()
    unseen = list(pids)
    while unseen:
        new = [member for member in children.get(unseen.pop(), ()) if member not in found]
        found.update(new)
        unseen.extend(member.pid for member in new)
    return found


def alive(members: set[Member]) -> set[Member]:
    """Those that have not ended."""
    return members & _all_processes().keys() if members else set()


def _all_processes() -> dict[Member, int]:
    """Every process and its parent; one that has ended and is only waited for is none."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,stat=,lstart="],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
        check=True,
    )
    rows = (line.split(maxsplit=3) for line in listed.stdout.splitlines())
    return {
        Member(int(pid), started): int(parent)
        for pid, parent, state, started in rows
        if not state.startswith("Z")
    }


# --- ports and waiting ----------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    try:
        with socket.create_server((LOOPBACK, port)):
            return True
    except OSError:
        return False


def is_listening(port: int) -> bool:
    """Whether somebody answers there; unlike `is_free` it takes the port for no moment."""
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port)):
        return True
    return False


def wait_until(is_so: Callable[[], bool], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise ServiceError(f"{what} within {seconds:g} s")
        time.sleep(POLL_SECONDS)
