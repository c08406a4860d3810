"""The executor on Ray: the same bits as `serial`, whoever dies.

All tests that need a cluster share one of two workers; those marked slow start their own.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import toys
from concordfl import ClientStepError, SettingError, WorkerError
from concordfl.core.errors import ConcordError
from concordfl.engine import choice
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder

pytest.importorskip("ray", reason="the extra `ray` is not installed")

from concordfl.engine.executors import ray_cluster, ray_states
from concordfl.engine.executors.ray_cluster import Cluster, count_cpus
from concordfl.engine.executors.ray_states import StoredStates

PLAN = Plan(rounds=3, cohort=5, evaluate_every=2, dropout=0.15, noise_seed=0)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@pytest.fixture(scope="module")
def cluster():
    before = signal.getsignal(signal.SIGTERM), dict(os.environ)
    made = Cluster(None, 2)
    assert (signal.getsignal(signal.SIGTERM), dict(os.environ)) == before
    yield made
    folder = made._folder
    made.close()
    assert not folder.exists()
    assert processes_naming(folder) == []


def processes_naming(text):
    """Of all processes, those whose command line holds a text."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = file.read_bytes().decode(errors="replace")
        except OSError:
            continue  # it has ended meanwhile
        if str(text) in command:
            found.append(command)
    return found


def experiment(algorithm, plan=PLAN, **more):
    return toys.experiment(algorithm, plan=plan, executor="ray", **more)


# --- the same bits --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedavg", "fedconceptem", "fedgmm", "ifca", "apfl"])
def test_results_are_those_of_serial_to_the_bit(cluster, name):
    method = toys.all_methods()[name]
    data = toys.federation()
    before = data.fingerprint()
    serial = toys.result(toys.experiment(method, plan=PLAN))
    spread = toys.result(experiment(method, data=data))
    for key in ("parameters_sha256", "states_sha256", "bytes", "final", "selected"):
        assert spread[key] == serial[key], key
    assert data.fingerprint() == before


def test_a_resumed_run_equals_a_straight_one(cluster, tmp_path):
    plan = replace(PLAN, checkpoint_seconds=0, rounds=4)
    straight = toys.experiment(toys.Toy(), plan=plan)
    expected = toys.digests(straight)
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = experiment(toys.Toy(), plan, folder=folder)

        def stop_after_three(event):
            if event.turn.round == 3:
                raise KeyboardInterrupt

        made.observe = stop_after_three
        with pytest.raises(KeyboardInterrupt):
            made.run(made.restore())
        made.executor.close()
        again = experiment(toys.Toy(), plan, folder=folder)
        assert toys.digests(again) == expected
        parts = dict(straight.executor.personal_parts())
        assert dict(again.executor.personal_parts()) == parts
        assert len(parts) > 1


# --- states ---------------------------------------------------------------------------------------


def test_a_checkpoint_reads_the_states_that_have_changed(cluster, tmp_path, monkeypatch):
    states, read = StoredStates(), []
    get = ray_states.ray.get
    monkeypatch.setattr(
        ray_states.ray, "get", lambda what: (read.extend(what), get(what))[1], raising=True
    )
    for id in ("a", "b"):
        states.put(id, 100 * id.encode())  # so much that the segment is worth keeping
    states.commit()
    first = states.save(tmp_path, 1)
    assert len(read) == 2
    states.put("b", b"other")
    states.commit()
    second = states.save(tmp_path, 2)
    assert len(read) == 3
    assert first["segments"] == second["segments"][:1]
    loaded = StoredStates()
    loaded.load(tmp_path, second)
    assert {id: loaded.get(id) for id in loaded.ids()} == {"a": 100 * b"a", "b": b"other"}
    assert loaded.digest() == states.digest()
    assert len(read) == 3


def test_states_count_when_they_are_committed(cluster, tmp_path):
    states = StoredStates()
    states.put("a", b"1")
    assert (states.get("a"), states.ids()) == (b"1", [])
    states.discard()
    assert states.get("a") is None
    assert states.reference("a") is None
    states.put("a", b"2")
    states.commit()
    states.put("a", b"3")
    assert (states.get("a"), states.ids()) == (b"3", ["a"])
    states.discard()
    assert states.get("a") == b"2"
    saved = states.save(tmp_path, 1)
    states.put("a", b"4")
    states.commit()
    states.load(tmp_path, saved)
    assert states.get("a") == b"2"
    assert ray_states.ray.get(states.reference("a")) == b"2"


# --- workers that die, steps that fail ------------------------------------------------------------


def test_a_worker_that_dies_is_replaced_and_its_work_repeated(cluster, tmp_path):
    plan = Plan(rounds=2)
    expected = toys.digests(toys.experiment(toys.Toy(), plan=plan))
    faulty = toys.Faulty(how="die once", marker=str(tmp_path / "died"))
    assert toys.digests(experiment(faulty, plan)) == expected
    assert (tmp_path / "died").exists()


