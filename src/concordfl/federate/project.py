"""The project of a federation: a folder for each who takes part, to be handed to them.

federation.toml   what `concordfl federate up` must know
README.md         the roles and the order of steps
server/           for the server's operator; the run's folder will be server/run
clients/<client>/ for a client's operator: nothing of another client is in it
submit/           for whoever submits the run
"""

import ipaddress
import re
import tomllib
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from annotated_types import Ge, Le

from ..config import TOML_ERRORS
from ..core import Positive, SettingError, Settings
from ..core.settings import received
from ..data.text import quote
from ..engine.files import read_file

FORMAT = 1
PROJECT_FILE = "federation.toml"
SIMULATED = "simulated"
DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8000
MAX_NAME_CHARACTERS = 200
MAX_FOLDER_CHARACTERS = 60
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
APPS = {
    "serverapp": "concordfl.engine.flower.server:app",
    "clientapp": "concordfl.engine.flower.client:app",
}

Port = Annotated[int, Ge(1), Le(65535)]


class Client(NamedTuple):
    """A client of a project."""

    name: str
    folder: str  # its name below `clients`
    data: str  # the folder of its examples, or SIMULATED


@dataclass(frozen=True)
class Project(Settings):
    """What `federation.toml` holds."""

    format: int
    clients: dict[str, str]  # names by folders
    port: Port
    insecure: bool

    @classmethod
    def read(cls, folder: Path) -> "Project":
        file = folder / PROJECT_FILE
        if not file.is_file():
            raise SettingError(
                f"a project must be one that `concordfl federate init` made, got {folder} without "
                f"{PROJECT_FILE}"
            )
        try:
            table = tomllib.loads(read_file(file).decode())
        except TOML_ERRORS as error:
            raise SettingError(f"{file} must be a TOML file: {error}") from None
        if table.get("format") != FORMAT:
            raise SettingError(f"{file}: format must be {FORMAT}, got {table.get('format')!r}")
        return cls.from_table(table, str(file))


@dataclass(frozen=True)
class Choices(Settings):
    """How a project is to be made."""

    host: str = DEFAULT_HOST
    port: Port = DEFAULT_PORT
    insecure: bool = False
    timeout: Positive = 600.0
    wait: Positive = 600.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _is_host(self.host):
            raise SettingError(f"host must be a name or an IPv4 address, got {received(self.host)}")

    @property
    def is_address(self) -> bool:
        return self.host[0].isdigit() and self.host.replace(".", "").isdigit()

    @property
    def server(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def listen(self) -> str:
        """Clients elsewhere reach a server only if it listens beyond loopback."""
        is_local = self.host == "localhost" or self.host.startswith("127.")
        return "127.0.0.1" if is_local else "0.0.0.0"


def _is_host(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        # A name of digits and dots alone is an address with a mistake in it.
        return HOST_NAME.fullmatch(text) is not None and not re.fullmatch(r"[0-9.]+", text)


def flower_app(run: Mapping[str, Any], name: str = "federation") -> dict[str, Any]:
    """The table of a `pyproject.toml` without code, with `run` as its run config."""
    app = {"publisher": "concordfl", "components": APPS, "config": run}
    about = {
        "name": name,
        "version": "1.0.0",
        "description": "a run of concordfl",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    return {"project": about, "tool": {"flwr": {"app": app}}}


# --- clients --------------------------------------------------------------------------------------


def parse_clients(given: Sequence[str]) -> list[Client]:
    """Clients that are given as NAME=FOLDER or NAME=simulated."""
    if not given:
        raise SettingError("at least one client must be given, as NAME=FOLDER")
    names: dict[str, str] = {}
    for text in given:
        name, sign, data = text.partition("=")
        if not (sign and name and data):
            raise SettingError(f"a client must be given as NAME=FOLDER, got {quote(text)}")
        if name in names:
            raise SettingError(f"every client must have another name, got {quote(name)} twice")
        names[name] = _data(_encodable(name), data)
    folders = folder_names(list(names))
    return [Client(name, folders[name], data) for name, data in names.items()]


def _encodable(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise SettingError(f"a client's name must be valid Unicode, got {quote(name)}") from None
    if len(name) > MAX_NAME_CHARACTERS:
        raise SettingError(
            f"a client's name must have at most {MAX_NAME_CHARACTERS} characters, got {len(name)}"
        )
    return name


def _data(name: str, data: str) -> str:
    if data == SIMULATED:
        return data
    folder = Path(data).expanduser().absolute()
    if not folder.is_dir():
        raise SettingError(
            f"the data of client {quote(name)} must be a folder that exists, or {SIMULATED!r}, got "
            f"{quote(data)}"
        )
    return _encodable_path(folder)


def _encodable_path(folder: Path) -> str:
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        raise SettingError(
            f"the path of a client's data must be valid Unicode, got {quote(str(folder))}"
        ) from None
    return str(folder)


def folder_names(names: Sequence[str]) -> dict[str, str]:
    """A folder's name for each client: readable, safe everywhere, and different also where large
    and small letters are the same.

    >>> list(folder_names(["Zürich", "ward 3", "../ward-3", "WARD-3", "病院"]).values())
    ['Zurich', 'ward-3', 'ward-3-2', 'WARD-3-3', 'client']
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for name in names:
        plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
        stem = re.sub(r"[^A-Za-z0-9_]+", "-", plain)[:MAX_FOLDER_CHARACTERS].strip("-") or "client"
        folder, number = stem, 1
        while folder.lower() in taken:
            number += 1
            folder = f"{stem}-{number}"
        taken.add(folder.lower())
        found[name] = folder
    return found
