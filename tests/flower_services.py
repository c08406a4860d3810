"""A SuperLink and SuperNodes as processes on loopback, for as long as a test needs them."""

import re
import subprocess

import tomli_w

from concordfl.federate import services
from concordfl.federate.project import flower_app
from concordfl.federate.services import BIN, free_port, is_listening

START_SECONDS = 180  # which a busy machine may take


def wait_until(is_so, what, seconds=START_SECONDS):
    services.wait_until(is_so, what, seconds)


class Services(services.Services):
    """The processes of a federation; `folder` holds all that they write.

    With `certificates`, a folder of them, it is encrypted, and nodes must have registered keys.
    """

    def __init__(self, folder, certificates=None):
        self.folder, self.port, self.certificates = folder, free_port(), certificates
        home = folder / "home"
        home.mkdir(parents=True)
        super().__init__(folder, {"FLWR_HOME": str(home), "OMP_NUM_THREADS": "1"})
        safety = {"insecure": True}
        if certificates is not None:
            safety = {"root-certificates": str(certificates / "ca.pem")}
        link = {"address": f"127.0.0.1:{self.port}", **safety}
        config = {"superlink": {"default": "here", "here": link}}
        (home / "config.toml").write_text(tomli_w.dumps(config))

    def __enter__(self):
        self.start_link()
        return self

    def begin(self, name, *command):
        self.start(name, [BIN / command[0], *map(str, command[1:])], self.folder)

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
        self.begin(
            "link", "flower-superlink", *options, "--disable-runtime-dependency-installation"
        )
        wait_until(lambda: is_listening(self.port), "the SuperLink must start")

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
        self.begin(client, "flower-supernode", *link, *own)

    def run(self, name, settings, **config):
        """Submit a run with these settings; its folder."""
        app, out = self.folder / f"app-{name}", self.folder / name
        app.mkdir(exist_ok=True)
        given = {"run": tomli_w.dumps(settings), "file": "", "out": str(out), **config}
        (app / "pyproject.toml").write_text(tomli_w.dumps(flower_app(given, name)))
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
        assert (out / "summary.json").exists(), self.log_of("link")[-5000:] + self._last_words()

    def _last_words(self):
        """What the run that was submitted last has printed at the server."""
        runs = re.findall(r"Created run (\d+)", self.log_of("link"))
        command = [BIN / "flwr", "log", runs[-1], "here", "--show"] if runs else ["true"]
        shown = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, cwd=self.folder
        )
        return shown.stdout + shown.stderr

    def _ended(self):
        """Of the runs of this SuperLink."""
        return self.log_of("link").count("Finished task")
