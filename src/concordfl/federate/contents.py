"""What the files of a project hold: scripts and READMEs from templates, settings, keys."""

import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import tomli_w

from ..config import Config
from ..data.text import quote
from ..engine.flower.client import ClientSettings
from ..engine.flower.server import ServerSettings, require_federable
from .certificates import VALID_DAYS, make_certificates, make_node_key
from .project import FORMAT, PROJECT_FILE, SIMULATED, Choices, Client, Project, flower_app

FIRST_LOCAL_PORT, LOCAL_PORTS = 9094, 50_000  # of SuperNodes; the first is Flower's default
SECRET, SCRIPT, PLAIN = 0o600, 0o755, 0o644
# how `flwr` is told to reach the server, in its config.toml
SECURE_LINK, INSECURE_LINK = 'root-certificates = "$HERE/ca.pem"', "insecure = true"
INSECURE = "nothing is encrypted, and anybody can take part as any client"


class File(NamedTuple):
    content: bytes
    mode: int = PLAIN


Files = dict[str, File]
Values = Mapping[str, str]


def make_files(settings: Config, clients: Sequence[Client], choices: Choices) -> Files:
    """All files by their paths; settings are checked by those who will read them."""
    require_federable(settings)
    values = _shared_values(choices, len(clients))
    names = {client.folder: client.name for client in clients}
    project = Project(FORMAT, names, choices.port, choices.insecure)
    files = {
        PROJECT_FILE: _toml(project.to_table()),
        "README.md": _fill("README.md", values, CLIENTS="\n".join(map(_row, clients))),
        **_below("server", _server_files(values, choices)),
        **_below("submit", _submit_files(settings, values, choices, len(clients))),
    }
    for number, client in enumerate(clients):
        local = {"LOCAL_PORT": str(_local_port(number, choices.port))}
        own = _client_files(client, {**values, **local}, choices)
        files |= _below(f"clients/{client.folder}", own)
    return files if choices.insecure else files | _secrets(clients, choices)


def _shared_values(choices: Choices, count: int) -> dict[str, str]:
    note = "note-insecure.md" if choices.insecure else "note-trial.md"
    return {
        "NOTE": _template(note).strip().replace("@VALID_DAYS@", str(VALID_DAYS)),
        "WARNING": f'echo "INSECURE: {INSECURE}." >&2' if choices.insecure else "",
        "CONNECTION": INSECURE_LINK if choices.insecure else SECURE_LINK,
        "COUNT": str(count),
        "HOST": choices.host,
        "PORT": str(choices.port),
        "SERVER": choices.server,
        "LISTEN": choices.listen,
    }


def _server_files(values: Values, choices: Choices) -> Files:
    safety, keys, registration = "--insecure", "", ""
    if not choices.insecure:
        safety = (
            "--enable-supernode-auth \\\n"
            "    --ssl-certfile server.pem --ssl-keyfile server.key --ssl-ca-certfile ca.pem"
        )
        kind = "IP" if choices.is_address else "DNS"
        subject = ",".join(dict.fromkeys((f"{kind}:{choices.host}", "IP:127.0.0.1")))
        keys = _fill_text("README-server-keys.md", values, SUBJECT=subject)
        registration = _template("server-registration.sh").rstrip()
    files = {
        "README.md": _fill("README-server.md", values, KEYS=keys),
        "environment.sh": _fill("server-environment.sh", values),
        "start.sh": _script("server-start.sh", values, SAFETY=safety, REGISTRATION=registration),
    }
    return files if choices.insecure else files | {"register.sh": _script("server-register.sh", {})}


def _client_files(client: Client, values: Values, choices: Choices) -> Files:
    node = {
        "name": client.name,
        "states": "states",  # below the folder of start.sh
        "data": client.data,
        "share": "size",
        "trust": False,
    }
    ClientSettings.from_table(node, f"client {quote(client.name)}")
    safety = "--insecure"
    if not choices.insecure:
        safety = "\\\n    --root-certificates ca.pem --auth-supernode-private-key node.key"
    meaning = "the folder of its data: write here where it is on this machine"
    if client.data == SIMULATED:
        meaning = "its part of the federation that the run file simulates"
    own = {**values, "NAME": code_span(client.name), "FOLDER": client.folder}
    keys = "" if choices.insecure else _fill_text("README-client-keys.md", own)
    data = {"DATA": _cell(client.data), "DATA_MEANING": meaning, "NAME_CELL": _cell(client.name)}
    return {
        "README.md": _fill("README-client.md", own, KEYS=keys, **data),
        "node.toml": _toml(node),
        "start.sh": _script("client-start.sh", values, SAFETY=safety),
    }


def _submit_files(settings: Config, values: Values, choices: Choices, count: int) -> Files:
    run = {
        "run": settings.to_toml(),
        "file": "",
        "out": "run",  # below the folder of the server's start.sh
        "clients": count,
        "timeout": choices.timeout,
        "wait": choices.wait,
    }
    ServerSettings.from_table(run, "submit").read()
    seconds = {"WAIT": f"{choices.wait:g}", "TIMEOUT": f"{choices.timeout:g}"}
    return {
        "README.md": _fill("README-submit.md", values, **seconds),
        "pyproject.toml": _toml(flower_app(run), multiline=True),
        "environment.sh": _fill("submit-environment.sh", values),
        "submit.sh": _script("submit-submit.sh", values),
    }


def _secrets(clients: Sequence[Client], choices: Choices) -> Files:
    """Certificates and keys; each private one is in one folder alone."""
    made = make_certificates(choices.host)
    files: Files = {
        "server/server.pem": File(made.server),
        "server/server.key": File(made.server_key, SECRET),
    }
    for folder in ("server", "submit", *(f"clients/{client.folder}" for client in clients)):
        files[f"{folder}/ca.pem"] = File(made.authority)
    for client in clients:
        key = make_node_key()
        files[f"clients/{client.folder}/node.key"] = File(key.private, SECRET)
        files[f"server/keys/{client.folder}.pub"] = File(key.public)
    return files


def _local_port(number: int, taken: int) -> int:
    """Another for each SuperNode, so that all can be tried out on one machine."""
    port = FIRST_LOCAL_PORT + number % LOCAL_PORTS
    return port if port < taken or taken < FIRST_LOCAL_PORT else port + 1


# --- text -----------------------------------------------------------------------------------------


def code_span(text: str) -> str:
    """Anybody's text as Markdown shows it: as it is, on one line."""
    letters = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
    line = "".join(letters)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    pad = " " if line.startswith(("`", " ")) or line.endswith(("`", " ")) else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def _cell(text: str) -> str:
    """The same in a table."""
    return code_span(text).replace("|", "\\|")


def _row(client: Client) -> str:
    return f"| {_cell(client.name)} | `clients/{client.folder}` | {_cell(client.data)} |"


def _template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _fill_text(name: str, values: Values, **own: str) -> str:
    """A template with its @PLACES@ filled."""
    known = {**values, **own}
    return re.sub("@([A-Z_]+)@", lambda place: known[place[1]], _template(name))


def _fill(name: str, values: Values, **own: str) -> File:
    text = _fill_text(name, values, **own)
    return File((re.sub("\n{3,}", "\n\n", text).rstrip() + "\n").encode())


def _script(name: str, values: Values, **own: str) -> File:
    return _fill(name, values, **own)._replace(mode=SCRIPT)


def _toml(table: Mapping[str, Any], *, multiline: bool = False) -> File:
    return File(tomli_w.dumps(table, multiline_strings=multiline).encode())


def _below(folder: str, files: Files) -> Files:
    return {f"{folder}/{path}": file for path, file in files.items()}
