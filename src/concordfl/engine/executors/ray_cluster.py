"""The connection to a Ray cluster: one that is there, or one of this machine alone."""

import contextlib
import functools
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
from ray._private import ray_constants
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...core import SettingError

SECONDS_TO_CONNECT = 20  # of patience with a cluster that should be there
MAX_FOLDER_CHARACTERS = 40  # Ray's sockets lie below, and Unix allows them 107 characters in all
AUTO = "auto"
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"  # RFC 9113, 3.4

LOOPBACK_SWITCH = "ENABLE_RAY_CLUSTER"  # of Ray's constants: off, it uses loopback alone


class Cluster:
    """A connection to a Ray cluster.

    Where the process has one already, that is used, and left as it is. A cluster of this machine
    ends with the connection and leaves nothing behind.
    """

    def __init__(self, address: str | None, workers: int) -> None:
        self._folder: Path | None = None  # of a cluster that is ours
        self._is_borrowed = ray.is_initialized()
        if self._is_borrowed:
            pass
        elif address is None:
            self._start(workers)
        else:
            _connect(address)
        self.node_id: str = ray.get_runtime_context().get_node_id()  # where this process is

    def _start(self, workers: int) -> None:
        self._folder = _short_folder()
        try:
            with _held_in_check({"RAY_AUTH_TOKEN": _private_token()}), _on_loopback():
                ray.init(
                    address="local",
                    num_cpus=workers,
                    num_gpus=0,
                    _temp_dir=str(self._folder),
                    # As the workers of `processes`: Ray's are by default the last to get a core.
                    _system_config={"worker_niceness": 0},
                    **_options(),
                )
        except BaseException as error:
            self.close()
            if isinstance(error, (OSError, RuntimeError, ValueError)):
                raise SettingError(
                    f"Ray must start on this machine, got {first_line(error)}"
                ) from error
            raise

    def run_here(self, function: Callable[..., Any], num_returns: int, *arguments: Any) -> Any:
        """Call a function in another process of this machine, with objects of the store."""
        here = NodeAffinitySchedulingStrategy(self.node_id, soft=False)
        remote = ray.remote(num_cpus=0)(function)
        return remote.options(num_returns=num_returns, scheduling_strategy=here).remote(*arguments)

    def close(self) -> None:
        if not self._is_borrowed:
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def count_cpus(address: str | None) -> int | None:
    """Those of the cluster at `address`, or of the one that the process is connected with; None
    where there is none yet.
    """
    if address is None and not ray.is_initialized():
        return None
    with contextlib.closing(Cluster(address, 1)):
        return max(1, int(ray.cluster_resources().get("CPU", 1)))


def first_line(error: BaseException) -> str:
    """An error as one line: Ray's go on for pages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


# --- an existing cluster --------------------------------------------------------------------------


def _connect(address: str) -> None:
    if address == AUTO:
        address = os.environ.get("RAY_ADDRESS") or AUTO
    if address != AUTO:
        _probe(address)
    try:
        with _held_in_check():
            ray.init(address=address, **_options())
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        ray.shutdown()
        raise _unreachable(address, first_line(error)) from error


def _probe(address: str) -> None:
    """Refuse an address where nobody answers: Ray itself would wait for minutes."""
    host, colon, port = address.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()) or "/" in host:
        raise SettingError(
            "run.ray_address must be HOST:PORT of a cluster that this machine is part of, or "
            f"'{AUTO}', got {address!r}"
        )
    # Ray takes this machine's own names for its address in the network.
    host = ray.util.get_node_ip_address() if host in LOCAL_NAMES else host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), SECONDS_TO_CONNECT) as connection:
            answer = _greet(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        raise _unreachable(address, first_line(error)) from error
    if not answer:
        raise _unreachable(address, "whoever listens there is no Ray cluster")


def _greet(connection: socket.socket) -> bytes:
    """What a server of HTTP/2, as Ray's is, answers at once."""
    if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
        return b"not asked"
    connection.sendall(HTTP2_GREETING)
    return connection.recv(1)


def _unreachable(address: str, reason: str) -> SettingError:
    return SettingError(
        f"run.ray_address must be a Ray cluster that this machine is part of, got {address!r}: "
        f"{reason}"
    )


# --- what Ray reads, prints and changes -----------------------------------------------------------


def _options() -> dict[str, Any]:
    return {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,  # what fails is raised
    }


@contextlib.contextmanager
def _held_in_check(more: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """While Ray connects: it reads the environment and adds to it, sends usage statistics, warns
    of what is none of the user's doing, and takes over SIGTERM.
    """
    quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    logger, environment = logging.getLogger("ray"), dict(os.environ)
    level = logger.level
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    os.environ.update(quiet | dict(more))
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        os.environ.clear()
        os.environ.update(environment)
        if is_main:
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Nobody elsewhere needs a cluster of this machine alone. Ray has no public option for it."""
    before = getattr(ray_constants, LOOPBACK_SWITCH, None)
    setattr(ray_constants, LOOPBACK_SWITCH, False)
    try:
        yield
    finally:
        setattr(ray_constants, LOOPBACK_SWITCH, before)


@functools.cache
def _private_token() -> str:
    """Who sends work to a cluster of ours must know it. Ray reads it once in a process."""
    return secrets.token_hex(32)


def _short_folder() -> Path:
    """A new folder for a cluster's sockets, logs and objects that do not fit into memory."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= MAX_FOLDER_CHARACTERS else "/tmp"
    return Path(tempfile.mkdtemp(prefix="concordfl-", dir=parent))
