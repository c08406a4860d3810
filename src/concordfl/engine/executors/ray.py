"""Workers on a Ray cluster, one torch thread each: for studies that outgrow one machine.

Clients are handed out in blocks as `processes` does it, so the number of workers changes no bit.
Method, examples, orders and publications are put into Ray's object store once and are fetched by
the workers that lack them; examples are mapped there, not copied. Clients' states go from worker
to worker through the store: this process knows where they are. A copy of each is on this process's
machine, so that no other one takes states with it when it is lost. (Objects of less than 100 kB
travel inside Ray's own messages.)

A worker is an actor rather than a task: it keeps the network, what was published, and what is
remembered of its clients' examples. Each call names all that it needs, so a worker that dies is
replaced by an empty one, and its block is done again.
"""

import hashlib
import pickle
import platform
import sys
import warnings
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import torch
from ray import cloudpickle
from ray.exceptions import RayError

from ...core import ClientId, Order, Outcome, SettingError, WorkerError, tree
from ...core.client import Secret
from ...data import Federation
from ..evaluate import EVALUATION_STEPS
from ..memory import keep_freed_memory
from ..node import Node
from ..setup import Setup
from .base import Simulation
from .blocks import BlockResult, Failure, LentStates, Work, do_block
from .pool import Block, Pool
from .ray_cluster import Cluster, first_line
from .ray_states import StoredStates

MAX_FAILED_STARTS = 3  # of workers in a row, before the run is given up
SECONDS_WITHOUT_WORKERS = 300  # that a run waits for the cluster to have room for one

Reference = Any  # ray.ObjectRef, of what its name says


class Published(NamedTuple):
    """Something given to everybody for good."""

    sha256: str
    data: Reference


class Call(NamedTuple):
    """All that a worker must know to do a block, apart from the clients' states."""

    secret: Secret
    published: dict[str, Published]
    order_number: int
    order: Reference
    part: bytes  # a tree: the block's clients, who of them drops out, and each one's message
    changes_states: bool  # whether the step may


class Started(NamedTuple):
    """What a worker says of itself."""

    node_id: str  # of the machine where it is
    versions: dict[str, str]
    problem: str = ""  # why it cannot work


@dataclass
class Task:
    """A block that a worker is at."""

    block: Block
    result: Reference
    states: list[Reference]  # of the block's clients, of None where nothing has changed
    copied: Reference | None  # for a worker elsewhere: when the states have come here

    @property
    def last(self) -> Reference:
        return self.result if self.copied is None else self.copied


@dataclass
class Worker:
    """This process's view of a worker."""

    number: int
    actor: Any
    started: Reference
    node_id: str | None = None  # None until it has started
    task: Task | None = None


