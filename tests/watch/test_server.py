"""The page of runs in progress: what is served, and to whom."""

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing

import pytest

import concordfl as cf
from concordfl import SettingError
from concordfl.engine.records import RunFolder
from concordfl.watch.server import MAX_POINTS, Server, to_json
from concordfl.watch.status import Watcher
from watched import served

CONFIG = "[algorithm]\nname = 'fedavg'\n"
ASSETS = ["/", "/watch.css", "/watch.js", "/charts.js", "/plotly-cartesian.min.js"]


def ask(server, path="/", host=None, method="GET"):
    """Status, headers and body of an answer."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)) as line:
        line.putrequest(method, path, skip_host=True)
        for name in [f"127.0.0.1:{server.server_port}"] if host is None else host:
            line.putheader("Host", name)
        line.endheaders()
        answer = line.getresponse()
        return answer.status, answer.headers, answer.read()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    path = tmp_path_factory.mktemp("watched") / "run"
    with RunFolder.create(path, CONFIG):
        pass
    with served(path) as server:
        yield server


@pytest.mark.parametrize("path", [*ASSETS, "/status.json"])
def test_what_the_page_needs_is_served(server, path):
    status, headers, body = ask(server, path)
    assert (status, len(body)) == (200, int(headers["Content-Length"]))
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers


def test_the_page_names_nothing_that_is_not_served(server):
    _, _, page = ask(server)
    named = [part.partition(b'"')[0].decode() for part in page.split(b'src="')[1:]]
    named += [part.partition(b'"')[0].decode() for part in page.split(b'href="')[1:]]
    assert {f"/{name}" for name in named if name != "data:,"} == set(ASSETS) - {"/"}


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [(["127.0.0.1"], 200), (["localhost"], 200), (["LOCALHOST:8000"], 200), (["[::1]:99"], 200),
     (["evil.example"], 403), (["evil.example:80"], 403), (["localhost.evil.example"], 403),
     (["127.0.0.1.evil.example"], 403), (["127.0.0.1:80@evil.example"], 403), (["0.0.0.0"], 403),
     ([""], 403), ([], 403), (["localhost", "evil.example"], 403), (["localhost, evil"], 403)],
)  # fmt: skip
def test_requests_that_name_another_host_are_refused(server, hosts, expected):
    for path in ("/", "/status.json", "/nothing"):
        status, headers, body = ask(server, path, host=hosts)
        assert status == (404 if expected == 200 and path == "/nothing" else expected)
        assert headers["X-Content-Type-Options"] == "nosniff"
        if expected == 403:
            assert body == b"403 Forbidden\n"


@pytest.mark.parametrize(
    "path",
    ["/config.toml", "/../config.toml", "/%2e%2e/config.toml", "/assets/watch.js", "//watch.js/..",
     "/..\\config.toml", "/status.json/", "/status.json?x", "http://evil.example/", "/watch.js\0",
     "/etc/passwd", "watch.js", "/./watch.js"],
)  # fmt: skip
def test_anything_else_is_not_there(server, path):
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    assert answer.split(b" ", 2)[1] == b"404"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "CONNECT"])
def test_nothing_but_reading_is_possible(server, method):
    assert ask(server, "/status.json", method=method)[0] == 501


def own_addresses():
    """Of this computer's other interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only chooses an interface
        except OSError:
            return []
        return [probe.getsockname()[0]]


def test_it_listens_on_loopback_alone(server):
    assert server.socket.getsockname()[0] == "127.0.0.1"
    for address in [*own_addresses(), "127.0.0.2"]:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, server.server_port), timeout=30)


