"""Fetching, against a server on this machine."""

import hashlib
import http.server
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import namedtuple

import pytest

from concordfl import DataError
from concordfl.data.dataset import Remote
from concordfl.data.fetch import fetch

CONTENT = bytes(range(256)) * 4000
CHECKSUM = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves `server.files`, with ranges; breaks off after `server.break_after` bytes, once."""

    def do_GET(self):
        content = self.server.files.get(self.path)
        self.server.seen.append(self.headers.get("Range"))
        if content is None:
            self.send_error(404)
            return
        start = int(self.headers["Range"][6:-1]) if self.headers.get("Range") else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = self.server.break_after or len(content)
        self.server.break_after = None
        self.wfile.write(content[start:end])
        self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.files, made.seen, made.break_after = {"/data.bin": CONTENT}, [], None
    made.handle_error = lambda *_: None  # a connection that is broken off on purpose
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    made.address = f"http://127.0.0.1:{made.server_port}"
    yield made
    made.shutdown()
    thread.join()
    made.server_close()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_good_file(server, tmp_path):
    reports = []
    target = fetch(
        Remote(f"{server.address}/data.bin", CHECKSUM),
        tmp_path / "new",
        lambda *what: reports.append(what),
    )
    assert target.read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["data.bin"]
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    fetch(Remote(f"{server.address}/data.bin", CHECKSUM), tmp_path / "new")
    assert len(server.seen) == 1  # what is there and right is not fetched again


def test_a_wrong_checksum_keeps_nothing(server, tmp_path):
    with pytest.raises(
        DataError, match="must have the checksum md5:0000, got md5:.*nothing was kept"
    ):
        fetch(Remote(f"{server.address}/data.bin", "md5:0000"), tmp_path)
    assert names(tmp_path) == []


def test_a_broken_connection_is_taken_up_again(server, tmp_path):
    server.break_after = 300_000
    remote = Remote(f"{server.address}/data.bin", CHECKSUM)
    with pytest.raises(
        DataError,
        match=r"could not be fetched: .*300000 bytes are kept, the same command goes on from there",
    ):
        fetch(remote, tmp_path)
    assert names(tmp_path) == ["data.bin.partial"]
    assert fetch(remote, tmp_path).read_bytes() == CONTENT
    assert server.seen == [None, "bytes=300000-"]
    assert names(tmp_path) == ["data.bin"]


def test_a_file_that_was_complete_but_not_renamed(server, tmp_path):
    (tmp_path / "data.bin.partial").write_bytes(CONTENT)
    assert fetch(Remote(f"{server.address}/data.bin", CHECKSUM), tmp_path).read_bytes() == CONTENT


def test_no_room(server, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(100, 90, 10))
    with pytest.raises(DataError, match=f"no room: {len(CONTENT)} bytes needed in .*, 10 free$"):
        fetch(Remote(f"{server.address}/data.bin", CHECKSUM), tmp_path)
    assert names(tmp_path) == []


def test_no_such_file_and_no_server(server, tmp_path):
    with pytest.raises(DataError, match="must answer, got HTTP status 404"):
        fetch(Remote(f"{server.address}/none", CHECKSUM), tmp_path)
    with pytest.raises(DataError, match="could not be fetched: .*refused"):
        fetch(Remote("http://127.0.0.1:9/none", CHECKSUM), tmp_path)
    assert names(tmp_path) == []


def archive(kind):
    file = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(file, "w") as made:
            made.writestr("set/a.txt", "hello")
    else:
        with tarfile.open(fileobj=file, mode="w:gz") as made:
            entry = tarfile.TarInfo("set/a.txt")
            entry.size = 5
            made.addfile(entry, io.BytesIO(b"hello"))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_archives_are_unpacked(server, tmp_path, kind):
    content = archive(kind)
    server.files[f"/set.{kind}"] = content
    remote = Remote(
        f"{server.address}/set.{kind}", "sha256:" + hashlib.sha256(content).hexdigest(), unpack=True
    )
    for _ in range(2):
        fetch(remote, tmp_path)
        assert (tmp_path / "set/a.txt").read_text() == "hello"
        assert names(tmp_path) == ["set", f"set.{kind}"]


def test_an_archive_that_is_none(server, tmp_path):
    with pytest.raises(DataError, match="must be an archive that can be unpacked"):
        fetch(Remote(f"{server.address}/data.bin", CHECKSUM, unpack=True), tmp_path)
    assert names(tmp_path) == ["data.bin"]


COMMAND = """
import sys
from concordfl import cli
from concordfl.data.datasets import DATASETS
from concordfl.data.dataset import Remote
DATASETS["usps"].home = (Remote(sys.argv[1], sys.argv[2]),)
sys.argv = ["concordfl", "data", "get", "usps"]
cli.main()
"""


def test_the_command_says_it_in_a_line(server, tmp_path):
    def get(address, checksum):
        command = [sys.executable, "-c", COMMAND, f"{server.address}/{address}", checksum]
        environment = {**os.environ, "CONCORDFL_DATA": str(tmp_path), "COLUMNS": "300"}
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    wrong = get("data.bin", "md5:0000")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith(
        f"concordfl: {server.address}/data.bin must have the checksum md5:0000, got md5:"
    )
    server.break_after = 300_000
    broken = get("data.bin", CHECKSUM)
    assert broken.returncode == 2
    assert "300000 bytes are kept, the same command goes on from there" in broken.stderr
    assert len(broken.stderr.splitlines()) == len(wrong.stderr.splitlines()) == 1
    good = get("data.bin", CHECKSUM)
    assert good.returncode == 0
    assert good.stdout.splitlines() == [
        f"fetching {server.address}/data.bin",
        str(tmp_path / "usps/data.bin"),
    ]
    assert names(tmp_path / "usps") == ["data.bin"]
