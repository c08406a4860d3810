import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

import toys
from concordfl import ClientStepError, WorkerError, client_step
from concordfl.algorithms import FedAvg, Local
from concordfl.core import Order, Total
from concordfl.engine.executors import fork_server
from concordfl.engine.executors.pool import Pool
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
from concordfl.engine.tree_sum import NOTHING, TreeSum


@dataclass(frozen=True)
class Counting(toys.Toy):
    log: str = ""

    @client_step
    def train(self, client, state, message):
        client.examples.cached("counted", lambda: _append(self.log, client.id))
        return super().train(client, state, message)


def _append(path, text):
    with open(path, "a") as file:
        file.write(text + "\n")
    return True


@dataclass(frozen=True)
class Growing(FedAvg):
    def init_server(self, task, seed):
        return {"params": task.model.init(seed), "big": torch.zeros(1)}

    @client_step
    def train(self, client, state, message):
        return state, Total(message["big"].sum())

    def round(self, server, cohort):
        total = cohort.sum(self.train, broadcast=server)
        assert total.item() == len(cohort.ids) * cohort.round
        return {
            **server,
            "big": torch.zeros(10 ** (cohort.round + 1)).index_fill_(
                0, torch.tensor([0]), cohort.round + 1
            ),
        }

    def message(self, server, client_id):
        return server["params"]


def pairwise(leaves):
    """The fixed tree as one would draw it: neighbours are added, level by level; a missing leaf
    passes its sibling on.
    """
    while len(leaves) > 1:
        pairs = [leaves[at : at + 2] for at in range(0, len(leaves), 2)]
        leaves = [
            pair[0]
            if len(pair) == 1 or pair[1] is None
            else pair[1]
            if pair[0] is None
            else pair[0] + pair[1]
            for pair in pairs
        ]
    return leaves[0]


@given(
    st.lists(st.one_of(st.none(), st.floats(-1e8, 1e8, width=32)), min_size=1, max_size=40),
    st.randoms(),
)
def test_the_sum_depends_on_the_leaves_alone(values, random):
    leaves = [None if value is None else torch.tensor(value) for value in values]
    total = TreeSum(len(leaves))
    order = list(range(len(leaves)))
    random.shuffle(order)
    for place in order:
        total.put(place, NOTHING if leaves[place] is None else leaves[place])
    expected = pairwise(leaves)
    assert total.value is NOTHING if expected is None else torch.equal(total.value, expected)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=60), st.integers(1, 5), st.randoms())
def test_blocks_are_nodes_of_that_tree(sizes, workers, random):
    ids = tuple(f"{place:03d}" for place in range(len(sizes)))
    lost = frozenset(id for id in ids if random.random() < 0.1)
    order = Order(clients=ids, dropped=tuple(sorted(lost)))
    pool = Pool(order, lambda id: sizes[int(id)], {}, workers)
    blocks = []
    while (block := pool.take(0)) is not None:
        blocks.append(block)
    random.shuffle(blocks)
    leaves = {id: torch.tensor(random.uniform(-1e8, 1e8)) for id in ids}
    total = TreeSum(len(ids))
    for block in blocks:
        inner = TreeSum(len(block.ids))
        for place, id in enumerate(block.ids):
            inner.put(place, NOTHING if id in lost else leaves[id])
        total.put(block.number, inner.value, block.level)
    expected = pairwise([None if id in lost else leaves[id] for id in ids])
    assert total.value is NOTHING if expected is None else torch.equal(total.value, expected)


def test_remembered_clients_stay_with_their_worker():
    order = Order(clients=("a", "b", "c"))
    pool = Pool(order, {"a": 5, "b": 9, "c": 1}.get, {"a": 0, "b": 1}, 2)
    assert [pool.take(0).ids, pool.take(0).ids] == [("a",), ("c",)]
    assert pool.take(0) is None
    assert pool.take(1).ids == ("b",)


@given(st.integers(1, 60), st.integers(1, 4), st.integers(0, 1000))
def test_remembered_clients_go_to_their_worker_in_whole_blocks(count, workers, seed):
    """What was handed out as a block comes back as one, or as part of a larger one; nobody twice,
    nobody elsewhere.
    """
    ids = tuple(f"{place:03d}" for place in range(count))
    order, rng = Order(clients=ids), np.random.default_rng(seed)
    home, first = {}, []
    pool = Pool(order, lambda id: 1, {}, workers)
    while (block := pool.take(worker := int(rng.integers(workers)))) is not None:
        first.append(block)
        home |= dict.fromkeys(block.ids, worker)
    again, pool = [], Pool(order, lambda id: 1, home, workers)
    for worker in range(workers):
        while (block := pool.take(worker)) is not None:
            again.append(block)
            assert {home[id] for id in block.ids} == {worker}
    assert sorted(id for block in again for id in block.ids) == list(ids)
    assert len(again) <= len(first)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), Local(), toys.Toy()], ids=["fedavg", "local", "toy"]
)
def test_executors_agree_to_the_bit(algorithm):
    plan = Plan(rounds=3, cohort=5, evaluate_every=2, dropout=0.15)
    expected = toys.digests(toys.experiment(algorithm, plan=plan))
    for workers in (1, 2, 3):
        assert (
            toys.digests(
                toys.experiment(algorithm, plan=plan, executor="processes", workers=workers)
            )
            == expected
        )