class Ray(Simulation):
    name = "ray"

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        noise_seed: int | None = None,
        *,
        workers: int,
        address: str | None = None,
    ) -> None:
        self.states: StoredStates
        super().__init__(StoredStates(), noise_seed)
        self._setup, self._size, packed = setup, federation.size, _pack_setup(setup)
        self._published: dict[str, Published] = {}
        self._orders = self._failed_starts = 0
        # The worker that remembers something derived from the client's examples.
        self._home: dict[ClientId, int] = {}
        self._workers: list[Worker] = []
        self._cluster = Cluster(address, workers)
        try:
            paths = [path or str(Path.cwd()) for path in sys.path]
            self._cargo = [ray.put((paths, packed)), _put_examples(federation)]
            self._workers.extend(self._start(number) for number in range(workers))
        except BaseException:
            self.close()
            raise

    # --- the executor's methods -------------------------------------------------------------------

    def perform(self, order: Order) -> Outcome:
        try:
            return self._perform(order)
        except BaseException:
            # Whoever is still at this order has nobody who waits for the answer.
            for worker in self._workers:
                worker.task = None
            raise

    def _perform(self, order: Order) -> Outcome:
        pool = Pool(order, self._size, self._home, len(self._workers))
        work = Work(order, self._setup, pool)
        self._orders += 1
        shared = ray.put(work.shared)
        self._hand_out(work, shared)
        while not pool.is_empty or any(worker.task for worker in self._workers):
            worker = self._wait()
            if worker.task is None:
                self._welcome(worker)
            else:
                self._take_result(worker, worker.task, work, shared)
            self._hand_out(work, shared)
        return work.outcome()

    def _hand_out(self, work: Work, shared: Reference) -> None:
        """Give every idle worker a block."""
        for worker in self._workers:
            if worker.node_id is None or worker.task is not None:
                continue
            block = work.pool.take(worker.number)
            if block is not None:
                worker.task = self._send(worker, block, work.order.only(block.ids), shared)

    def _send(self, worker: Worker, block: Block, part: Order, shared: Reference) -> Task:
        changes = part.step not in EVALUATION_STEPS
        call = Call(
            self.secret,
            self._published,
            self._orders,
            shared,
            tree.pack([part.clients, part.dropped, part.each]),
            changes,
        )
        states = [self.states.reference(id) for id in block.ids]
        do_block = worker.actor.do_block.options(num_returns=1 + changes * len(states))
        answer = do_block.remote(call, *states)
        if not changes:
            return Task(block, answer, [], None)
        result, *new = answer
        if worker.node_id == self._cluster.node_id:
            return Task(block, result, new, None)
        copied, *new = self._cluster.run_here(_copy, 1 + len(new), *new)
        return Task(block, result, new, copied)

    def _take_result(self, worker: Worker, task: Task, work: Work, shared: Reference) -> None:
        worker.task = None
        try:
            answer = ray.get(task.result)
            if task.copied is not None:
                ray.get(task.copied)
        except RayError as error:
            self._replace(worker, task.block, error, work)
            return
        self._hand_out(work, shared)  # before the result is looked at: the worker need not wait
        if isinstance(answer, Failure):
            answer.raise_here()
        result = BlockResult.from_bytes(answer)
        for id, state in zip(task.block.ids, task.states, strict=bool(task.states)):
            if id in result.state_sizes:
                self.states.put_reference(id, state)
        self._home |= dict.fromkeys(result.remembered, worker.number)
        work.add(task.block, result.outcome)

    def publish(self, name: str, data: bytes) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        if name in self._published:
            if self._published[name].sha256 == sha256:
                return
            self._home.clear()  # nodes forget what they may have derived from the older one
        self._published = {**self._published, name: Published(sha256, ray.put(data))}

    def close(self) -> None:
        for worker in self._workers:
            ray.kill(worker.actor)
        self._workers = []
        self._cluster.close()

    # --- workers ----------------------------------------------------------------------------------

    def _start(self, number: int) -> Worker:
        make = ray.remote(Host).options(num_cpus=1, max_restarts=0, scheduling_strategy="SPREAD")
        actor = make.remote(self._cargo)
        return Worker(number, actor, actor.start.remote())

    def _wait(self) -> Worker:
        """The next worker that has done its block, or has started."""
        waiting = {}
        for worker in self._workers:
            if worker.task is not None:
                waiting[worker.task.last] = worker
            elif worker.node_id is None:
                waiting[worker.started] = worker
        is_busy = any(worker.task for worker in self._workers)
        timeout = None if is_busy else SECONDS_WITHOUT_WORKERS
        ready, _ = ray.wait(list(waiting), num_returns=1, timeout=timeout)
        if not ready:
            raise WorkerError(
                f"a Ray cluster must have a free CPU within {SECONDS_WITHOUT_WORKERS} s, got none "
                f"for any of {len(self._workers)} workers"
            )
        return waiting[ready[0]]

    def _welcome(self, worker: Worker) -> None:
        """Let a worker that has started take part, if it is fit for it."""
        try:
            started: Started = ray.get(worker.started)
        except RayError as error:
            self._failed_starts += 1
            if self._failed_starts == MAX_FAILED_STARTS:
                raise WorkerError(f"Ray's workers must start, got {first_line(error)}") from error
            self._workers[worker.number] = self._start(worker.number)
            return
        if started.problem:
            raise SettingError(
                "what a run needs must be installed on every machine of a Ray cluster, got "
                f"{started.problem}"
            )
        if started.versions != versions():
            raise SettingError(
                f"every machine of a Ray cluster must have {_in_words(versions())}, got "
                f"{_in_words(started.versions)}"
            )
        self._failed_starts, worker.node_id = 0, started.node_id

    def _replace(self, worker: Worker, block: Block, error: RayError, work: Work) -> None:
        """Put a new worker in the place of one that died at `block`, which is done again.

        It may take its time to come, as the place of a lost machine may: others go on.
        """
        ray.kill(worker.actor)
        question = "is there enough memory for one worker per CPU?"
        work.put_back(block, worker.number, first_line(error), question)
        self._home = {id: home for id, home in self._home.items() if home != worker.number}
        self._workers[worker.number] = self._start(worker.number)


