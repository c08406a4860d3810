"""Worker processes, one torch thread each.

Clients are handed out in blocks, which are nodes of the tree along which replies are added: a
worker adds the replies of its block and sends one sum back, so the number of workers changes no
bit. Blocks are large at first and single clients at the end, the longest first. Through the pipes
go the protocol's bytes; clients' states go with the blocks and come back with the outcomes. The
examples lie in shared memory. Workers are forked from a server that has imported torch, where that
is safe. A worker that dies is replaced and its block is done again; a worker whose parent dies ends
itself.
"""

import contextlib
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from ...core import ClientId, Order, Outcome, tree
from ...core.client import Secret
from ...data import Federation
from ..client_states import ClientStates, SavedClients
from ..memory import keep_freed_memory
from ..node import Node
from ..setup import Setup
from . import fork_server
from .base import Simulation
from .blocks import BlockResult, Failure, LentStates, Work, do_block
from .fork_server import Surroundings
from .pool import Block, Pool

# A message through a pipe is a command and its frames, one after the other.
FRAMES = {b"stop": 0, b"secret": 1, b"publish": 2, b"order": 1, b"block": 2}
RESULT, ERROR = b"result", b"error"


@dataclass
class Worker:
    """The parent's view of a worker process."""

    number: int
    process: Any
    pipe: Connection
    block: Block | None = None  # what it is at
    is_listening: bool = True  # not in the middle of a message, where Ctrl-C may have come


class Processes(Simulation):
    name = "processes"

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        states: ClientStates,
        noise_seed: int | None = None,
        *,
        workers: int,
    ) -> None:
        super().__init__(states, noise_seed)
        federation.share_memory()
        self._setup, self._federation = setup, federation
        self._published: dict[str, bytes] = {}
        # The worker that remembers something derived from the client's examples.
        self._home: dict[ClientId, int] = {}
        self._workers: list[Worker] = []
        try:
            self._workers.extend(self._start(number) for number in range(workers))
        except BaseException:
            self.close()
            raise

    # --- the executor's methods -------------------------------------------------------------------

    def perform(self, order: Order) -> Outcome:
        try:
            return self._perform(order)
        except BaseException:
            # Whoever is still at this order would answer into the next one.
            for worker in self._workers:
                if worker.block is not None:
                    worker.process.kill()
            raise

    def _perform(self, order: Order) -> Outcome:
        self._replace_busy()
        pool = Pool(order, self._federation.size, self._home, len(self._workers))
        work = Work(order, self._setup, pool)
        for worker in self._workers:
            self._send(worker, b"order", work.shared)
        self._hand_out(work)
        while any(worker.block for worker in self._workers):
            for worker in self._ready():
                self._take_result(worker, work)
        return work.outcome()

    def _hand_out(self, work: Work) -> None:
        """Give every idle worker a block, with the clients' messages and states."""
        for worker in self._workers:
            if worker.block is None and (block := work.pool.take(worker.number)) is not None:
                worker.block = block
                part = work.order.only(block.ids)
                packed = {id: self.states.get(id) for id in block.ids}
                states = {id: state for id, state in packed.items() if state is not None}
                sizes = {id: len(state) for id, state in states.items()}
                header = tree.pack([block.ids, part.dropped, part.each, sizes])
                self._send(worker, b"block", header, b"".join(states.values()))

    def _take_result(self, worker: Worker, work: Work) -> None:
        block, frames = worker.block, self._receive(worker)
        if block is None:
            return
        if frames is None:
            self._replace(worker, block, work)
            self._send(self._workers[worker.number], b"order", work.shared)
            self._hand_out(work)
            return
        worker.block = None
        self._hand_out(work)  # before the result is looked at, so that the worker need not wait
        result, states = BlockResult.from_bytes(frames[0]), frames[1]
        for id, state in _cut(states, result.state_sizes).items():
            self.states.put(id, state)
        self._home |= dict.fromkeys(result.remembered, worker.number)
        work.add(block, result.outcome)

    def publish(self, name: str, data: bytes) -> None:
        if name in self._published:
            self._home.clear()  # nodes forget what they may have derived from the older one
        self._published[name] = data
        for worker in self._workers:
            self._send(worker, b"publish", name.encode(), data)

    def load(self, folder: Path, saved: SavedClients) -> None:
        super().load(folder, saved)
        for worker in self._workers:
            self._send(worker, b"secret", tree.pack(self.secret))

    def close(self) -> None:
        for worker in self._workers:
            if worker.block is None and worker.is_listening:
                self._send(worker, b"stop")
            else:
                worker.process.kill()
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []

    # --- workers ----------------------------------------------------------------------------------

    def _start(self, number: int) -> Worker:
        context = fork_server.context()
        ours, theirs = context.Pipe()
        process = context.Process(
            target=_work,
            args=(Surroundings(), theirs, self._setup, self._federation, self.secret),
            name=f"concordfl-worker-{number}",
            daemon=True,
        )
        with _main_module_kept_out(self._setup):
            fork_server.start(process)
        theirs.close()
        worker = Worker(number, process, ours)
        for name, data in self._published.items():
            self._send(worker, b"publish", name.encode(), data)
        return worker

    def _replace_busy(self) -> None:
        """Put new workers in the place of those left over from an order that failed."""
        for worker in self._workers:
            if worker.block is not None:
                worker.process.join()
                worker.pipe.close()
                self._workers[worker.number] = self._start(worker.number)

    def _replace(self, worker: Worker, block: Block, work: Work) -> None:
        """Put a new worker in the place of one that died at `block`, which is done again."""
        worker.process.join()
        worker.pipe.close()
        question = f"is there enough memory for {len(self._workers)} workers?"
        work.put_back(block, worker.number, f"exit code {worker.process.exitcode}", question)
        for id in [id for id, number in self._home.items() if number == worker.number]:
            del self._home[id]
        self._workers[worker.number] = self._start(worker.number)

    def _send(self, worker: Worker, command: bytes, *frames: bytes) -> None:
        # A dead worker is found, and replaced, when its answer fails to come.
        worker.is_listening = False
        with contextlib.suppress(OSError):
            for frame in (command, *frames):
                worker.pipe.send_bytes(frame)
        worker.is_listening = True

    def _receive(self, worker: Worker) -> tuple[bytes, bytes] | None:
        """A worker's next result and the states with it; None if the worker has died."""
        try:
            kind, *frames = (worker.pipe.recv_bytes() for _ in range(3))
        except (OSError, EOFError):
            return None
        if kind == ERROR:
            Failure(*frames).raise_here()
        return frames[0], frames[1]

    def _ready(self) -> list[Worker]:
        """The workers with news, after waiting for some."""
        busy = {worker.pipe: worker for worker in self._workers if worker.block}
        sentinels = {worker.process.sentinel: worker for worker in busy.values()}
        found = wait([*busy, *sentinels])
        pipes = [busy[item] for item in found if item in busy]
        # A worker may have sent its last result and died: the pipe comes first, its end shows the
        # death.
        return pipes or [sentinels[item] for item in found if item in sentinels]


