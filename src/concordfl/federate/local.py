"""A whole project on this machine, on loopback: the scripts of all roles, and a look at the run."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from filelock import FileLock, Timeout

from ..core import ConcordError, SettingError
from ..engine.files import make_folder
from ..engine.records import RunFolder
from ..watch.status import RunStatus, Watcher
from .project import Project
from .services import LOOPBACK, ServiceError, Services, free_port, is_free, is_listening

SERVER, SUBMISSION = "server", "submit"  # folders; their processes and logs are called so too
SECONDS_BETWEEN_LOOKS = 1.0
START_SECONDS = 600.0  # which a busy machine may take
# A server app that is killed cannot say that it has ended: then nobody runs the run any more.
SECONDS_UNTIL_LOST = 30.0
# What the scripts and Flower's services print.
REGISTERED = "clients may come"
CONNECTED = "SuperNode ID"
ENDED = "Finished task"
RUN_ID = re.compile(r"Successfully started run (\d+)")
EXCEPTION = "ServerApp failed with exception: "
REFUSAL = re.compile(r"node \d+ (takes no part: .*)")

ClientState = Literal["not started", "starting", "connected", "taking part"]


class View(NamedTuple):
    """How a federation is getting on."""

    stage: str  # what is waited for; "" once the run has begun
    clients: dict[str, ClientState]  # by name
    refusals: tuple[str, ...]  # of clients, as the server has them
    run: RunStatus | None


def run_folder(project: Path) -> Path:
    return project / SERVER / "run"


def finished_summary(project: Path) -> dict[str, Any] | None:
    """The summary of the project's run, if it has finished."""
    folder = run_folder(project)
    return RunFolder(folder).read_summary() if folder.is_dir() else None


@contextmanager
def started(folder: Path) -> Iterator["Local"]:
    """A project whose processes end with this context, however it is left."""
    folder = folder.absolute()
    project = Project.read(folder)
    make_folder(folder / "logs" / "clients")
    lock = FileLock(folder / "logs" / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise SettingError(f"a project can be up once at a time, got {folder}, which is") from None
    with lock:
        port = project.port if is_free(project.port) else free_port()
        address = {
            "CONCORDFL_LISTEN": LOOPBACK,
            "CONCORDFL_PORT": str(port),
            "CONCORDFL_SERVER": f"{LOOPBACK}:{port}",
        }
        with Services(folder / "logs", address) as services:
            yield Local(folder, project, services, port)


class Local:
    """The processes of a project on this machine."""

    def __init__(self, folder: Path, project: Project, services: Services, port: int) -> None:
        self.folder, self.project, self.services, self.port = folder, project, services, port
        self._watcher: Watcher | None = None  # of the run, once it has begun
        self._ran_at: float | None = None  # when the run was last seen running

    def play(self) -> Generator[View, None, None]:
        """Start all and stay until the run has ended; a view about once a second."""
        self._start(SERVER, "start.sh")
        yield from self._until(self._is_ready, "the server starts", START_SECONDS)
        for client in self.project.clients:
            self._start(f"clients/{client}", "start.sh", CONCORDFL_LOCAL_PORT=str(free_port()))
        self._start(SUBMISSION, "submit.sh", "--stream")
        yield from self._until(self._has_ended, "clients come", None)
        if finished_summary(self.folder) is None:
            raise ServiceError(f"the run has failed: {self._why_it_failed()}")

    def _start(self, role: str, *script: str, **environment: str) -> None:
        """A script of a role's folder, as a process of its name."""
        self.services.start(role, ("bash", *script), self.folder / role, environment)

    def _until(
        self, is_so: Callable[[], bool], stage: str, seconds: float | None
    ) -> Iterator[View]:
        end = None if seconds is None else time.monotonic() + seconds
        while not is_so():
            self.services.refuse_ended(SUBMISSION)
            if end is not None and time.monotonic() > end:
                raise ServiceError(f"{stage}: it must not take more than {seconds:g} s")
            yield self._view(stage)
            time.sleep(SECONDS_BETWEEN_LOOKS)
        yield self._view(stage)

    # --- what is seen -----------------------------------------------------------------------------

    def _view(self, stage: str) -> View:
        run = self._run_status()
        members = self._members()
        clients = {
            name: self._client_state(folder, name in members)
            for folder, name in self.project.clients.items()
        }
        refusals = tuple(REFUSAL.findall(self.services.log_text(SUBMISSION)))
        return View("" if members else stage, clients, refusals, run)

    def _client_state(self, folder: str, is_member: bool) -> ClientState:
        name = f"clients/{folder}"
        if name not in self.services.processes:
            return "not started"
        if CONNECTED not in self.services.log_text(name):
            return "starting"
        return "taking part" if is_member else "connected"

    def _run_status(self) -> RunStatus | None:
        with suppress(ConcordError):  # not begun, or being written just now
            self._watcher = self._watcher or Watcher(run_folder(self.folder))
            (status,) = self._watcher.look()
            if status.state == "running":
                self._ran_at = time.monotonic()
            return status._replace(way_on=None)  # which would be a simulation's
        return None

    def _members(self) -> set[str]:
        with suppress(ConcordError):
            facts = RunFolder(run_folder(self.folder)).read_federation()
            return {client["id"] for client in facts["clients"]} if facts else set()
        return set()

    # --- signs ------------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        if self.project.insecure:
            return is_listening(self.port)
        return REGISTERED in self.services.log_text(SERVER)

    def _has_ended(self) -> bool:
        is_lost = self._ran_at is not None and time.monotonic() > self._ran_at + SECONDS_UNTIL_LOST
        return is_lost or ENDED in self.services.log_text(SERVER)

    def _why_it_failed(self) -> str:
        """What the server's app has ended with, as Flower tells it."""
        place, log = self.folder / SUBMISSION, self.services.log(SUBMISSION)
        found = RUN_ID.search(self.services.log_text(SUBMISSION))
        if found is None:
            return f"see {log}"
        told = subprocess.run(
            ["flwr", "list", "--run-id", found[1], "--format", "json"],
            check=False,
            capture_output=True,
            env={**self.services.environment, "FLWR_HOME": str(place / ".flwr")},
            cwd=place,
        )
        with suppress(ValueError, LookupError, TypeError):
            details = str(json.loads(told.stdout)["runs"][0]["status-details"])
            return f"{details.removeprefix(EXCEPTION)}; see {log}"
        return f"see {log}"