def test_workers_agree_where_they_cannot_be_forked(monkeypatch):
    """On other systems than Linux, and in a process that is a fork of one with a fork server."""
    plan = Plan(rounds=2)
    expected = toys.digests(toys.experiment(toys.Toy(), plan=plan))
    monkeypatch.setitem(fork_server._owner, "pid", -1)
    made = toys.experiment(toys.Toy(), plan=plan, executor="processes")
    assert {type(worker.process).__name__ for worker in made.executor._workers} == {"SpawnProcess"}
    assert toys.digests(made) == expected


def test_workers_begin_under_a_long_path_for_temporary_files(tmp_path, monkeypatch):
    """The socket of a fork server would have a name that the operating system refuses."""
    long = tmp_path / ("long" * 25)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made = toys.experiment(toys.Toy(), plan=Plan(rounds=1), executor="processes")
    assert {type(worker.process).__name__ for worker in made.executor._workers} == {"SpawnProcess"}
    assert toys.digests(made) == toys.digests(toys.experiment(toys.Toy(), plan=Plan(rounds=1)))


def test_executors_agree_on_convolutions():
    def digests(**how):
        return toys.digests(
            toys.experiment(
                FedAvg(), toys.image_federation(), plan=Plan(rounds=2), network="lenet", **how
            )
        )

    assert digests() == digests(executor="processes", workers=2)


def test_a_dead_worker_is_replaced_and_its_work_repeated(tmp_path):
    plan = Plan(rounds=2)
    expected = toys.digests(toys.experiment(toys.Toy(), plan=plan))
    faulty = toys.Faulty(how="die once", marker=str(tmp_path / "died"))
    assert toys.digests(toys.experiment(faulty, plan=plan, executor="processes")) == expected
    assert (tmp_path / "died").exists()


def test_work_that_kills_every_worker_is_given_up():
    with pytest.raises(WorkerError, match=r"died 3 times at the same work \(clients .*client-2"):
        toys.result(toys.experiment(toys.Faulty(how="die"), executor="processes"))


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_failing_step_names_client_stage_step_and_round(executor):
    with pytest.raises(ClientStepError) as error:
        toys.result(toys.experiment(toys.Faulty(), executor=executor))
    assert (
        str(error.value)
        == "client 'client-2', stage 'train', step 'train', round 2: ValueError: bad luck"
    )
    assert "bad luck" in repr(error.value.__cause__)


def test_memos_are_computed_once_per_client_and_publication(tmp_path):
    """Counted in a file, as the work is done in other processes."""
    log = tmp_path / "log"
    made = toys.experiment(
        Counting(log=str(log)), plan=Plan(rounds=4), executor="processes", workers=2
    )
    toys.result(made)
    assert sorted(log.read_text().split()) == sorted(made.federation.participants)


def running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_killed_parent(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
        import toys
        from concordfl.algorithms import FedAvg
        from concordfl.engine.plan import Plan
        made = toys.experiment(FedAvg(), plan=Plan(rounds=100000), executor="processes")
        print(*(worker.process.pid for worker in made.executor._workers), flush=True)
        made.run(made.start())
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        servers = {parent_of(pid) for pid in workers}
        time.sleep(0.5)
        parent.send_signal(signal.SIGKILL)
    assert len(servers) == 1
    assert parent.pid not in servers
    deadline = time.monotonic() + 20
    while any(map(running, {*workers, *servers})) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(running, {*workers, *servers}))


def parent_of(pid):
    return int(status_of(pid)["PPid"])


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines)


@dataclass(frozen=True)
class Telling(toys.Toy):
    """Tells what a worker finds around itself."""

    @client_step
    def train(self, client, state, message):
        print("said", os.environ.get("CONCORDFL_TOLD"), os.getpid(), flush=True)
        print("complained", file=sys.stderr, flush=True)
        return super().train(client, state, message)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are not forked")
