"""Virtual environments of other libraries, made once and kept."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from filelock import FileLock

from ..core import ConcordError, SettingError
from ..data.dataset import cache_folder
from ..engine.files import make_folder, write_atomically
from ..federate.services import ServiceError
from .children import last_words, other_environment, run_program, scratch

READY = "ready"  # the file that a complete environment has
PIP_OPTIONS = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1")


class Skipped(ConcordError):  # noqa: N818 - a reason, not a fault
    """A library that cannot be compared, and why."""


class Library(NamedTuple):
    """A library to be compared with, and how it is installed."""

    name: str
    version: str
    requirement: str  # as pip takes it

    @property
    def title(self) -> str:
        return f"{self.name} {self.version}"


PFL = Library("pfl", "0.6.0", "pfl[pytorch]==0.6.0")
FLOWER = Library("Flower", "1.41.0", "flwr[simulation]==1.41.0")


def default_folder() -> Path:
    """In the user's cache."""
    cache = cache_folder()
    if cache is None:
        raise SettingError("--venvs must be given by a user without a home, got none")
    return cache / "bench"


def python_of(library: Library, folder: Path) -> Path:
    """The interpreter of the library's environment in `folder`, which is made if need be."""
    torch_version = torch.__version__.partition("+")[0]
    python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
    name = f"{library.name.lower()}-{library.version}-torch-{torch_version}-python-{python_version}"
    home = folder / name
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    make_folder(folder)
    with FileLock(folder / f"{name}.lock"):
        if not ((home / READY).is_file() and python.exists()):
            _make(home, python, [f"torch=={torch_version}", library.requirement])
    return python


def _make(home: Path, python: Path, requirements: list[str]) -> None:
    """torch is pinned to the version that runs here: an open range would bring the packages for
    graphics cards, and another torch would be another speed.
    """
    with scratch() as logs, _whole(home):
        environment = other_environment(logs)
        try:
            run_program([sys.executable, "-m", "venv", str(home)], environment, logs)
            install = [str(python), "-m", "pip", "install", *PIP_OPTIONS, *requirements]
            run_program(install, environment, logs)
        except ServiceError as error:
            reason = str(error).partition(": ")[2] or str(error)
            raise Skipped(
                f"{' and '.join(requirements)} could not be installed: {last_words(reason)}"
            ) from None
        write_atomically(home / READY, "")


@contextmanager
def _whole(home: Path) -> Iterator[None]:
    """Whatever ends this early leaves no half of an environment."""
    shutil.rmtree(home, ignore_errors=True)
    try:
        yield
    except BaseException:
        shutil.rmtree(home, ignore_errors=True)
        raise
