"""Programs that are timed as processes of their own, from their start on."""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import concordfl

from ..federate.services import POLL_SECONDS, ServiceError, Services

PROGRAMS = Path(__file__).parent / "programs"
MAX_SECONDS = 3600.0  # for one program
LOOK_SECONDS = 0.01  # between looks at what a process has printed
COMMON = {
    "OMP_NUM_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "",  # or each process would compile what others find compiled
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Marks(NamedTuple):
    """When the rounds of a program were over, in seconds from the start of its process."""

    at: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.at[0]

    @property
    def later(self) -> tuple[float, ...]:
        """Seconds of each round after the first."""
        return tuple(end - start for start, end in zip(self.at, self.at[1:], strict=False))


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="concordfl-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def own_environment() -> dict[str, str]:
    """In which this interpreter finds this very concordfl."""
    source = str(Path(concordfl.__file__).parents[1])
    before = os.environ.get("PYTHONPATH")
    return COMMON | {"PYTHONPATH": os.pathsep.join(filter(None, [source, before]))}


def other_environment(folder: Path) -> dict[str, str]:
    """For an interpreter of another virtual environment; what it leaves behind is in `folder`."""
    return COMMON | {
        "PYTHONPATH": "",
        "PYTHONNOUSERSITE": "1",
        "RAY_TMPDIR": str(folder),
        "RAY_worker_niceness": "0",  # Ray's workers would give way to all others
    }


def own_program(name: str) -> list[str]:
    return [sys.executable, str(PROGRAMS / f"{name}.py")]


def time_program(
    command: Sequence[str], environment: Mapping[str, str], workload: Path, rounds: int
) -> Marks:
    """Let a program of the folder `programs` play rounds of what the file `workload` holds."""
    with scratch() as folder:
        marks = folder / "marks"
        began = time.time()
        run_program([*command, str(workload), str(rounds), str(marks)], environment, folder)
        found = marks.read_text().split() if marks.exists() else []
        if len(found) != rounds:
            raise ServiceError(f"a program must play {rounds} rounds, got {len(found)}")
        return Marks(tuple(float(line) - began for line in found))


def run_program(
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    look: Callable[[int], None] = lambda _: None,
) -> str:
    """What a process prints; it, and all that it has started, has ended when this is left, however
    that is. `look` is called with its number again and again.
    """
    name = "program"
    with Services(folder, environment) as services:
        services.start(name, command, folder)
        end = time.monotonic() + MAX_SECONDS
        while (code := services.processes[name].poll()) is None:
            if time.monotonic() > end:
                raise ServiceError(f"a program must end within {MAX_SECONDS:g} s, got {command[1]}")
            look(services.processes[name].pid)
            time.sleep(POLL_SECONDS)
        text = services.log_text(name)
    if code != 0:
        raise ServiceError(f"a program must end well, got code {code}: {last_words(text)}")
    return text


def seconds_to_first_line(
    command: Sequence[str], environment: Mapping[str, str], folder: Path
) -> float:
    """From the start of a process until it has printed something; then it is ended."""
    name = "program"
    with Services(folder, environment) as services:
        began = time.monotonic()
        services.start(name, command, folder)
        while "\n" not in services.log_text(name):
            services.refuse_ended()
            time.sleep(LOOK_SECONDS)
        return time.monotonic() - began


def last_words(text: str) -> str:
    """The line of a log that says most of what went wrong."""
    lines = [line.strip() for line in text.splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if re.search(r"^ERROR:|(Error|Exception): \S", line)]
    return (errors or lines or ["it printed nothing"])[-1]
