"""`concordfl federate up`: real services on loopback, and none of them afterwards."""

import contextlib
import io
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tomli_w

import concordfl as cf
from command import concordfl
from concordfl.cli.federate_display import FederationDisplay
from concordfl.cli.terminal import PlainConsole
from concordfl.federate.local import View
from concordfl.federate.services import BIN, Services, free_port, wait_until

pytest.importorskip("flwr", reason="Flower is not installed: pip install concordfl[flower]")
needs_services = pytest.mark.skipif(
    not (BIN / "flower-superlink").exists(), reason="Flower's services are not installed"
)

SECONDS = 900  # which a run may take on a busy machine
RUN = {
    "run": {"rounds": 2, "evaluate_every": 2, "checkpoint_seconds": 0},
    "data": {"name": "digits", "limit": 300},
    "scenario": {"clients": 2},
    "training": {"lr": 0.1, "batch_size": 32},
    "algorithm": {"name": "apfl"},
}


def make(folder, run=RUN, *options):
    """A project with two simulated clients."""
    file = folder / "run.toml"
    file.write_text(tomli_w.dumps(run))
    clients = ("--clients", "client-0=simulated", "client-1=simulated")
    given = ("--run", file, *clients, "--port", free_port(), *options)
    done = concordfl(folder, "federate", "init", folder / "project", *given)
    assert done.returncode == 0, done.stderr
    return folder / "project"


def processes_of(folder):
    """Of this machine, those that work in the folder; ended ones do not."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if process.name.isdigit() and (process / "cwd").readlink().is_relative_to(folder):
                found.append(process.name)
    return found


def simulated(run):
    return cf.run({**run, "run": {**run["run"], "executor": "serial"}}).summary


@needs_services
def test_up_gives_the_bits_of_the_simulation(tmp_path, monkeypatch):
    """With one port taken, and the user's own Flower home untouched."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    project = make(tmp_path)
    port = int(re.search(r"port = (\d+)", (project / "federation.toml").read_text())[1])
    with socket.create_server(("127.0.0.1", port)):
        done = concordfl(tmp_path, "federate", "up", project)
    assert done.returncode == 0, done.stderr + (project / "logs/server.log").read_text()
    assert processes_of(project) == []
    summary = json.loads((project / "server/run/summary.json").read_text())
    assert summary["parameters_sha256"] == simulated(RUN)["parameters_sha256"]
    assert summary["missing"] == {}
    assert f"Port {port} is taken" in done.stdout
    for line in ("client-0: connected", "client-1: taking part", "round 2/2", "Results are in"):
        assert line in done.stdout
    for client in ("client-0", "client-1"):
        assert list((project / "clients" / client / "states").iterdir())
    assert not (tmp_path / "home").exists()
    again = concordfl(tmp_path, "federate", "up", project)
    assert again.returncode == 0
    assert "has finished; another needs another project" in again.stdout
    assert "round 2/2" not in again.stdout


