"""A SuperLink and SuperNodes as processes on loopback, for as long as a test needs them."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import tomli_w

BIN = Path(sys.executable).parent
START_SECONDS = 180  # which a busy machine may take
# Flower must not reach out.
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def wait_until(is_so, what, seconds=START_SECONDS):
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} within {seconds} s")
        time.sleep(0.2)


class Services:
    """The processes of a federation; `folder` holds all that they write.

    With `certificates`, a folder of them, it is encrypted, and nodes must have registered keys.
    """

    def __init__(self, folder, certificates=None):
        self.folder, self.port, self.certificates = folder, free_port(), certificates
        self.processes = {}
        home = folder / "home"
        home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            **OFFLINE,
            "FLWR_HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }
        safety = {"insecure": True}
        if certificates is not None:
            safety = {"root-certificates": str(certificates / "ca.pem")}
        link = {"address": f"127.0.0.1:{self.port}", **safety}
        config = {"superlink": {"default": "here", "here": link}}
        (home / "config.toml").write_text(tomli_w.dumps(config))

    def __enter__(self):
        self.start_link()
        return self

    def __exit__(self, *_):
        for name in list(self.processes):
            self.stop(name)

    def start(self, name, *command):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *map(str, command[1:])],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def stop(self, name, how=signal.SIGTERM):
        """End a process and those that it has started: they are a session of their own."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whoever is left of the session

    def log_of(self, name):
        file = self.folder / f"{name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def start_link(self):
        self.runs = self._ended()  # a run that was killed with the SuperLink before never ends
        safety = ["--insecure"]
        if self.certificates is not None:
            files = {"cert": "server.pem", "key": "server.key", "ca-cert": "ca.pem"}
            named = [(f"--ssl-{kind}file", self.certificates / n) for kind, n in files.items()]
            safety = ["--enable-supernode-auth", *(part for pair in named for part in pair)]
        options = ("--host", "127.0.0.1", "--port", self.port, *safety)
        self.start(
            "link", "flower-superlink", *options, "--disable-runtime-dependency-installation"
        )
        wait_until(self._is_listening, "the SuperLink must start")

    def _is_listening(self):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)):
            return True
        return False

    def start_node(self, client, key=None, certificates=None, **config):
        """The SuperNode of a client; its states are in a folder of its name."""
        own = {"name": client, "states": str(self.folder / "states" / client), "data": "simulated"}
        file = self.folder / f"{client}.toml"
        file.write_text(tomli_w.dumps({**own, "share": "size,labels,group,digest", **config}))
        safety = ["--insecure"]
        if key is not None:
            roots = (certificates or self.certificates) / "ca.pem"
            safety = ["--root-certificates", roots, "--auth-supernode-private-key", key]
        link = ("--superlink", f"127.0.0.1:{self.port}", *safety)
        own = ("--host", "127.0.0.1", "--port", free_port(), "--node-config", file)
        self.start(client, "flower-supernode", *link, *own)

    def run(self, name, settings, **config):
        """Submit a run with these settings; its folder."""
        app, out = self.folder / f"app-{name}", self.folder / name
        app.mkdir(exist_ok=True)
        given = {"run": tomli_w.dumps(settings), "file": "", "out": str(out), **config}
        components = {
            "serverapp": "concordfl.engine.flower.server:app",
            "clientapp": "concordfl.engine.flower.client:app",
        }
        flower = {"publisher": "concordfl", "components": components, "config": given}
        project = {"name": name, "version": "1.0.0", "description": "a test", "dependencies": []}
        project["license"] = "Apache-2.0"
        table = {"project": project, "tool": {"flwr": {"app": flower}}}
        (app / "pyproject.toml").write_text(tomli_w.dumps(table))
        self.runs += 1
        self.flwr("run", app, "here")
        return out

    def flwr(self, *command):
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, command)],
            env=self.environment,
            capture_output=True,
            text=True,
            cwd=self.folder,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def wait_for(self, out, seconds=600):
        """Wait for the summary of the run that was submitted last."""
        wait_until(lambda: self._ended() >= self.runs, "the run must end", seconds)
        assert (out / "summary.json").exists(), self.log_of("link")[-5000:]

    def _ended(self):
        """Of the runs of this SuperLink."""
        return self.log_of("link").count("Finished task")