# --- in the worker --------------------------------------------------------------------------------


def _work(
    _: Surroundings, pipe: Connection, setup: Setup, federation: Federation, secret: Secret
) -> None:
    """A worker's life: orders in, outcomes out, until told to stop or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    fork_server.let_interrupts_in()
    torch.set_num_threads(1)
    keep_freed_memory()
    messages: SimpleQueue[list[bytes]] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, messages), daemon=True).start()
    states = LentStates()
    node = Node(setup, federation, states, secret)
    order = Order()
    while True:
        match messages.get():
            case [b"stop"]:
                return
            case [b"secret", data]:
                node.secret = tree.unpack(data)
            case [b"publish", name, data]:
                node.publish(name.decode(), data)
            case [b"order", data]:
                order = Order.from_bytes(data)
            case [b"block", header, data]:
                answer = _do_block(node, states, order, header, data)
                # If the parent is gone, the listener is about to end this process.
                with contextlib.suppress(OSError):
                    for frame in answer:
                        pipe.send_bytes(frame)


def _listen(pipe: Connection, messages: "SimpleQueue[list[bytes]]") -> None:
    """Take messages at any time, so that the parent never waits for a busy worker, and end with
    the parent.
    """
    try:
        while True:
            command = pipe.recv_bytes()
            messages.put([command, *(pipe.recv_bytes() for _ in range(FRAMES[command]))])
    except (EOFError, OSError):
        os._exit(1)
    except BaseException:
        traceback.print_exc()  # unreadable: the parent sees a dead worker, not a silent one
        os._exit(1)


def _do_block(
    node: Node, states: LentStates, order: Order, header: bytes, data: bytes
) -> tuple[bytes, bytes, bytes]:
    try:
        clients, dropped, each, sizes = tree.unpack(header)
        part = order._replace(clients=clients, dropped=dropped, each=each)
        result = tree.pack(do_block(node, states, part, _cut(data, sizes)))
        return RESULT, result, b"".join(states.changed.values())
    except Exception as error:
        return ERROR, *Failure.of(error)


def _cut(data: bytes, sizes: Mapping[ClientId, int]) -> dict[ClientId, bytes]:
    """Byte strings that were joined, by client."""
    parts, start = {}, 0
    for id, size in sizes.items():
        parts[id] = data[start : start + size]
        start += size
    return parts


@contextlib.contextmanager
def _main_module_kept_out(cargo: object) -> Iterator[None]:
    """Start workers without running the user's script again, unless they need something defined in
    it.

    Then a script without the `if __name__ == "__main__"` guard that `spawn` asks for works too.
    """
    main: Any = sys.modules["__main__"]
    if b"__main__" in pickle.dumps(cargo):
        yield
        return
    saved = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    main.__spec__ = None
    if "__file__" in saved:
        del main.__file__
    try:
        yield
    finally:
        for name, value in saved.items():
            setattr(main, name, value)
