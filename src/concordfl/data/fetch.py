"""Fetching data sets from their official homes: checked, resumed where broken off, never half a
file under the final name.
"""

import hashlib
import shutil
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path

from ..core import DataError
from .dataset import Remote

CHUNK_BYTES = 1 << 18
Report = Callable[[int, int | None], None]  # bytes so far, bytes in all where known


def fetch(remote: Remote, folder: Path, report: Report = lambda *_: None) -> Path:
    """Bring one file into `folder` and unpack it if it is an archive; what is there and right is
    left alone.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder} must be a folder that can be written to: {error}") from None
    target = folder / remote.address.rsplit("/", 1)[-1]
    partial = target.with_name(target.name + ".partial")
    if not (target.exists() and _digest(target, remote.checksum) == remote.checksum):
        _download(remote.address, partial, report)
        found = _digest(partial, remote.checksum)
        if found != remote.checksum:
            partial.unlink()
            raise DataError(
                f"{remote.address} must have the checksum {remote.checksum}, got {found}: nothing "
                "was kept"
            )
        partial.replace(target)
    if remote.unpack:
        _unpack(target, folder)
    return target


def _download(address: str, partial: Path, report: Report) -> None:
    """Append to `partial` from where it ends."""
    start = partial.stat().st_size if partial.exists() else 0
    request = urllib.request.Request(address, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            resumed = start > 0 and answer.status == 206
            length = answer.headers.get("Content-Length")
            done = start if resumed else 0
            total = None if length is None else done + int(length)
            _check_room(partial.parent, int(length or 0))
            with open(partial, "ab" if resumed else "wb") as file:
                while chunk := answer.read(CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    report(done, total)
            if total is not None and done < total:
                raise ConnectionError(f"{done} of {total} bytes came")
    except urllib.error.HTTPError as error:
        if error.code == 416:  # all of it is here already
            return
        raise DataError(f"{address} must answer, got HTTP status {error.code}") from None
    except OSError as error:
        kept = partial.stat().st_size if partial.exists() else 0
        again = f"; {kept} bytes are kept, the same command goes on from there" if kept else ""
        raise DataError(f"{address} could not be fetched: {error}{again}") from None


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(f"no room: {needed} bytes needed in {folder}, {free} free")


def _digest(path: Path, like: str) -> str:
    """The checksum of a file, of the kind that `like` is of."""
    kind = like.split(":", maxsplit=1)[0]
    total = hashlib.new(kind)
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            total.update(chunk)
    return f"{kind}:{total.hexdigest()}"


def _unpack(archive: Path, folder: Path) -> None:
    """Into a folder beside, then renamed entry by entry: a kill leaves nothing half-unpacked."""
    temporary = folder / f".unpacking-{archive.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                file.extractall(temporary)
        else:
            with tarfile.open(archive) as file:
                file.extractall(temporary, filter="data")
        for entry in temporary.iterdir():
            if (folder / entry.name).is_dir():
                shutil.rmtree(folder / entry.name)
            entry.replace(folder / entry.name)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive} must be an archive that can be unpacked: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