@pytest.mark.parametrize("told", ["one", "another"])
def test_forked_workers_are_in_the_surroundings_of_their_run(capfd, monkeypatch, told):
    """Not in those of the server, which began before: the second time at the latest."""
    monkeypatch.setenv("CONCORDFL_TOLD", told)
    made = toys.experiment(Telling(), plan=Plan(rounds=1), executor="processes")
    workers = {worker.process.pid for worker in made.executor._workers}
    [server] = {parent_of(pid) for pid in workers}
    toys.result(made)
    said, complained = capfd.readouterr()
    lines = [line.split() for line in said.splitlines()]
    assert {(line[0], line[1]) for line in lines} == {("said", told)}
    assert {int(line[2]) for line in lines} <= workers
    assert set(complained.splitlines()) == {"complained"}
    assert server != os.getpid()
    assert status_of(server)["Threads"] == "1"  # a fork has the thread alone that asked for it


@pytest.mark.skipif(sys.platform != "linux", reason="workers are not forked")
def test_the_fork_server_imports_nothing_from_the_folder_it_is_started_in(tmp_path):
    for name in ("torch", "random", "concordfl"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger')")
    script = tmp_path / "scripts" / "script.py"
    script.parent.mkdir()
    script.write_text(
        textwrap.dedent("""
        import toys
        from concordfl.engine.plan import Plan
        print(*toys.digests(toys.experiment(toys.Toy(), plan=Plan(rounds=2), executor="processes")))
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, env=environment
    )
    assert done.stderr == ""
    expected = toys.digests(toys.experiment(toys.Toy(), plan=Plan(rounds=2)))
    assert done.stdout.split() == [str(part) for part in expected]


def test_a_broadcast_larger_than_the_last_one_arrives():
    """The shared board grows while workers are up."""
    made = toys.experiment(Growing(), plan=Plan(rounds=5), executor="processes")
    progress = made.run(made.start())
    made.executor.close()
    assert len(progress.server["big"]) == 10**5


@dataclass(frozen=True)
class Columns(FedAvg):
    """Keeps eigenvectors, which come column by column in memory: sums along rows depend on that."""

    def init_server(self, task, seed):
        return {
            "params": task.model.init(seed),
            "vectors": torch.linalg.eigh(torch.rand(40, 40).T.float() + torch.eye(40))[1],
        }

    @client_step
    def train(self, client, state, message):
        sums = message["vectors"].sum(0)
        return {"seen": sums}, {"sum": Total(sums + client.size)}

    def round(self, server, cohort):
        total = cohort.sum(self.train, broadcast=server)["sum"]
        matrix = torch.outer(total, total) + torch.diag(torch.arange(40.0))
        return {**server, "vectors": torch.linalg.eigh(matrix)[1]}

    def message(self, server, client_id):
        return server["params"]


def test_memory_layout_changes_no_bit(tmp_path):
    def start():
        torch.manual_seed(0)

    start()
    plan = Plan(rounds=4, checkpoint_seconds=0)
    serial = toys.digests(toys.experiment(Columns(), plan=plan))
    start()
    assert toys.digests(toys.experiment(Columns(), plan=plan, executor="processes")) == serial
    start()
    with RunFolder.create(tmp_path / "run", "") as folder:
        made = toys.experiment(Columns(), plan=plan, folder=folder)
        made.observe = lambda event: (_ for _ in ()).throw(KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            made.run(made.restore())
        assert toys.digests(toys.experiment(Columns(), plan=plan, folder=folder)) == serial


@dataclass(frozen=True)
class Numpy(FedAvg):
    def inspect(self, client, state, message):
        return {"group": np.int64(3)}


@pytest.mark.parametrize("executor", ["serial", "processes"])
def test_a_reply_that_is_no_tree_is_refused_by_name(executor):
    with pytest.raises(
        ClientStepError,
        match=r"client 'client-\d', stage 'train', step 'evaluate', .*leaves must be .* got int64",
    ):
        toys.result(toys.experiment(Numpy(), executor=executor))


def test_an_executor_is_of_use_after_a_step_has_failed(tmp_path):
    faulty = toys.Faulty(how="raise once", marker=str(tmp_path / "raised"))
    made = toys.experiment(faulty, executor="processes")
    with pytest.raises(ClientStepError):
        made.run(made.start())
    made.executor.discard()
    made.executor.states.load(tmp_path, {"segments": []})
    made.run(made.start())
    digest = made.executor.states_digest()
    made.executor.close()
    expected = toys.experiment(toys.Toy())
    expected.run(expected.start())
    assert digest == expected.executor.states_digest()


def test_stopping_in_the_middle_of_a_message_leaves_no_traceback(capfd):
    """Ctrl-C may come while a worker is being told something: what comes next is no frame of it."""
    made = toys.experiment(toys.Toy(), executor="processes")
    made.run(made.start())
    worker, *_ = made.executor._workers
    worker.pipe.send_bytes(b"order")  # its frame never comes
    worker.is_listening = False
    made.executor.close()
    assert not worker.process.is_alive()
    assert capfd.readouterr().err == ""
