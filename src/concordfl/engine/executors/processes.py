"""Worker processes, one torch thread each.

Clients are handed out in blocks: aligned sub-trees of the tree along which replies are added. A worker adds the replies of its
block and sends one sum back, so the number of workers changes no bit. Examples and the broadcast lie in shared memory. A
worker that dies is replaced and its blocks are done again; a worker whose parent dies ends itself.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core import ClientId, ClientStepError, Model, Training, Tree, WorkerError, tree
from ...data import Federation
from .job import NOTHING, Job, Outcome, TreeSum
from .workplace import Workplace

ATTEMPTS = 3  # how often a block may take its worker down before the run is given up
BLOCKS_PER_WORKER = 16  # enough that the last block, for which the other workers wait, is short
AHEAD = 2  # blocks a worker may hold, so that it need not wait for the parent between two


class Block(NamedTuple):
    """Clients whose leaves form one node of the tree, `level` levels above the leaves."""

    number: int
    level: int
    ids: tuple[ClientId, ...]


class Result(NamedTuple):
    """What a worker sends back for a block; `error` is (message, traceback) where a step failed."""

    job: int
    block: int
    value: bytes | None
    sizes: tuple[int, ...]
    states: tuple[bytes | None, ...]
    refused: tuple[bool, ...]
    memos: tuple[bool, ...]
    error: tuple[str, str] | None = None


@dataclass
class Worker:
    """The parent's view of a worker process."""

    number: int
    process: Any
    pipe: Connection
    blocks: deque[Block] = field(default_factory=deque)


