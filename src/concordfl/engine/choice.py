"""Which executor a run takes, and why."""

import os
import pickle
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from ..core import Client, SettingError
from ..core.settings import MAX_WORKERS
from ..data import Federation
from .client_states import ClientStates, DiskStates, MemoryStates
from .executors import Executor, Processes, Serial, Vectorized
from .files import make_folder
from .plan import Plan
from .records import RunFolder
from .setup import Setup
from .threads import one_thread
from .vectorized import TOLERANCE, find_obstacle

MIN_SECONDS_FOR_WORKERS = 10.0  # of training: below, worker processes do not repay their start
NUM_TRIAL_STEPS = 3
# Of `auto`. What decides is counted and not timed, as results are those of others within a
# tolerance only: the same settings are always computed in the same way.
MIN_STEPS_FOR_VECTORIZED = 50_000  # of all clients in all rounds: about ten seconds one by one
MIN_CLIENTS_FOR_VECTORIZED = 32  # of a round
MAX_PARAMETERS_FOR_VECTORIZED = 20_000  # of a network: beyond, arithmetic is what takes the time
MAX_WORKERS_FOR_VECTORIZED = 4  # more worker processes are faster
OF_MAIN = "what is defined in a notebook or in the script itself"
MAX_WINDOWS_WORKERS = 30  # Windows waits for at most 63 handles, two per worker


class Choice(NamedTuple):
    """An executor, and why it was chosen."""

    name: str
    workers: int
    reason: str

    def make(
        self, setup: Setup, federation: Federation, plan: Plan, folder: RunFolder | None
    ) -> Executor:
        if self.name in ("processes", "ray"):
            _require_cpu(setup, self.name)
        if self.name == "ray":
            return _make_ray(setup, federation, plan, self.workers)
        states = _make_states(plan, folder)
        if self.name == "serial":
            return Serial(setup, federation, states, plan.noise_seed)
        if self.name == "vectorized":
            return Vectorized(setup, federation, states, plan.noise_seed)
        return Processes(setup, federation, states, plan.noise_seed, workers=self.workers)


