"""Worker processes, one torch thread each.

Clients are handed out in blocks, which are nodes of the tree along which replies are added: a
worker adds the replies of its block and sends one sum back, so the number of workers changes no
bit. Blocks are large at first and single clients at the end, the longest first. Examples and the
broadcast lie in shared memory. A worker that dies is replaced and its block is done again; a worker
whose parent dies ends itself.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np
import torch

from ...core import ClientId, ClientStepError, Model, Training, Tree, WorkerError, tree
from ...data import Federation
from ..memory import keep_freed_memory
from .job import NOTHING, Job, Outcome, States, TreeSum, Visit, outcome_of
from .workplace import Workplace

EMPTY = tree.pack(None)  # the message to a client that will not answer
ATTEMPTS = 3  # how often a block may take its worker down before the run is given up


class Block(NamedTuple):
    """The clients below one node of the tree; None stands for one that will not answer."""

    level: int
    place: int  # among the nodes of that level
    ids: tuple[ClientId | None, ...]


class Result(NamedTuple):
    """What a worker sends back for a block; `error` is (message, traceback) where a step failed."""

    value: bytes | None
    visits: tuple[Visit, ...]
    error: tuple[str, str] | None = None


@dataclass
class Worker:
    """The parent's view of a worker process."""

    number: int
    process: Any
    pipe: Connection
    block: Block | None = None  # what it is at


class Processes:
    name = "processes"

    def __init__(
        self, model: Model, federation: Federation, training: Training, seed: int, workers: int
    ) -> None:
        federation.share_memory()
        self._model, self._federation, self._training, self._seed = (
            model,
            federation,
            training,
            seed,
        )
        self._board = torch.empty(
            0, dtype=torch.uint8
        )  # shared memory that holds the broadcast of the current job
        self._published: dict[str, bytes] = {}
        self._home: dict[
            ClientId, int
        ] = {}  # the worker that remembers something derived from the client's examples
        self._jobs = 0
        self._workers: list[Worker] = []
        try:
            self._workers.extend(self._start(number) for number in range(workers))
        except BaseException:
            self.close()
            raise

    # --- the executor's methods -------------------------------------------------------------------

    def perform(self, job: Job, states: States) -> Outcome:
        try:
            return self._perform(job, states)
        except BaseException:
            # Whoever is still at this job would answer into the next one.
            for worker in self._workers:
                if worker.block is not None:
                    worker.process.kill()
            raise

    def _perform(self, job: Job, states: States) -> Outcome:
        for worker in self._workers:
            if worker.block is not None:  # left over from a job that failed
                worker.process.join()
                worker.pipe.close()
                self._workers[worker.number] = self._start(worker.number)
        self._jobs += 1
        length, task = self._post(job.broadcast), pickle.dumps(job.task)
        pool = Pool(job, self._federation.size, self._home, len(self._workers))
        total, replies = TreeSum(len(job.ids)), {}
        visits: dict[ClientId, Visit] = {}
        failures: Counter[tuple[int, int]] = Counter()

        def hand_out() -> None:
            for worker in self._workers:
                if worker.block is None and (block := pool.take(worker.number)) is not None:
                    worker.block = block
                    each = (
                        None
                        if job.each is None
                        else [None if id is None else tree.pack(job.each[id]) for id in block.ids]
                    )
                    before = [None if id is None else states.get(id) for id in block.ids]
                    self._send(
                        worker,
                        ("block", self._jobs, task, block.ids, length, each, before, job.additive),
                    )

        hand_out()
        while any(worker.block for worker in self._workers):
            for worker in self._ready():
                block, result = worker.block, self._receive(worker)
                if block is None:
                    continue
                if result is None:
                    pool.put_back(block)
                    self._replace(worker, block, failures)
                    hand_out()
                    continue
                worker.block = None
                hand_out()  # before the result is looked at, so that the worker need not wait
                for id, visit in zip(block.ids, result.visits, strict=True):
                    if id is not None:
                        visits[id] = visit._replace(state=None)
                        if visit.state is not None:
                            states.put(id, visit.state)
                        if visit.memo:
                            self._home[id] = worker.number
                if not job.additive:
                    replies.update(tree.unpack(result.value or b""))
                else:
                    total.put(
                        block.place,
                        NOTHING if result.value is None else tree.unpack(result.value),
                        block.level,
                    )
        return outcome_of(total.total if job.additive else replies, visits)

    def publish(self, name: str, data: bytes) -> None:
        self._published[name] = data
        self._home.clear()
        for worker in self._workers:
            self._send(worker, ("publish", name, data))

    def close(self) -> None:
        for worker in self._workers:
            if worker.block is None:
                self._send(worker, ("stop",))
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
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        materials = (self._model, self._federation, self._training, self._seed)
        process = context.Process(
            target=_work, args=(theirs, *materials), name=f"concordfl-worker-{number}", daemon=True
        )
        with _one_thread(), _main_module_kept_out(self._model):
            process.start()
        theirs.close()
        worker = Worker(number, process, ours)
        self._send(worker, ("board", self._board))
        for name, data in self._published.items():
            self._send(worker, ("publish", name, data))
        return worker

    def _replace(self, worker: Worker, block: Block, failures: Counter[tuple[int, int]]) -> None:
        """Put a new worker in the place of one that died at `block`."""
        worker.process.join()
        worker.pipe.close()
        failures[block.level, block.place] += 1
        if failures[block.level, block.place] == ATTEMPTS:
            clients = ", ".join(id for id in block.ids if id)
            raise WorkerError(
                f"a worker process died {ATTEMPTS} times at the same work (clients {clients}; exit "
                "code "
                f"{worker.process.exitcode}): is there enough memory for {len(self._workers)} "
                "workers?"
            )
        for id in [id for id, number in self._home.items() if number == worker.number]:
            del self._home[id]
        self._workers[worker.number] = self._start(worker.number)

    def _send(self, worker: Worker, message: tuple[object, ...]) -> None:
        with contextlib.suppress(
            OSError
        ):  # a dead worker is found, and replaced, when its answer fails to come
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
        busy = {worker.pipe: worker for worker in self._workers if worker.block}
        sentinels = {worker.process.sentinel: worker for worker in busy.values()}
        found = wait([*busy, *sentinels])
        pipes = [busy[item] for item in found if item in busy]
        # A worker may have sent its last result and died: the pipe comes first, its end shows the
        # death.
        return pipes or [sentinels[item] for item in found if item in sentinels]

    # --- work -------------------------------------------------------------------------------------

    def _post(self, broadcast: Tree) -> int:
        """Put the broadcast into shared memory; its length in bytes. Called only while every worker
        is idle.
        """
        data = tree.pack(broadcast)
        if len(data) > len(self._board):
            self._board = torch.empty(2 * len(data), dtype=torch.uint8)
            self._board.share_memory_()  # type: ignore[no-untyped-call]
            for worker in self._workers:
                self._send(worker, ("board", self._board))
        self._board.numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)
        return len(data)