class Processes:
    name = "processes"

    def __init__(self, model: Model, federation: Federation, training: Training, seed: int, workers: int) -> None:
        federation.share_memory()
        self._model, self._federation, self._training, self._seed = model, federation, training, seed
        self._board = torch.empty(0, dtype=torch.uint8)  # shared memory that holds the broadcast of the current job
        self._published: dict[str, bytes] = {}
        self._home: dict[ClientId, int] = {}  # the worker that remembers something derived from the client's examples
        self._jobs = 0
        self._workers: list[Worker] = []
        try:
            self._workers.extend(self._start(number) for number in range(workers))
        except BaseException:
            self.close()
            raise

    # --- the executor's methods -------------------------------------------------------------------------------------

    def perform(self, job: Job, state_of: Callable[[ClientId], bytes | None]) -> Outcome:
        self._jobs += 1
        length = self._post(job.broadcast)
        task = pickle.dumps(job.task)
        waiting = self._cut(job)
        total, outcome = TreeSum(len(job.ids)), Outcome({}, {}, {}, ())
        for place, id in enumerate(job.ids):
            if id in job.lost:
                total.put(place, NOTHING)
        open_blocks = {block.number: block for block in waiting}
        failures: dict[int, int] = {}
        refused: list[ClientId] = []

        def order(block: Block) -> tuple[object, ...]:
            each = None if job.each is None else [tree.pack(job.each[id]) for id in block.ids]
            states = [state_of(id) for id in block.ids]
            return ("block", self._jobs, task, block, length, each, states, job.additive)

        while open_blocks:
            self._hand_out(waiting, order)
            for worker in self._ready():
                result = self._receive(worker)
                if result is None:
                    waiting.extendleft(self._replace(worker, failures))
                elif result.job == self._jobs:
                    block = open_blocks.pop(result.block)
                    worker.blocks.remove(block)
                    _collect(result, block, job, total, outcome, refused)
                    self._home.update({id: worker.number for id, memo in zip(block.ids, result.memos, strict=True) if memo})
        return outcome._replace(value=total.total if job.additive else outcome.value, refused=tuple(sorted(refused)))

    def publish(self, name: str, data: bytes) -> None:
        self._published[name] = data
        self._home.clear()
        for worker in self._workers:
            self._send(worker, ("publish", name, data))

    def close(self) -> None:
        for worker in self._workers:
            self._send(worker, ("stop",))
        for worker in self._workers:
            worker.process.join(timeout=5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.pipe.close()
        self._workers = []

    # --- workers ----------------------------------------------------------------------------------------------------

    def _start(self, number: int) -> Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        materials = (self._model, self._federation, self._training, self._seed)
        process = context.Process(target=_work, args=(theirs, *materials), name=f"concordfl-worker-{number}", daemon=True)
        with _one_thread(), _main_module_kept_out(self._model):
            process.start()
        theirs.close()
        worker = Worker(number, process, ours)
        self._send(worker, ("board", self._board))
        for name, data in self._published.items():
            self._send(worker, ("publish", name, data))
        return worker

    def _replace(self, worker: Worker, failures: dict[int, int]) -> list[Block]:
        """Put a new worker in the place of a dead one: the blocks that it held, to be done again."""
        worker.process.join()
        worker.pipe.close()
        for block in list(worker.blocks)[:1]:  # the first is the one it was at
            failures[block.number] = failures.get(block.number, 0) + 1
            if failures[block.number] == ATTEMPTS:
                clients = ", ".join(block.ids)
                raise WorkerError(
                    f"a worker process died {ATTEMPTS} times at the same work (clients {clients}; exit code "
                    f"{worker.process.exitcode}): is there enough memory for {len(self._workers)} workers?"
                )
        self._home = {id: number for id, number in self._home.items() if number != worker.number}
        self._workers[worker.number] = self._start(worker.number)
        return list(worker.blocks)

    def _send(self, worker: Worker, message: tuple[object, ...]) -> None:
        with contextlib.suppress(OSError):  # a dead worker is found, and replaced, when its answer fails to come
            worker.pipe.send(message)

    def _receive(self, worker: Worker) -> Result | None:
        """A worker's next result; None if it has died."""
        try:
            result: Result = pickle.loads(worker.pipe.recv_bytes())
        except (OSError, EOFError):
            return None
        if result.error is not None:
            message, remote = result.error
            raise ClientStepError(message) from RemoteTraceback(remote)
        return result

    def _ready(self) -> list[Worker]:
        """The workers with news, after waiting for some."""
        busy = {worker.pipe: worker for worker in self._workers if worker.blocks}
        sentinels = {worker.process.sentinel: worker for worker in busy.values()}
        found = wait([*busy, *sentinels])
        pipes = [busy[item] for item in found if item in busy]  # type: ignore[index]
        # A worker may have sent its last result and died: the pipe comes first, its end shows the death.
        return pipes or [sentinels[item] for item in found if item in sentinels]  # type: ignore[index]

    # --- work -------------------------------------------------------------------------------------------------------

    def _post(self, broadcast: Tree) -> int:
        """Put the broadcast into shared memory; its length in bytes. Called only while every worker is idle."""
        data = tree.pack(broadcast)
        if len(data) > len(self._board):
            self._board = torch.empty(2 * len(data), dtype=torch.uint8).share_memory_()
            for worker in self._workers:
                self._send(worker, ("board", self._board))
        self._board.numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return len(data)

    def _cut(self, job: Job) -> deque[Block]:
        """The job's blocks, longest first. Clients that a worker remembers go alone, so that each finds its own worker."""
        level = 0
        if not (self._home.keys() & set(job.ids)) and not job.lost:
            while len(job.ids) >= 2 ** (level + 1) * BLOCKS_PER_WORKER * len(self._workers):
                level += 1
        starts = range(0, len(job.ids), 2**level)
        blocks = [Block(at >> level, level, job.ids[at : at + 2**level]) for at in starts]
        present = [block for block in blocks if not (level == 0 and block.ids[0] in job.lost)]
        return deque(sorted(present, key=lambda block: -sum(self._federation.size(id) for id in block.ids)))

    def _hand_out(self, waiting: deque[Block], order: Callable[[Block], tuple[object, ...]]) -> None:
        """Keep workers busy, and each a block ahead while there are plenty left."""
        for held in range(AHEAD):
            for worker in self._workers:
                plenty = held == 0 or len(waiting) > 2 * len(self._workers)
                if len(worker.blocks) <= held and plenty and (block := self._choose(waiting, worker)) is not None:
                    worker.blocks.append(block)
                    self._send(worker, order(block))

    def _choose(self, waiting: deque[Block], worker: Worker) -> Block | None:
        for block in waiting:
            if self._home.get(block.ids[0], worker.number) == worker.number:
                waiting.remove(block)
                return block
        return None


def _collect(
    result: Result, block: Block, job: Job, total: TreeSum, outcome: Outcome, refused: list[ClientId]
) -> None:
    value = None if result.value is None else tree.unpack(result.value)
    if job.additive:
        total.put(block.number, NOTHING if all(result.refused) else value, block.level)
    else:
        outcome.value.update(value)
    for id, size, state, was_refused in zip(block.ids, result.sizes, result.states, result.refused, strict=True):
        if state is not None:
            outcome.states[id] = state
        if was_refused:
            refused.append(id)
        else:
            outcome.sent[id] = size


class RemoteTraceback(Exception):
    """The traceback of a step that failed in a worker process, as text."""


# --- in the worker ----------------------------------------------------------------------------------------------------


def _work(pipe: Connection, model: Model, federation: Federation, training: Training, seed: int) -> None:
    """A worker's life: orders in, results out, until told to stop or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    orders: SimpleQueue[tuple[Any, ...]] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, orders), daemon=True).start()
    workplace = Workplace(model, federation, training, seed)
    board, last_job, broadcast = torch.empty(0, dtype=torch.uint8), -1, None
    while True:
        match orders.get():
            case ("stop",):
                return
            case ("board", new_board):
                board = new_board
            case ("publish", name, data):
                workplace.publish(name, data)
            case ("block", job, task, block, length, each, states, additive):
                if each is None and job != last_job:
                    broadcast, last_job = tree.unpack(board.numpy()[:length].tobytes()), job
                messages = [broadcast] * len(block.ids) if each is None else [tree.unpack(data) for data in each]
                result = _do_block(workplace, job, task, block, messages, states, additive)
                with contextlib.suppress(OSError):  # the parent is gone; the listener is about to end this process
                    pipe.send_bytes(pickle.dumps(result))


def _listen(pipe: Connection, orders: "SimpleQueue[tuple[Any, ...]]") -> None:
    """Take orders at any time, so that the parent never waits for a busy worker, and end with the parent."""
    try:
        while True:
            orders.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)


def _do_block(
    workplace: Workplace,
    job: int,
    task: bytes,
    block: Block,
    messages: Sequence[Tree],
    states: Sequence[bytes | None],
    additive: bool,
) -> Result:
    try:
        value, visits = workplace.visit_all(pickle.loads(task), block.ids, states, messages, additive)
    except Exception as error:
        return Result(job, block.number, None, (), (), (), (), (str(error), traceback.format_exc()))
    return Result(
        job,
        block.number,
        None if value is NOTHING else tree.pack(value),
        tuple(visit.size for visit in visits),
        tuple(visit.state for visit in visits),
        tuple(visit.refused for visit in visits),
        tuple(visit.memo for visit in visits),
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Workers read OMP_NUM_THREADS when they import torch."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@contextlib.contextmanager
def _main_module_kept_out(cargo: object) -> Iterator[None]:
    """Start workers without running the user's script again, unless they need something defined in it.

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