def test_work_that_kills_every_worker_is_given_up(cluster):
    with pytest.raises(WorkerError, match=r"died 3 times at the same work \(clients .*client-2"):
        toys.result(experiment(toys.Faulty(how="die")))


def test_a_failing_step_is_named_and_the_executor_of_use_after_it(cluster, tmp_path):
    faulty = toys.Faulty(how="raise once", marker=str(tmp_path / "raised"))
    made = experiment(faulty, Plan(rounds=2))
    with pytest.raises(ClientStepError) as error:
        made.run(made.start())
    place = "client 'client-2', stage 'train', step 'train', round 2"
    assert str(error.value) == f"{place}: ValueError: bad luck"
    assert "bad luck" in repr(error.value.__cause__)
    made.executor.discard()
    made.executor.states.load(tmp_path, {"segments": []})
    summary = toys.result(made)
    expected = toys.digests(toys.experiment(toys.Toy(), plan=Plan(rounds=2)))
    assert (summary["parameters_sha256"], summary["states_sha256"]) == expected


@dataclass(frozen=True)
class Unpicklable(toys.Toy):
    lock: object = None


def test_what_cannot_be_pickled_is_refused(cluster):
    with pytest.raises(SettingError, match="must be 'serial' with .* cannot be pickled, got 'ray'"):
        experiment(Unpicklable(lock=threading.Lock()))


# --- settings -------------------------------------------------------------------------------------


def choose(**run):
    data = toys.federation()
    plan = Plan(**run)
    return choice.choose(toys.make_setup(toys.Toy(), data, plan), data, plan)


def test_ray_is_taken_where_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(choice, "available_cores", lambda: 3)
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    assert choose(executor="ray") == ("ray", 3, "asked for")
    assert choose(executor="ray", workers=2).workers == 2
    assert choose(rounds=10**6).name != "ray"


def test_a_cluster_that_is_there_has_a_worker_per_cpu(cluster):
    assert choose(executor="ray").workers == count_cpus(None) == 2
    assert ray_cluster.ray.is_initialized()


