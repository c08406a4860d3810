"""Files that are either complete or not there."""

import os
from pathlib import Path


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write beside `path`, force to disk, then rename: a kill leaves the old file or the new one,
    never half of one.
    """
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force a rename to disk, where the system can (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
