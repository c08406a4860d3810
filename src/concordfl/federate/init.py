"""`concordfl federate init`: a whole project, or nothing."""

import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..assemble import make_federation
from ..config import Config, read_table
from ..core import SettingError
from ..data.own_client import UnfitFolderError, find_file
from ..data.text import listing, quote
from ..engine.files import make_folder, one_line
from ..engine.flower.own_folder import require_own_folders
from .project import SIMULATED, Choices, Client, parse_clients

PUBLIC_FOLDER, PRIVATE_FOLDER = 0o755, 0o700


class Made(NamedTuple):
    """A new project."""

    clients: list[Client]
    own_code: dict[str, str]  # settings that name code which is not concordfl's


def create(folder: Path, run_file: Path, given: Sequence[str], choices: Choices) -> Made:
    """Write the project of a run for the clients that are `given` as NAME=FOLDER."""
    require_flower()
    _require_new(folder)
    settings = Config.from_table(read_table(run_file))
    clients = parse_clients(given)
    _require_data(settings, clients)
    from .contents import make_files  # which needs Flower

    files = make_files(settings, clients, choices)
    with _written_at_once(folder) as partial:
        for path, (content, mode) in files.items():
            _write(partial / path, content, mode)
        for client in clients:
            (partial / "clients" / client.folder / "states").mkdir(mode=PRIVATE_FOLDER)
    return Made(clients, settings.own_code())


def _write(file: Path, content: bytes, mode: int) -> None:
    """Nobody reads a secret in the moment before its mode is set."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(handle, "wb") as opened:
        opened.write(content)
    file.chmod(mode)  # whatever the umask is


def require_flower() -> None:
    for name in ("flwr", "cryptography"):
        if importlib.util.find_spec(name) is None:
            raise SettingError(
                f"Flower must be installed, got no {name}: pip install 'concordfl[flower]'"
            )


def _require_new(folder: Path) -> None:
    with one_line(folder, "read"):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise SettingError(f"a project needs a new or empty folder, got {folder}, a file")
        if folder.exists() and any(folder.iterdir()):
            raise SettingError(f"a project needs a new or empty folder, got {folder} with files")


@contextmanager
def _written_at_once(folder: Path) -> Iterator[Path]:
    """A folder to write to, which becomes `folder` once all is written."""
    folder = folder.absolute()
    make_folder(folder.parent)
    with one_line(folder, "written"):
        partial = Path(tempfile.mkdtemp(prefix=".federate-", dir=folder.parent))
        try:
            yield partial
            if folder.exists():
                _move_into(folder, partial)
            else:
                partial.chmod(PUBLIC_FOLDER)
                os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _move_into(folder: Path, partial: Path) -> None:
    """Fill an empty folder, which stays the same: somebody may be working in it."""
    try:
        for entry in partial.iterdir():
            os.replace(entry, folder / entry.name)
    except BaseException:
        for entry in folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        raise


def _require_data(settings: Config, clients: Sequence[Client]) -> None:
    """Simulated clients are those that the run file makes; others have folders that can be read."""
    simulated = [client.name for client in clients if client.data == SIMULATED]
    if not simulated:
        require_own_folders(settings)
        for client in clients:
            _require_folder(client)
        return
    if len(simulated) < len(clients):
        raise SettingError(
            f"all clients must be simulated or none, got {len(simulated)} of {len(clients)}"
        )
    known = make_federation(settings).participants
    for name in simulated:
        if name not in known:
            raise SettingError(
                f"a simulated client must be one of the run file's, got {quote(name)}: known are "
                f"{listing(known)}"
            )


def _require_folder(client: Client) -> None:
    try:
        find_file(Path(client.data))
    except UnfitFolderError as error:
        raise SettingError(f"client {quote(client.name)}: {error}") from None
