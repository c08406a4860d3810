"""A run that is killed and resumed gives the same bits as a straight one."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

import toys
from concordfl.engine.plan import Plan

PLAN = Plan(
    rounds=60, cohort=4, evaluate_every=7, checkpoint_seconds=0, client_states="memory", dropout=0.1
)

SCRIPT = """
import os, signal, sys
from pathlib import Path
from dataclasses import replace
import test_kill, toys
from concordfl.engine.records import RunFolder

folder, states, executor, fault = sys.argv[1:]
path = Path(folder)
if fault == "checkpoint":
    # Die in the middle of the seventh file that is written: half of it has its temporary name.
    from concordfl.engine import files
    written, real = [], os.fsync
    def fsync(handle):
        written.append(handle)
        if len(written) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        real(handle)
    files.os.fsync = fsync
if fault == "between steps":
    from concordfl.engine.executors import Serial
    orders, perform = [], Serial.perform
    def dying(self, order):
        outcome = perform(self, order)
        orders.append(order)
        if len(orders) >= 12 and order.step == "count":
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome
    Serial.perform = dying
plan = replace(test_kill.PLAN, client_states=states)
with RunFolder(path) if path.exists() else RunFolder.create(path, "") as run_folder:
    made = toys.experiment(toys.Toy(), plan=plan, executor=executor, folder=run_folder)
    print("started", flush=True)
    print(*toys.digests(made), flush=True)
"""


@pytest.fixture(scope="module")
def expected():
    return toys.digests(toys.experiment(toys.Toy(), plan=PLAN))


def start(tmp_path, states="memory", executor="serial", fault="none"):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    paths = os.pathsep.join([str(Path(toys.__file__).parent), str(Path(__file__).parent)])
    command = [sys.executable, str(script), str(tmp_path / "run"), states, executor, fault]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths}
    )


def finish(process):
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return tuple(out.split()[1:])


@pytest.mark.parametrize(("states", "executor"), [("memory", "processes"), ("disk", "serial")])
def test_killed_at_ten_random_moments(tmp_path, expected, states, executor):
    rng = random.Random(states)
    kills = 0
    while kills < 10:
        process = start(tmp_path, states, executor)
        assert process.stdout.readline() == "started\n"
        time.sleep(rng.uniform(0, 0.25))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        kills += 1
    assert finish(start(tmp_path, states, executor)) == expected
    assert kills >= 5, "the run was too short to be killed"


@pytest.mark.parametrize("states", ["memory", "disk"])
@pytest.mark.parametrize("fault", ["checkpoint", "between steps"])
def test_killed_at_the_worst_moments(tmp_path, expected, states, fault):
    for _ in range(2):
        process = start(tmp_path, states, fault=fault)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    assert finish(start(tmp_path, states)) == expected
