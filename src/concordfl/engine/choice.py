"""Which executor a run takes, and why."""

import os
import sys
import time
from typing import Any, NamedTuple

from ..core import Client, SettingError
from ..data import Federation
from .client_states import ClientStates, DiskStates, MemoryStates
from .executors import Executor, Processes, Serial
from .files import make_folder
from .plan import Plan
from .records import RunFolder
from .setup import Setup
from .threads import one_thread

MIN_SECONDS_FOR_WORKERS = 10.0  # of training: below, worker processes do not repay their start
NUM_TRIAL_STEPS = 3
MAX_WINDOWS_WORKERS = 30  # Windows waits for at most 63 handles, two per worker


class Choice(NamedTuple):
    """An executor, and why it was chosen."""

    name: str
    workers: int
    reason: str

    def make(
        self, setup: Setup, federation: Federation, plan: Plan, folder: RunFolder | None
    ) -> Executor:
        if self.name == "processes":
            _require_cpu(setup)
        states = _make_states(plan, folder)
        if self.name == "serial":
            return Serial(setup, federation, states, plan.noise_seed)
        return Processes(setup, federation, states, plan.noise_seed, workers=self.workers)


def choose(setup: Setup, federation: Federation, plan: Plan) -> Choice:
    """The executor asked for; `auto` takes worker processes where the work repays their start."""
    device = setup.model.device
    workers = plan.workers or os.cpu_count() or 1
    if sys.platform == "win32":
        workers = min(workers, MAX_WINDOWS_WORKERS)
    if plan.executor == "serial":
        return Choice("serial", 1, "asked for")
    if plan.executor == "processes":
        _require_cpu(setup)
        return Choice("processes", workers, "asked for")
    if device.type != "cpu":
        return Choice("serial", 1, f"device is {device}")
    if workers == 1:
        return Choice("serial", 1, "one core")
    seconds = _estimate_seconds(setup, federation, plan)
    if seconds < MIN_SECONDS_FOR_WORKERS:
        reason = f"about {seconds:.1f} s of training, too short for worker processes"
        return Choice("serial", 1, reason)
    reason = f"about {seconds:.0f} s of training in one process, {workers} workers"
    return Choice("processes", workers, reason)


def _require_cpu(setup: Setup) -> None:
    device = setup.model.device
    if device.type != "cpu":
        rule = "run.executor must be 'serial' on a GPU"
        raise SettingError(f"{rule}, got 'processes' with device {device}")


def _make_states(plan: Plan, folder: RunFolder | None) -> ClientStates:
    if plan.client_states == "memory":
        return MemoryStates()
    if folder is None:
        raise SettingError(
            "run.client_states must be 'memory' for a run without a folder, got 'disk'"
        )
    make_folder(folder.checkpoints)
    return DiskStates(folder.checkpoints)


def _estimate_seconds(setup: Setup, federation: Federation, plan: Plan) -> float:
    """Training time in one process, from a few steps on the first client.

    The choice that follows from it changes no result.
    """
    ids, training = federation.participants, setup.training
    client = Client(
        ids[0],
        federation.splits(ids[0]).train,
        objective=setup.objective,
        model=setup.model,
        training=training,
        seed=0,
        round=0,
    )
    with one_thread():
        start: dict[str, Any] = setup.model.init(0)
        client.fit(start, steps=1)
        began = time.perf_counter()
        client.fit(start, steps=NUM_TRIAL_STEPS)
        per_step = (time.perf_counter() - began) / NUM_TRIAL_STEPS
    steps = sum(-(-federation.size(id) // training.batch_size) for id in ids)
    share = plan.cohort_size(len(ids)) / len(ids)
    return per_step * steps * training.epochs * plan.rounds * share