def test_a_reader_who_leaves_or_says_nothing_disturbs_nobody(server, capfd):
    silent = socket.create_connection(("127.0.0.1", server.server_port))
    with socket.create_connection(("127.0.0.1", server.server_port)) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset
        line.sendall(b"GET /plotly-cartesian.min.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert ask(server, "/status.json")[0] == 200
    silent.close()
    assert capfd.readouterr().err == ""


def test_a_port_in_use_is_refused_in_a_line(server):
    with pytest.raises(SettingError, match=f"--port must be free, got {server.server_port}: "):
        Server(server.watcher, server.server_port)


def test_long_curves_are_thinned_and_keep_their_ends(tmp_path):
    with RunFolder.create(tmp_path / "run", CONFIG) as folder:
        lines = [
            json.dumps({"format": 1, "round": number, "local": {"accuracy": number / 10**4}})
            for number in range(1, 2501)
        ]
        folder.records_file.write_text("\n".join(lines) + "\n")
    curves = json.loads(to_json(Watcher(tmp_path / "run")))["runs"][0]["curves"]
    assert len(curves["rounds"]) <= MAX_POINTS + 1
    assert (curves["rounds"][0], curves["rounds"][-1]) == (1, 2500)
    assert curves["participants"][-1] == pytest.approx(25)


# --- a real run, killed and resumed ---------------------------------------------------------------

RUN = """
[run]
rounds = 200
evaluate_every = 20
checkpoint_seconds = 0.2
executor = "serial"

[data]
name = "digits"
limit = 300

[scenario]
clients = 4
"""


def start(folder, *arguments):
    command = [sys.executable, "-m", "concordfl", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


def wait_for(server, is_reached, process=None):
    """What the page is given, as soon as it is as wished."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        (run,) = json.loads(ask(server, "/status.json")[2])["runs"]
        if is_reached(run):
            return run
        assert process is None or process.poll() is None, "the run has ended before"
        time.sleep(0.05)
    raise AssertionError(f"not within two minutes: {run}")


def test_a_run_is_followed_through_its_kill_and_resume(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    with RunFolder.create(tmp_path / "run", CONFIG):
        pass  # a start that failed: it can be watched before the run begins
    with served(tmp_path / "run") as server:
        assert wait_for(server, lambda _: True)["state"] == "not begun"
        process = start(tmp_path, "run", "run.toml", "--out", "run")
        seen = wait_for(server, lambda run: run["round"] > 40, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert (seen["state"], seen["rounds"], seen["way_on"]) == ("running", 200, None)
        assert any(text.endswith(" left") for text in seen["progress"])
        stopped = wait_for(server, lambda run: run["state"] == "stopped")
        assert stopped["way_on"] == f"concordfl resume {tmp_path / 'run'}"
        assert 40 < stopped["round"] < 200
        process = start(tmp_path, "resume", "run")
        seen = wait_for(server, lambda run: run["state"] == "running", process)
        assert seen["round"] < 200
        finished = wait_for(server, lambda run: run["state"] == "finished")
        assert process.communicate(timeout=60) is not None
        assert process.returncode == 0
    records = cf.resume(tmp_path / "run").records
    assert finished["round"] == finished["rounds"] == 200
    assert finished["curves"]["rounds"] == [record["round"] for record in records]
    assert finished["curves"]["participants"] == [
        100 * record["local"]["accuracy"] for record in records
    ]
    assert finished["curves"]["newcomers"] == [
        100 * record["global"]["accuracy"] for record in records
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_the_command_serves_until_it_is_stopped(tmp_path, number, code):
    with RunFolder.create(tmp_path / "run", CONFIG):
        pass
    before = sorted((tmp_path / "run").iterdir())
    process = start(tmp_path, "watch", "run")
    line = process.stdout.readline()
    assert line.startswith("Watching run at http://127.0.0.1:")
    port = int(line.split(":")[2].partition("/")[0])
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
        connection.request("GET", "/status.json")
        assert json.loads(connection.getresponse().read())["runs"][0]["state"] == "not begun"
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("No longer watching; runs go on\n", code)
    assert sorted((tmp_path / "run").iterdir()) == before  # watching leaves no trace


def test_a_folder_that_goes_away_is_no_error(tmp_path):
    with RunFolder.create(tmp_path / "runs/run", CONFIG):
        pass
    with served(tmp_path / "runs") as server:
        shutil.rmtree(tmp_path / "runs")
        assert json.loads(ask(server, "/status.json")[2])["runs"] == []