def versions() -> dict[str, str]:
    """What must be the same everywhere for the same bits."""
    names = ("concordfl", "torch", "numpy")
    return {name: version(name) for name in names} | {"Python": platform.python_version()}


def _in_words(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items())


def _pack_setup(setup: Setup) -> bytes:
    """The setup, with what it needs that is defined in a script or a notebook."""
    try:
        packed: bytes = cloudpickle.dumps((setup, tree.registered_in("__main__")))
    except Exception as error:  # a user's class may fail in any way
        raise SettingError(
            "run.executor must be 'serial' with a method or model that cannot be pickled, got "
            f"'ray': {first_line(error)}"
        ) from error
    return packed


def _put_examples(federation: Federation) -> Reference:
    """The examples as arrays, which workers map instead of copying them."""
    arrays = [np.ascontiguousarray(tensor.numpy()) for tensor in (federation.x, federation.y)]
    nothing = torch.empty(0)
    return ray.put((*arrays, replace(federation, x=nothing, y=nothing)))


# --- in the worker --------------------------------------------------------------------------------


class Host:
    """A worker: a node with all clients' examples, which is lent their states."""

    def __init__(self, cargo: list[Reference]) -> None:
        self._cargo = cargo
        self._states = LentStates()
        self._known: dict[str, str] = {}  # sha256 of publications
        self._order, self._order_number = Order(), 0

    def start(self) -> Started:
        torch.set_num_threads(1)
        keep_freed_memory()
        here = ray.get_runtime_context().get_node_id()
        try:
            self._node = self._make_node()
        except Exception as error:
            return Started(here, versions(), first_line(error))
        return Started(here, versions())

    def _make_node(self) -> Node:
        (paths, packed), (x, y, rest) = ray.get(self._cargo)
        # A script's own modules, say, which are found where it lies.
        sys.path.extend(path for path in paths if path not in sys.path)
        setup, kinds = pickle.loads(packed)
        for kind in kinds:
            tree.register(kind)
        with warnings.catch_warnings():
            # The arrays cannot be written to, and nobody writes to examples.
            warnings.simplefilter("ignore", UserWarning)
            federation = replace(rest, x=torch.from_numpy(x), y=torch.from_numpy(y))
        return Node(setup, federation, self._states, secret=0)

    def do_block(self, call: Call, *states: bytes | None) -> Any:
        """The packed BlockResult, or a Failure; with it a new state, or None, for every client
        where the step may change states.
        """
        clients, dropped, each = tree.unpack(call.part)
        lent = {id: state for id, state in zip(clients, states, strict=True) if state is not None}
        answer: bytes | Failure
        try:
            self._catch_up(call)
            part = self._order._replace(clients=clients, dropped=dropped, each=each)
            answer = tree.pack(do_block(self._node, self._states, part, lent))
        except Exception as error:
            answer = Failure.of(error)
        if not call.changes_states:
            return answer
        return [answer, *(self._states.changed.get(id) for id in clients)]

    def _catch_up(self, call: Call) -> None:
        """Fetch what is new to this worker."""
        self._node.secret = call.secret
        for name, (sha256, data) in call.published.items():
            if self._known.get(name) != sha256:
                self._node.publish(name, ray.get(data))
                self._known[name] = sha256
        if self._order_number != call.order_number:
            self._order, self._order_number = (
                Order.from_bytes(ray.get(call.order)),
                call.order_number,
            )


def _copy(*states: bytes | None) -> tuple[bytes | bool | None, ...]:
    """The same, as new objects of the machine where this runs."""
    return True, *states
