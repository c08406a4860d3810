"""The page of runs in progress, for this computer alone.

The server listens on 127.0.0.1. That alone would not keep other people's pages out: a name of
theirs may be made to mean 127.0.0.1 in the reader's browser, which then takes what is here for
theirs. So a request must name this computer as its host.
"""

import json
import math
import re
import sys
import threading
import time
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from socketserver import TCPServer
from typing import Any, NamedTuple

from ..core import SettingError
from ..metrics import METRICS
from . import words
from .status import RunStatus, Watcher

ADDRESS = "127.0.0.1"
OWN_HOST = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
MAX_POINTS = 1000  # of a curve: more than a page has columns
SECONDS_BETWEEN_LOOKS = 0.5  # however many pages are open
HEADERS = {
    "Cache-Control": "no-store",
    # Styles may be set by the charts' library, which writes them into the page.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Content(NamedTuple):
    kind: str
    data: bytes


def _asset(package: str, name: str, kind: str) -> Content:
    return Content(kind, files(package).joinpath("assets", name).read_bytes())


def _assets() -> dict[str, Content]:
    ours, script = "concordfl.watch", "text/javascript; charset=utf-8"
    return {
        "/": _asset(ours, "index.html", "text/html; charset=utf-8"),
        "/watch.css": _asset(ours, "watch.css", "text/css; charset=utf-8"),
        "/watch.js": _asset(ours, "watch.js", script),
        "/charts.js": _asset(ours, "charts.js", script),
        "/plotly-cartesian.min.js": _asset("concordfl.report", "plotly-cartesian.min.js", script),
    }


class Server(ThreadingHTTPServer):
    """Serves the page of what `watcher` sees; `with Server(...) as server: server.serve_forever()`.

    Port 0 is any that is free.
    """

    daemon_threads = True

    def __init__(self, watcher: Watcher, port: int = 0) -> None:
        self.watcher = watcher
        self.assets = _assets()
        self._turn = threading.Lock()
        self._looked, self._seen = -SECONDS_BETWEEN_LOOKS, b""
        try:
            super().__init__((ADDRESS, port), _Handler)
        except OSError as error:
            reason = error.strerror or error
            raise SettingError(f"--port must be free, got {port}: {reason}") from None

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def server_bind(self) -> None:
        """Without asking for the computer's name, which may take long and is of no use here."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who leaves in the middle of an answer is no error."""
        if not isinstance(sys.exception(), (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def status(self) -> Content:
        """All runs as JSON; files are looked at by one thread at a time."""
        with self._turn:
            if time.monotonic() - self._looked >= SECONDS_BETWEEN_LOOKS:
                self._seen = to_json(self.watcher)
                self._looked = time.monotonic()
            return Content("application/json", self._seen)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "concordfl", ""
    timeout = 10  # seconds for a request: one that never ends must not hold a thread
    error_message_format, error_content_type = "%(code)d %(message)s\n", "text/plain"

    def do_GET(self) -> None:
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not OWN_HOST.fullmatch(hosts[0].strip()):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        is_status = self.path == "/status.json"
        content = self.server.status() if is_status else self.server.assets.get(self.path)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content.kind)
        self.send_header("Content-Length", str(len(content.data)))
        self.end_headers()
        self.wfile.write(content.data)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, *_: object) -> None:
        """Requests are nobody's business but the reader's."""


# --- what the page is given -----------------------------------------------------------------------


def to_json(watcher: Watcher) -> bytes:
    runs = watcher.look()
    shown = [_run(run, title) for run, title in zip(runs, words.titles(runs), strict=True)]
    content = {
        "folder": str(watcher.path.absolute()),
        "headline": words.headline(runs),
        "runs": shown,
    }
    # Other characters than ASCII are written out: names need not be valid Unicode.
    return json.dumps(content, allow_nan=False).encode("ascii")


def _run(run: RunStatus, title: str) -> dict[str, Any]:
    return {
        "name": run.name,
        "title": title,
        "state": run.state,
        "round": run.round,
        "rounds": run.rounds,
        "progress": words.progress(run),
        "facts": run.facts,
        "messages": run.messages,
        "way_on": run.way_on,
        "figures": list(words.figures(run).items()),
        "curves": _curves(run),
    }


def _curves(run: RunStatus) -> dict[str, Any] | None:
    if run.criterion is None:
        return None
    metric = METRICS[run.criterion]
    unit = 100 if metric.is_share else 1
    shown = _thinned(run.evaluated, MAX_POINTS)

    def values(numbers: Sequence[float | None]) -> list[float | None]:
        scaled = [None if number is None else unit * number for number in numbers]
        return [
            number if number is not None and math.isfinite(number) else None for number in scaled
        ]

    return {
        "criterion": metric.title + " in percent" * metric.is_share,
        "rounds": [figures.round for figures in shown],
        "participants": values([figures.participants for figures in shown]),
        "newcomers": values([figures.newcomers for figures in shown]),
    }


def _thinned(points: Sequence[Any], most: int) -> Sequence[Any]:
    """At most about so many of them, the last one always."""
    step = -(-len(points) // most)
    return points if step <= 1 else [*points[:-1:step], points[-1]]
