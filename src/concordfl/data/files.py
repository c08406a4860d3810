"""Files and folders that a user names: only regular files are read, and what goes wrong is one line
that names the file.
"""

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core import ConcordError, DataError
from .text import printable, reason

FILE, FOLDER = "a file", "a folder"
KINDS = {
    stat.S_IFREG: FILE,
    stat.S_IFDIR: FOLDER,
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def reading(path: Path | str, rule: str) -> Iterator[None]:
    """Whatever goes wrong inside is one line: the path, the rule that it breaks, and why.

    Every exception is caught, since decoders of damaged files raise all kinds.
    """
    try:
        yield
    except ConcordError:
        raise
    except Exception as error:
        raise DataError(f"{printable(path)} must {rule}: {reason(error)}") from None


def working_folder() -> str | None:
    """Where relative paths begin; None where it has been removed."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def kind_of(path: Path) -> str | None:
    """What lies at `path`: FILE, FOLDER, another of KINDS; None where nothing is."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # a name too long, with a null byte, not permitted
        raise DataError(f"{printable(path)} must be readable: {reason(error)}") from None
    return KINDS.get(stat.S_IFMT(mode), "something else")


def require_file(path: Path) -> None:
    """Refuse what is not a regular file: a device or a pipe could be read for ever."""
    kind = kind_of(path)
    if kind != FILE:
        raise DataError(f"{printable(path)} must be a file, got {kind or 'nothing of this name'}")


def list_folder(folder: Path) -> list[Path]:
    """The folder's visible entries in order."""
    with reading(folder, "be a readable folder"):
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