class Pool:
    """The blocks that are still to be done.

    The heaviest is taken first, after being split until it is at most a share of what is left: few
    and large blocks at the start spare the parent, small ones at the end keep all workers busy to
    the last. Clients of which a worker remembers something go to that worker alone.
    """

    def __init__(
        self, job: Job, size: Callable[[ClientId], int], home: dict[ClientId, int], workers: int
    ) -> None:
        ids = job.present()
        self._weight = {id: 1 + size(id) for id in ids if id is not None}
        self._home, self._workers = home, workers
        level = (len(ids) - 1).bit_length()
        self._blocks = [Block(level, 0, ids)]

    def take(self, worker: int) -> Block | None:
        """The next block for a worker; None where nothing is left that it may do."""
        while own := [block for block in self._blocks if self._may(worker, block)]:
            block = max(own, key=self._weigh)
            self._blocks.remove(block)
            if block.level == 0 or self._is_due(worker, block):
                return block
            half = 2 ** (block.level - 1)
            self._blocks.append(Block(block.level - 1, 2 * block.place, block.ids[:half]))
            if block.ids[half:]:
                self._blocks.append(Block(block.level - 1, 2 * block.place + 1, block.ids[half:]))
        return None

    def put_back(self, block: Block) -> None:
        self._blocks.append(block)

    def _may(self, worker: int, block: Block) -> bool:
        """Whether there is something for the worker in a block."""
        return any(id is None or self._home.get(id, worker) == worker for id in block.ids)

    def _is_due(self, worker: int, block: Block) -> bool:
        """Whether a block need not be split: it is the worker's alone, or anybody's and a small
        share of what is left.
        """
        homes = {self._home.get(id) for id in block.ids if id is not None}
        left = self._weigh(block) + sum(self._weigh(other) for other in self._blocks)
        return homes == {worker} or (
            homes <= {None} and self._weigh(block) * 2 * self._workers <= left
        )

    def _weigh(self, block: Block) -> int:
        return sum(self._weight.get(id, 0) for id in block.ids if id is not None)


class RemoteTraceback(Exception):  # noqa: N818 - it only carries a text
    """The traceback of a step that failed in a worker process, as text."""


# --- in the worker --------------------------------------------------------------------------------


def _work(
    pipe: Connection, model: Model, federation: Federation, training: Training, seed: int
) -> None:
    """A worker's life: orders in, results out, until told to stop or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    keep_freed_memory()
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
            case ("block", job, task, ids, length, each, states, additive):
                if each is None and job != last_job:
                    broadcast, last_job = tree.unpack(board.numpy()[:length].tobytes()), job
                messages = (
                    broadcast if each is None else tree.unpack(each[place] or EMPTY)
                    for place in range(len(ids))
                )
                result = _do_block(workplace, task, ids, messages, states, additive)
                with contextlib.suppress(
                    OSError
                ):  # the parent is gone; the listener is about to end this process
                    pipe.send_bytes(pickle.dumps(result))


def _listen(pipe: Connection, orders: "SimpleQueue[tuple[Any, ...]]") -> None:
    """Take orders at any time, so that the parent never waits for a busy worker, and end with the
    parent.
    """
    try:
        while True:
            orders.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(1)
    except BaseException:
        # an order that cannot be read: the parent sees a dead worker, not a silent one
        traceback.print_exc()
        os._exit(1)


def _do_block(
    workplace: Workplace,
    task: bytes,
    ids: Sequence[ClientId | None],
    messages: Iterable[Tree],
    states: Sequence[bytes | None],
    additive: bool,
) -> Result:
    try:
        value, visits = workplace.visit_all(pickle.loads(task), ids, states, messages, additive)
        return Result(None if value is NOTHING else tree.pack(value), tuple(visits))
    except Exception as error:
        return Result(None, (), (str(error), traceback.format_exc()))


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