@pytest.mark.parametrize(
    ("run", "rule"),
    [
        ({"ray_address": "auto"}, "run.ray_address needs run.executor = 'ray', got 'auto'"),
        ({"executor": "ray", "client_states": "disk"}, "run.client_states must be 'memory' with"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(run, rule):
    with pytest.raises(SettingError) as error:
        choose(**run)
    assert str(error.value).startswith(rule)
    assert "\n" not in str(error.value)


def test_a_gpu_is_refused():
    data = toys.federation()
    setup = toys.make_setup(toys.Toy(), data)
    setup.model.device = torch.device("cuda")
    with pytest.raises(SettingError, match="must be 'serial' on a GPU, got 'ray' with device cuda"):
        choice.choose(setup, data, Plan(executor="ray"))


def test_without_ray_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(choice, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match=r"got none: pip install 'concordfl\[ray\]'"):
        choose(executor="ray")


@pytest.fixture
def silent_port():
    """Where somebody listens who never says a word."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]


def refusal(monkeypatch, address):
    monkeypatch.setattr(ray_cluster.ray, "is_initialized", lambda: False)
    with pytest.raises(ConcordError) as error:
        Cluster(address, 1)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "address",
    ["", "here", "ray://127.0.0.1:10001", "127.0.0.1:port", ":6379", "a/b:6379", "x:\u0663"],
)
def test_addresses_that_are_none_are_refused(monkeypatch, address):
    rule = "run.ray_address must be HOST:PORT of a cluster that this machine is part of, or 'auto'"
    assert refusal(monkeypatch, address) == f"{rule}, got {address!r}"


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379", "127.0.0.1:9999999"])
def test_a_cluster_that_is_not_there_is_refused(monkeypatch, address):
    rule = "run.ray_address must be a Ray cluster that this machine is part of"
    assert refusal(monkeypatch, address).startswith(f"{rule}, got {address!r}: ")


def test_auto_is_what_rays_own_variable_says(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert "got '127.0.0.1:1': ConnectionRefusedError" in refusal(monkeypatch, "auto")


def test_who_listens_and_says_nothing_is_no_cluster(monkeypatch, silent_port):
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_CONNECT", 0.2)
    assert "timed out" in refusal(monkeypatch, f"localhost:{silent_port}")


def test_a_long_temporary_folder_does_not_matter(monkeypatch, tmp_path):
    """Sockets of Unix have short names."""
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(ray_cluster.tempfile, "tempdir", str(long))
    folder = ray_cluster._short_folder()
    folder.rmdir()
    assert len(str(folder)) <= ray_cluster.MAX_FOLDER_CHARACTERS


# --- processes of their own -----------------------------------------------------------------------


def start(script, *arguments, **environment):
    """A script that is read from standard input, as a notebook's cells: nobody can import it."""
    paths = os.pathsep.join([str(Path(toys.__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": paths, **environment},
        start_new_session=True,
    )
    process.stdin.write(textwrap.dedent(script))
    process.stdin.close()
    process.stdin = None
    return process


NOTEBOOK = """
from dataclasses import dataclass
from typing import NamedTuple
import torch
import toys
from concordfl import client_step, tree
from concordfl.algorithms import FedAvg

torch.set_num_threads(1)

@tree.register
class Visits(NamedTuple):
    count: int

@dataclass(frozen=True)
class Mine(FedAvg):
    def init_client(self, client, message):
        return Visits(0)

    @client_step
    def train(self, client, state, message):
        _, reply = super().train(client, state, message)
        return Visits(state.count + client.size), reply

for executor in ("serial", "ray"):
    print(*toys.digests(toys.experiment(Mine(), executor=executor)), flush=True)
"""


def test_a_method_of_a_notebook_runs_on_a_cluster_of_its_own(tmp_path):
    process = start(NOTEBOOK, HOME=str(tmp_path))
    out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    serial, spread = out.splitlines()
    assert spread == serial
    assert list(tmp_path.iterdir()) == []  # Ray keeps a token at home if it is not given one


LONG_RUN = """
import toys
from concordfl.engine.plan import Plan

made = toys.experiment(toys.Toy(), plan=Plan(rounds=100000), executor="ray")
print(made.executor._cluster._folder, flush=True)
made.observe = lambda event: print(event.turn.round, flush=True)
try:
    made.run(made.start())
except KeyboardInterrupt:
    made.executor.close()
    print("stopped", flush=True)
"""


@ON_LINUX
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_a_run_that_is_stopped(number):
    """Ctrl-C reaches all processes of a terminal."""
    process = start(LONG_RUN)
    folder = process.stdout.readline().strip()
    assert process.stdout.readline() == "1\n"
    assert processes_naming(folder)
    send = os.killpg if number == signal.SIGINT else os.kill
    send(process.pid, number)
    out, err = process.communicate(timeout=120)
    if number == signal.SIGINT:
        assert out.splitlines()[-1] == "stopped"
        assert err == ""
        assert not Path(folder).exists()
    deadline = time.monotonic() + 60
    while processes_naming(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert processes_naming(folder) == []
    shutil.rmtree(folder, ignore_errors=True)  # nobody was left to do it


TWO_MACHINES = """
import os, sys, time, threading
import torch
from ray.cluster_utils import Cluster
import toys
from concordfl.engine.executors.ray import Ray
from concordfl.engine.experiment import Experiment
from concordfl.engine.plan import Plan
from concordfl.engine.roster import Roster

torch.set_num_threads(1)
method, plan = toys.Slow(), Plan(rounds=4, noise_seed=0)
print("serial", *toys.digests(toys.experiment(method, plan=plan)), flush=True)
options = {
    "num_cpus": 1,
    "include_dashboard": False,
    "_system_config": {"worker_niceness": 0},  # not the last to get a core of this machine
}
cluster = Cluster(initialize_head=True, head_node_args=options)
try:
    other = cluster.add_node(num_cpus=1)
    data = toys.federation()
    setup = toys.make_setup(method, data, plan)
    executor = Ray(setup, data, plan.noise_seed, workers=2, address=cluster.address)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not all(w.node_id for w in executor._workers):
        executor._welcome(executor._wait())

    def lose_a_machine(event):
        if event.turn.round == 2:  # in the middle of the third
            threading.Timer(0.3, cluster.remove_node, (other,), {"allow_graceful": False}).start()

    roster = Roster.from_federation(data, setup)
    made = Experiment(setup, roster, plan, executor, observe=lose_a_machine)
    print("machines", len({worker.node_id for worker in executor._workers}), flush=True)
    replaced, replace = [], executor._replace
    executor._replace = lambda worker, *more: (replaced.append(worker), replace(worker, *more))
    print("spread", *toys.digests(made), flush=True)
    print("lost", len({worker.node_id for worker in replaced}), flush=True)
finally:
    cluster.shutdown()
"""


@pytest.mark.slow
def test_a_machine_of_a_cluster_that_is_lost_takes_nothing_with_it():
    loopback = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        process = start(TWO_MACHINES, RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR=folder, **loopback)
        out, err = process.communicate(timeout=500)
        assert processes_naming(folder) == []
    assert process.returncode == 0, err
    said = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
    assert (said["machines"], said["lost"]) == ("2", "1"), out
    assert said["spread"] == said["serial"]