@needs_services
@pytest.mark.slow
def test_ctrl_c_leaves_nothing_and_up_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    run = {**RUN, "run": {**RUN["run"], "rounds": 4}}
    project = make(tmp_path, run)
    checkpoint = project / "server/run/checkpoint"
    up = subprocess.Popen(
        [sys.executable, "-m", "concordfl", "federate", "up", str(project)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background ignores it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    wait_until(lambda: list(checkpoint.glob("manifest-*1.json")), "round 1", SECONDS)
    busy = concordfl(tmp_path, "federate", "up", project)
    assert busy.returncode == 2
    assert "can be up once at a time" in busy.stderr
    assert processes_of(project)
    up.send_signal(signal.SIGINT)
    _, errors = up.communicate(timeout=120)
    assert up.returncode == 128 + signal.SIGINT
    assert errors.count("\n") == 1
    assert f"`concordfl federate up {project}` goes on from the last checkpoint" in errors
    assert processes_of(project) == []
    done = concordfl(tmp_path, "federate", "up", project)
    assert done.returncode == 0, done.stderr
    summary = json.loads((project / "server/run/summary.json").read_text())
    assert summary["parameters_sha256"] == simulated(run)["parameters_sha256"]


@needs_services
@pytest.mark.slow
def test_a_process_that_dies_ends_all_and_is_named(tmp_path):
    project = make(tmp_path)
    key = project / "clients/client-1/node.key"
    key.write_bytes((project / "server/server.key").read_bytes())  # nobody has registered it
    done = concordfl(tmp_path, "federate", "up", project)
    assert done.returncode == 2
    assert re.fullmatch(
        r"concordfl: clients/client-1 has ended .*logs/clients/client-1\.log\n", done.stderr
    )
    assert processes_of(project) == []


@needs_services
@pytest.mark.slow
def test_why_a_run_has_failed_is_said(tmp_path):
    """Here: three clients are wanted, and two come."""
    project = make(tmp_path, RUN, "--wait", "1")
    file = project / "submit/pyproject.toml"
    file.write_text(file.read_text().replace("clients = 2\ntimeout", "clients = 3\ntimeout"))
    done = concordfl(tmp_path, "federate", "up", project)
    assert done.returncode == 2
    assert "the run has failed: 3 clients must be there within 1 s, got" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert processes_of(project) == []


# --- what a network observer sees -----------------------------------------------------------------


class RecordingProxy:
    """Passes bytes on between a client and the server, and keeps them."""

    def __init__(self, port):
        self.target, self.seen = port, {"up": bytearray(), "down": bytearray()}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        with near, socket.create_connection(("127.0.0.1", self.target)) as far:
            upwards = threading.Thread(target=self._pass_on, args=("up", near, far), daemon=True)
            upwards.start()
            self._pass_on("down", far, near)
            upwards.join()

    def _pass_on(self, way, source, sink):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.seen[way] += data
                sink.sendall(data)
        for side in (source, sink):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


def observed(project):
    """Run a project by its scripts, client 0 through a proxy; what passed there."""
    port = free_port()
    proxy = RecordingProxy(port)
    server = f"127.0.0.1:{port}"
    logs = project / "logs"
    logs.mkdir()
    settings = {"CONCORDFL_PORT": str(port), "CONCORDFL_SERVER": server, "OMP_NUM_THREADS": "1"}
    with Services(logs, settings) as services:
        services.start("server", ["bash", "start.sh"], project / "server")
        ready = "may come" if (project / "server/keys").exists() else "Uvicorn running"
        wait_until(lambda: ready in services.log_text("server"), "the server", SECONDS)
        for number in (0, 1):
            own = {"CONCORDFL_LOCAL_PORT": str(free_port())}
            if number == 0:
                own["CONCORDFL_SERVER"] = f"127.0.0.1:{proxy.port}"
            folder = project / "clients" / f"client-{number}"
            services.start(f"client-{number}", ["bash", "start.sh"], folder, own)
        services.start("submit", ["bash", "submit.sh"], project / "submit")
        ended = lambda: "Finished task" in services.log_text("server")  # noqa: E731
        wait_until(ended, "the run must end", SECONDS)
    proxy.listener.close()
    assert processes_of(project) == []
    return {way: bytes(data) for way, data in proxy.seen.items()}


def parameters(project):
    """Of the final model, as they stand in memory."""
    from safetensors.torch import load_file

    tensors = load_file(project / "server/run/models/final.safetensors")
    return [tensor.numpy().tobytes() for tensor in tensors.values() if tensor.numel() >= 10]


@needs_services
@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--insecure",)], ids=["encrypted", "insecure"])
def test_an_observer_reads_tensors_only_where_nothing_is_encrypted(tmp_path, options):
    run = {**RUN, "algorithm": {"name": "fedavg"}}
    project = make(tmp_path, run, *options)
    seen = observed(project)
    summary = json.loads((project / "server/run/summary.json").read_text())
    assert summary["parameters_sha256"] == simulated(run)["parameters_sha256"]
    assert all(len(data) > 10_000 for data in seen.values())
    found = {way: any(part in data for part in parameters(project)) for way, data in seen.items()}
    # The model goes to clients; what they send back is another, in a record of concordfl's.
    assert found == {"up": False, "down": bool(options)}
    records = {way: b"concordfl.tree" in data for way, data in seen.items()}
    assert records == dict.fromkeys(("up", "down"), bool(options))


# --- the display ----------------------------------------------------------------------------------


def test_the_display_shows_who_is_there_and_who_is_missing():
    names = {"<b>\x1b[31m": "starting", **{f"client-{n}": "taking part" for n in range(14)}}
    view = View("clients come", names, ("takes no part: \x1b[2J",), None)
    console = PlainConsole(width=100, file=io.StringIO(), force_terminal=True)
    console.print(FederationDisplay(Path("project"), view))
    text = re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())
    assert "14 of 15 clients take part  clients come" in text
    assert text.splitlines()[1].split() == ["<b>\\x1b[31m", "starting"]
    assert "and 3 more" in text
    assert "! takes no part: \\x1b[2J" in text