def available_cores() -> int:
    """Those that this process may run on: `taskset` or a container can leave it fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(setup: Setup, federation: Federation, plan: Plan) -> Choice:
    """The executor asked for; `auto` computes small dense networks together, and takes worker
    processes where the work repays their start.
    """
    workers = plan.workers or available_cores()
    if sys.platform == "win32":
        workers = min(workers, MAX_WINDOWS_WORKERS)
    if plan.ray_address is not None and plan.executor != "ray":
        raise SettingError(f"run.ray_address needs run.executor = 'ray', got {plan.executor!r}")
    if plan.executor == "serial":
        return Choice("serial", 1, "asked for")
    if plan.executor == "vectorized":
        _require_vectorizable(setup, federation)
        return Choice("vectorized", 1, _says_tolerance("asked for"))
    if plan.executor == "processes":
        _require_cpu(setup, "processes")
        _require_sendable(setup)
        return Choice("processes", workers, "asked for")
    if plan.executor == "ray":
        return _choose_ray(setup, plan, workers)
    return _choose_by_itself(setup, federation, plan, workers)


def _choose_by_itself(setup: Setup, federation: Federation, plan: Plan, workers: int) -> Choice:
    """The choice of `auto`."""
    device = setup.model.device
    if device.type != "cpu":
        return Choice("serial", 1, f"device is {device}")
    if _gains_by_vectorizing(setup, federation, plan, workers):
        clients, size = plan.cohort_size(len(federation.population)), setup.model.num_parameters
        reason = f"{clients} clients a round with dense networks of {size} parameters"
        return Choice("vectorized", 1, _says_tolerance(reason))
    if workers == 1:
        return Choice("serial", 1, "one core")
    return _choose_by_work(setup, federation, plan, workers)


def _gains_by_vectorizing(setup: Setup, federation: Federation, plan: Plan, workers: int) -> bool:
    """Whether `auto` computes blocks of clients together."""
    population = len(federation.population)
    return (
        _vectorizes(setup)
        and workers <= MAX_WORKERS_FOR_VECTORIZED
        and population > 1
        and plan.cohort_size(population) >= MIN_CLIENTS_FOR_VECTORIZED
        and setup.model.num_parameters <= MAX_PARAMETERS_FOR_VECTORIZED
        and count_steps(setup, federation, plan) >= MIN_STEPS_FOR_VECTORIZED
        and _obstacle_to_vectorizing(setup, federation) is None
    )


def _vectorizes(setup: Setup) -> bool:
    """A class that inherits from a method may train on another loss: it must say so itself."""
    return bool(vars(type(setup.algorithm)).get("vectorizes", False))


def _obstacle_to_vectorizing(setup: Setup, federation: Federation) -> str | None:
    example = federation.splits(federation.participants[0]).train.inputs(slice(0, 1))
    return find_obstacle(setup.model, example)


def _require_vectorizable(setup: Setup, federation: Federation) -> None:
    if not _vectorizes(setup):
        raise SettingError(
            "run.executor = 'vectorized' is for methods whose clients train by `fit` on their own "
            f"loss, and say so, got {type(setup.algorithm).__name__}: 'auto' takes another"
        )
    obstacle = _obstacle_to_vectorizing(setup, federation)
    if obstacle is not None:
        raise SettingError(
            f"run.executor = 'vectorized' is for networks of dense layers, got {obstacle}: 'auto' "
            "takes another"
        )


def _says_tolerance(reason: str) -> str:
    return f"{reason}, computed together: within {TOLERANCE:g} of one by one"


def _choose_by_work(setup: Setup, federation: Federation, plan: Plan, workers: int) -> Choice:
    seconds = estimate_seconds(setup, federation, plan)
    if seconds < MIN_SECONDS_FOR_WORKERS:
        reason = f"about {seconds:.1f} s of training, too short for worker processes"
        return Choice("serial", 1, reason)
    obstacle = _obstacle(setup)
    if obstacle is not None:
        return Choice("serial", 1, f"worker processes cannot be sent {obstacle}")
    reason = f"about {seconds:.0f} s of training in one process, {workers} workers"
    return Choice("processes", workers, reason)


def _choose_ray(setup: Setup, plan: Plan, cores: int) -> Choice:
    """One worker per CPU of the cluster; of this machine where the cluster is still to be made."""
    _require_cpu(setup, "ray")
    _require_ray(plan)
    from .executors.ray_cluster import count_cpus

    workers = plan.workers or count_cpus(plan.ray_address) or cores
    return Choice("ray", min(workers, MAX_WORKERS), "asked for")


def _make_ray(setup: Setup, federation: Federation, plan: Plan, workers: int) -> Executor:
    _require_ray(plan)
    from .executors.ray import Ray

    return Ray(setup, federation, plan.noise_seed, workers=workers, address=plan.ray_address)


def _require_ray(plan: Plan) -> None:
    if find_spec("ray") is None:
        raise SettingError(
            "run.executor = 'ray' needs the package ray, got none: pip install 'concordfl[ray]'"
        )
    if plan.client_states == "disk":
        raise SettingError(
            "run.client_states must be 'memory' with run.executor = 'ray', whose object store "
            "brings them to disk where memory is short, got 'disk'"
        )


def _require_cpu(setup: Setup, executor: str) -> None:
    device = setup.model.device
    if device.type != "cpu":
        rule = "run.executor must be 'serial' on a GPU"
        raise SettingError(f"{rule}, got {executor!r} with device {device}")


def _require_sendable(setup: Setup) -> None:
    """Refuse what cannot reach a worker process. Those of a script can: it is run there again."""
    obstacle = _obstacle(setup)
    script = getattr(sys.modules["__main__"], "__file__", None)
    in_script = obstacle == OF_MAIN and script is not None and Path(script).is_file()
    if obstacle is not None and not in_script:
        raise SettingError(
            f"run.executor must be 'serial' or 'auto' with {obstacle}, got 'processes': a module "
            "of its own would do"
        )


def _obstacle(setup: Setup) -> str | None:
    """What worker processes could not be sent, or only by running the user's script once more."""
    for name, cargo in {"a method": setup.algorithm, "a model": setup.model}.items():
        try:
            packed = pickle.dumps(cargo)
        except Exception:  # a user's class may fail in any way
            return f"{name} that cannot be pickled"
        if b"__main__" in packed:
            return OF_MAIN
    return None


def _make_states(plan: Plan, folder: RunFolder | None) -> ClientStates:
    if plan.client_states == "memory":
        return MemoryStates()
    if folder is None:
        raise SettingError(
            "run.client_states must be 'memory' for a run without a folder, got 'disk'"
        )
    make_folder(folder.checkpoints)
    return DiskStates(folder.checkpoints)


def estimate_seconds(setup: Setup, federation: Federation, plan: Plan) -> float:
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
    return per_step * count_steps(setup, federation, plan)


def count_steps(setup: Setup, federation: Federation, plan: Plan) -> float:
    """Mini-batches of all clients in all rounds, if every client trains one network."""
    ids, training = federation.participants, setup.training
    steps = sum(-(-federation.size(id) // training.batch_size) for id in ids)
    share = plan.cohort_size(len(ids)) / len(ids)
    return steps * training.epochs * plan.rounds * share
