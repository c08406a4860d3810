"""Processes of a federation: none is left, whoever has started it, however it ends."""

import contextlib
import os
import signal
import socket
import sys

import pytest

from concordfl.federate.services import (
    ServiceError,
    Services,
    descendants,
    free_port,
    is_free,
    is_listening,
    undisturbed,
    wait_until,
)

# A process that does not heed SIGTERM, and a child of its in another session.
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def services(tmp_path):
    with Services(tmp_path, {}) as made:
        yield made


def start(services, tmp_path, text, name="one"):
    script = tmp_path / f"{name}.py"
    script.write_text(text)
    services.start(name, [sys.executable, script], tmp_path)


def test_all_of_a_family_are_gone(services, tmp_path, monkeypatch):
    monkeypatch.setattr("concordfl.federate.services.GRACE_SECONDS", 1.0)
    start(services, tmp_path, STUBBORN)
    leader = services.processes["one"].pid
    wait_until(lambda: services.log_text("one").count("ready") == 2, "both must start", 60)
    (child,) = descendants([leader])
    assert os.getsid(child.pid) != os.getsid(leader)
    services.stop("one")
    assert not services.processes
    for pid in (leader, child.pid):
        assert not is_alive(pid)


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"
    return False


def test_who_ends_is_named_with_its_log(services, tmp_path):
    start(services, tmp_path, "raise SystemExit(3)", "server")
    start(services, tmp_path, "print('done')", "task")
    wait_until(lambda: services.processes["server"].poll() is not None, "it must end", 60)
    with pytest.raises(ServiceError, match=r"server has ended with code 3: see .*server\.log"):
        services.refuse_ended("task")
    services.stop("server")
    wait_until(lambda: services.processes["task"].poll() is not None, "it must end", 60)
    services.refuse_ended("task")
    with pytest.raises(ServiceError, match="task has ended with code 0"):
        services.refuse_ended()
    assert services.log_text("task") == "done\n"


def test_a_log_is_of_the_present_process(services, tmp_path):
    for word in ("first", "second"):
        start(services, tmp_path, f"print({word!r})")
        services.processes["one"].wait()
    assert services.log_text("one") == "second\n"
    assert services.log("one").read_text() == "first\nsecond\n"
    assert services.log_text("nobody") == ""


def test_a_signal_waits_until_all_is_done():
    done = []

    def work():
        with undisturbed():
            signal.raise_signal(signal.SIGINT)
            done.append("all")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all"]


def test_ports():
    port = free_port()
    assert is_free(port)
    assert not is_listening(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        assert is_listening(port)
    with pytest.raises(ServiceError, match="never within 0 s"):
        wait_until(lambda: False, "never", 0)
