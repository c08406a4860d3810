"""`concordfl federate init`: what a project holds, and what is refused without a trace."""

import ipaddress
import os
import re
import ssl
import stat
import subprocess
import tomllib

import pytest

from command import concordfl
from concordfl.config import Config
from concordfl.core import SettingError

pytest.importorskip("flwr", reason="Flower is not installed: pip install concordfl[flower]")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.verification import PolicyBuilder, Store

from concordfl.engine.flower.client import ClientSettings
from concordfl.engine.flower.server import ServerSettings
from concordfl.federate import contents, init
from concordfl.federate.project import Choices, Project, folder_names, parse_clients

RUN = """
run = {rounds = 2}
data = {name = "digits", limit = 200}
scenario = {clients = 3}
"""
CLIENTS = ("client-0", "client-1", "client-2")
PRIVATE = re.compile(rb"PRIVATE KEY")


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text(RUN)
    return file


def make(run_file, *options, clients=CLIENTS, name="project"):
    given = [part for client in clients for part in ("--clients", f"{client}=simulated")]
    folder = run_file.parent / name
    done = concordfl(
        run_file.parent, "federate", "init", folder, "--run", run_file, *given, *options
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    file = tmp_path_factory.mktemp("federate") / "run.toml"
    file.write_text(RUN)
    return make(file)


def files(folder):
    return {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- what a project holds -------------------------------------------------------------------------


def test_each_role_has_its_folder(project):
    found = files(project)
    common = {"README.md", "start.sh", "ca.pem"}
    for client in CLIENTS:
        own = {path.split("/", 2)[2] for path in found if path.startswith(f"clients/{client}/")}
        assert own == common | {"node.toml", "node.key"}
    server = {path.split("/", 1)[1] for path in found if path.startswith("server/")}
    keys = {f"keys/{client}.pub" for client in CLIENTS}
    secrets = {"server.pem", "server.key", "environment.sh", "register.sh"}
    assert server == common | secrets | keys
    submit = {path.split("/", 1)[1] for path in found if path.startswith("submit/")}
    assert submit == {"README.md", "submit.sh", "environment.sh", "pyproject.toml", "ca.pem"}
    assert {path.name for path in project.iterdir()} == {
        "README.md",
        "federation.toml",
        "server",
        "clients",
        "submit",
    }
    assert Project.read(project).clients == {client: client for client in CLIENTS}


def test_private_keys_are_private_and_nowhere_else(project):
    secret = {path for path, file in files(project).items() if PRIVATE.search(file.read_bytes())}
    assert secret == {"server/server.key", *(f"clients/{client}/node.key" for client in CLIENTS)}
    for path, file in files(project).items():
        expected = 0o600 if path in secret else 0o755 if path.endswith("/start.sh") else None
        if expected:
            assert mode(file) == expected, path
    for client in CLIENTS:
        states = project / "clients" / client / "states"
        assert mode(states) == 0o700
        assert not list(states.iterdir())


def test_a_clients_folder_holds_nothing_of_another(project):
    for client in CLIENTS:
        others = [name.encode() for name in CLIENTS if name != client]
        keys = [
            (project / "server" / "keys" / f"{name.decode()}.pub").read_bytes() for name in others
        ]
        for path in (project / "clients" / client).rglob("*"):
            if path.is_file():
                text = path.read_bytes()
                assert not any(word in text for word in [*others, *keys]), path
                assert str(project).encode() not in text


def test_settings_are_those_that_the_apps_read(project, run_file):
    app = tomllib.loads((project / "submit/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    given = ServerSettings.from_table(app["config"], "run-config")
    assert (given.clients, given.out, given.timeout, given.wait) == (3, "run", 600.0, 600.0)
    assert given.read() == Config.from_table(tomllib.loads(RUN))
    node = tomllib.loads((project / "clients/client-1/node.toml").read_text())
    own = ClientSettings.from_table(node, "node-config")
    assert (own.name, own.data, own.share, own.trust) == ("client-1", "simulated", "size", False)


def test_the_certificate_is_the_servers_by_its_authority(run_file):
    server = make(run_file, "--host", "fl.example.org") / "server"
    authority, own = (
        x509.load_pem_x509_certificate((server / name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    for subject in (
        x509.DNSName("fl.example.org"),
        x509.DNSName("localhost"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ):
        verifier = PolicyBuilder().store(Store([authority])).build_server_verifier(subject)
        assert verifier.verify(own, []) == [own, authority]
    verifier = (
        PolicyBuilder().store(Store([authority])).build_server_verifier(x509.DNSName("other"))
    )
    with pytest.raises(x509.verification.VerificationError):
        verifier.verify(own, [])
    days = (own.not_valid_after_utc - own.not_valid_before_utc).days
    assert 30 <= days <= 398
    # The pair belongs together.
    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(
        server / "server.pem", server / "server.key"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_handshake_by_the_authority_alone(run_file, host):
    """Python's own TLS, as strict as it can be."""
    server = make(run_file) / "server"
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / "server.pem", server / "server.key")
    theirs = ssl.create_default_context(cafile=server / "ca.pem")
    theirs.verify_flags |= ssl.VERIFY_X509_STRICT
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    sides = [
        theirs.wrap_bio(pipes[0], pipes[1], server_hostname=host),
        ours.wrap_bio(pipes[1], pipes[0], server_side=True),
    ]
    for _ in range(4):
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert sides[0].version() == "TLSv1.3"
    assert sides[0].getpeercert()["subjectAltName"]


def test_a_registered_key_is_the_clients(project):
    for client in CLIENTS:
        private = serialization.load_ssh_private_key(
            (project / "clients" / client / "node.key").read_bytes(), None
        )
        public = serialization.load_ssh_public_key(
            (project / "server" / "keys" / f"{client}.pub").read_bytes()
        )
        assert private.public_key() == public
        assert private.curve.name == "secp384r1"


def test_scripts_are_bash_and_start_nothing_without_encryption(project):
    scripts = [file for path, file in files(project).items() if path.endswith(".sh")]
    assert len(scripts) == 8
    for script in scripts:
        subprocess.run(["bash", "-n", script], check=True)
        assert "insecure" not in script.read_text().lower()
    for path, file in files(project).items():
        if path.endswith("README.md"):
            assert "FOR TRYING OUT ONLY" in file.read_text()
        assert not re.search("@[A-Z_]+@", file.read_text()), path  # every place is filled


def test_insecure_is_said_everywhere(run_file):
    project = make(run_file, "--insecure")
    found = files(project)
    assert not any(path.endswith((".pem", ".key", ".pub", "register.sh")) for path in found)
    for path, file in found.items():
        if path.endswith(("README.md", "start.sh", "submit.sh")):
            assert "INSECURE" in file.read_text(), path
    assert Project.read(project).insecure


def test_what_the_options_say(run_file):
    project = make(
        run_file,
        *("--host", "10.1.2.3", "--port", "9443", "--timeout", "7.5", "--wait", "90"),
        clients=CLIENTS[:2],
    )
    app = tomllib.loads((project / "submit/pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["config"]["timeout"] == 7.5
    assert app["config"]["wait"] == 90.0
    assert app["config"]["clients"] == 2
    assert ":-10.1.2.3:9443}" in (project / "clients/client-0/start.sh").read_text()
    assert "LISTEN:-0.0.0.0}" in (project / "server/environment.sh").read_text()
    ports = [
        re.search(r"LOCAL_PORT:-(\d+)}", (project / f"clients/{name}/start.sh").read_text())[1]
        for name in CLIENTS[:2]
    ]
    assert len(set(ports)) == 2


def shell_of(readme, start):
    """The block of a README that begins with `start`."""
    blocks = re.findall(r"```sh\n(.*?)```", readme.read_text(), re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(start)]
    return found


def test_own_keys_are_made_as_the_readmes_say(run_file):
    project = make(run_file, "--host", "fl.example.org")
    server, client = project / "server", project / "clients/client-0"
    before = (server / "ca.pem").read_bytes()
    for folder, start in ((server, "openssl"), (client, "rm")):
        command = shell_of(folder / "README.md", start)
        if subprocess.run(["which", "openssl", "ssh-keygen"], stdout=subprocess.DEVNULL).returncode:
            pytest.skip("openssl and ssh-keygen are not installed")
        subprocess.run(["bash", "-eu", "-c", command], cwd=folder, check=True, capture_output=True)
    authority, own = (
        x509.load_pem_x509_certificate((server / name).read_bytes())
        for name in ("ca.pem", "server.pem")
    )
    assert (server / "ca.pem").read_bytes() != before
    own.verify_directly_issued_by(authority)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    theirs = ssl.create_default_context(cafile=server / "ca.pem")
    assert theirs.cert_store_stats()["x509_ca"] == 1
    key = serialization.load_ssh_public_key((client / "node.key.pub").read_bytes())
    private = serialization.load_ssh_private_key((client / "node.key").read_bytes(), None)
    assert private.public_key() == key
    assert mode(client / "node.key") == 0o600


# --- data -----------------------------------------------------------------------------------------

OWN_RUN = """
data = {folder = "hospitals", label = "sick"}
"""


@pytest.fixture
def hospitals(tmp_path):
    for name in ("north", "south"):
        folder = tmp_path / "hospitals of their own" / name
        folder.mkdir(parents=True)
        (folder / "patients.csv").write_text("age,sick\n1,no\n2,yes\n3,no\n")
    (tmp_path / "run.toml").write_text(OWN_RUN)
    return tmp_path


def init_for(folder, *clients):
    given = [part for client in clients for part in ("--clients", client)]
    return concordfl(folder, "federate", "init", "project", "--run", "run.toml", *given)


def test_a_clients_data_are_its_own_folder(hospitals):
    own = hospitals / "hospitals of their own"
    done = init_for(hospitals, "north=hospitals of their own/north", f"south={own / 'south'}")
    assert done.returncode == 0, done.stderr
    for name in ("north", "south"):
        folder = hospitals / "project/clients" / name
        assert tomllib.loads((folder / "node.toml").read_text())["data"] == str(own / name)
        assert f"`{own / name}`" in (folder / "README.md").read_text()
    assert str(own / "north") not in (hospitals / "project/clients/south/README.md").read_text()


def test_folders_and_run_files_that_do_not_fit_are_refused(hospitals):
    north, south = (f"{name}=hospitals of their own/{name}" for name in ("north", "south"))
    mixed = init_for(hospitals, north, "south=simulated")
    assert "all clients must be simulated or none, got 1 of 2" in mixed.stderr
    (hospitals / "hospitals of their own/south/more.csv").write_text("age,sick\n1,no\n")
    crowded = init_for(hospitals, north, south)
    assert "client 'south': the data folder must hold one .csv file" in crowded.stderr
    (hospitals / "run.toml").write_text(RUN)
    other = init_for(hospitals, north)
    assert "data must be given as folder = ... in the run file" in other.stderr
    for done in (mixed, crowded, other):
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
    assert not (hospitals / "project").exists()


# --- names ----------------------------------------------------------------------------------------


def test_names_are_anybodys_text_and_folders_are_safe():
    names = ["../up", "a/b", "a b", "A-B", "..", ".", "Zürich", "病院", "-x", "<script>", "x" * 150]
    names += ["`", "a|b", "line\nbreak", "CON\x00", "\u202eab"]
    folders = folder_names(names)
    assert len({folder.lower() for folder in folders.values()}) == len(names)
    for folder in folders.values():
        assert re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", folder), folder


def test_a_name_is_kept_as_it_is_and_shown_as_text():
    hostile = "</script>`` \n\u202e|x"
    (client,) = parse_clients([f"{hostile}=simulated"])
    assert client.name == hostile
    made = contents.make_files(Config.from_table(tomllib.loads(RUN)), [client], Choices())
    own = f"clients/{client.folder}"
    assert tomllib.loads(made[f"{own}/node.toml"].content.decode())["name"] == hostile
    readme = made[f"{own}/README.md"].content.decode()
    assert hostile not in readme
    shown = "```</script>`` \\n\\u202e|x```"
    assert shown in readme.splitlines()[0]
    assert shown.replace("|", "\\|") in readme  # in its table


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--clients", "client-0"], "must be given as NAME=FOLDER, got 'client-0'"),
        (["--clients", "=x"], "must be given as NAME=FOLDER, got '=x'"),
        (["--clients", "a=nowhere"], "must be a folder that exists, or 'simulated', got 'nowhere'"),
        (["--clients", "x=simulated"], "one of the run file's, got 'x': known are client-0"),
        (["--clients", "client-0=simulated", "client-0=simulated"], "another name, got 'client-0'"),
        (["--clients", "a\udc80=simulated"], "must be valid Unicode"),
        (["--clients", f"{'a' * 201}=simulated"], "at most 200 characters, got 201"),
        (["--clients", "client-0=simulated", "--host", "a b"], "host must be a name or an IPv4"),
        (["--clients", "client-0=simulated", "--host", "1.2.3"], "host must be a name or an IPv4"),
        (["--clients", "client-0=simulated", "--host", "$(x)"], "host must be a name or an IPv4"),
        (["--clients", "client-0=simulated", "--port", "0"], "port must be >= 1, got 0"),
        (["--clients", "client-0=simulated", "--timeout", "0"], "timeout must be > 0, got 0.0"),
        (["--clients", "client-0=simulated", "--wait", "nan"], "wait must be a finite number"),
        (["--clients", "client-0=simulated", "--run", "none.toml"], "the run file must exist"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(run_file, options, rule):
    before = {*run_file.parent.iterdir()}
    given = ["--run", run_file] * ("--run" not in options)
    done = concordfl(run_file.parent, "federate", "init", "project", *given, *options)
    assert done.returncode == 2
    assert rule in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert {*run_file.parent.iterdir()} == before


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('algorithm = {name = "centralized"}', "data must stay with them, got Centralized"),
        ('algorithm = {name = "fedavgg"}', "fedavg"),
        ("[run", "must be a TOML file"),
    ],
)
def test_a_bad_run_file_is_refused(run_file, text, rule):
    run_file.write_text(RUN + text)
    clients = ["--clients", "client-0=simulated"]
    done = concordfl(run_file.parent, "federate", "init", "project", "--run", run_file, *clients)
    assert done.returncode == 2
    assert rule in done.stderr
    assert [*run_file.parent.iterdir()] == [run_file]


def test_a_used_folder_is_refused_and_an_empty_one_filled(run_file):
    empty = run_file.parent / "empty"
    empty.mkdir()
    inode = empty.stat().st_ino
    assert make(run_file, name="empty").stat().st_ino == inode
    kept = files(empty)["README.md"].read_bytes()
    done = concordfl(
        *(run_file.parent, "federate", "init", "empty", "--run", run_file),
        *("--clients", "client-0=simulated"),
    )
    assert done.returncode == 2
    assert "a new or empty folder, got empty with files" in done.stderr
    assert files(empty)["README.md"].read_bytes() == kept
    with pytest.raises(SettingError, match="which is a file|a file"):
        init.create(run_file, run_file, ["client-0=simulated"], Choices())


@pytest.mark.parametrize("existing", [False, True])
def test_a_failure_while_writing_leaves_nothing(run_file, monkeypatch, existing):
    folder = run_file.parent / "project"
    if existing:
        folder.mkdir()
    before = {*run_file.parent.rglob("*")}
    real, written = os.replace if existing else init._write, []

    def fail(*given):
        written.append(given)
        if len(written) == 4:
            raise OSError(28, "No space left on device")
        return real(*given)

    monkeypatch.setattr(*((os, "replace") if existing else (init, "_write")), fail)
    with pytest.raises(Exception, match="cannot be written: No space left"):
        init.create(folder, run_file, ["client-0=simulated"], Choices())
    assert {*run_file.parent.rglob("*")} == before


def test_without_flower_one_line_says_how_to_get_it(run_file, monkeypatch):
    monkeypatch.setattr(init.importlib.util, "find_spec", lambda name: None)
    done = concordfl(
        *(run_file.parent, "federate", "init", "project", "--run", run_file),
        *("--clients", "client-0=simulated"),
    )
    assert done.returncode == 2
    assert "pip install 'concordfl[flower]'" in done.stderr


def test_own_code_is_named(run_file):
    run_file.write_text(RUN + 'model = {name = "toy_models:build"}')
    done = concordfl(
        *(run_file.parent, "federate", "init", "project", "--run", run_file),
        *("--clients", "client-0=simulated"),
    )
    assert done.returncode == 0, done.stderr
    assert "model.name = toy_models:build is not concordfl's" in done.stdout


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "got . without federation.toml"),
        ("[", "must be a TOML file"),
        ("format = 2", "format must be 1, got 2"),
        ("format = 1", "missing"),
        (
            'format = 1\nport = 1\ninsecure = 3\nclients = {a = "a"}',
            "insecure must be true or false",
        ),
    ],
)
def test_a_folder_that_is_no_project_is_refused(tmp_path, text, rule):
    if text is not None:
        (tmp_path / "federation.toml").write_text(text)
    done = concordfl(tmp_path, "federate", "up", ".")
    assert done.returncode == 2
    assert rule in done.stderr
    assert len(done.stderr.splitlines()) == 1
