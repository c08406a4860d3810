"""A small run to be watched, and the page of one."""

import threading
from contextlib import contextmanager

from concordfl.watch.server import Server
from concordfl.watch.status import Watcher

SETTINGS = {
    "data": {"name": "digits", "limit": 300},
    "scenario": {"clients": 4},
    "run": {"rounds": 6, "evaluate_every": 2, "checkpoint_seconds": 0},
}


@contextmanager
def served(path, port=0):
    """A server of the page for `path`, until the block ends."""
    with Server(Watcher(path), port) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.05])
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
