"""Benchmarks: what is timed is what it says, and what they leave is complete or not there."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from command import concordfl
from concordfl import assemble
from concordfl.algorithms import ALGORITHMS
from concordfl.bench import methods, peers, scale, speed, venvs, workload
from concordfl.bench.bare import BareLoop, BareLoops
from concordfl.bench.children import (
    Marks,
    last_words,
    own_environment,
    own_program,
    run_program,
    time_program,
)
from concordfl.bench.engine_rounds import engine_rounds
from concordfl.bench.findings import Findings, FindingsTable, bars
from concordfl.bench.turns import NUM_WARM_UPS, Timing, busy_warning, ratio, take_turns
from concordfl.bench.venvs import FLOWER, PFL, Skipped
from concordfl.bench.workload import MANY_CLIENTS, MANY_IMAGES, Workload
from concordfl.federate.services import ServiceError, alive, descendants
from concordfl.papers.estimate import times_fedavg_by_stage

SMALL = Workload("small", clients=4, examples=6, cohort=4, batch_size=8)
# Plays no rounds, but says so as a program does.
FAKE = """
import sys, time
_, workload, rounds, marks = sys.argv
with open(marks, "a") as file:
    for round in range(int(rounds)):
        time.sleep(0.01)
        file.write(f"{time.time()}\\n")
"""


@pytest.fixture(autouse=True)
def no_dataset(tmp_path, monkeypatch):
    """Random images, whatever data this machine has."""
    folders = [tmp_path / "no data"]
    monkeypatch.setattr("concordfl.data.dataset.data_folders", lambda name: folders)
    workload.images.cache_clear()
    yield
    workload.images.cache_clear()


# --- the work -------------------------------------------------------------------------------------


def test_the_bare_loop_does_what_the_engine_does():
    """With one batch per client their order is nothing, and a round is the same arithmetic."""
    settings = workload.make_config(SMALL, 2)
    with engine_rounds(settings, assemble.make_federation(settings), "serial") as played:
        loop = BareLoop(SMALL, workload.stack_clients(SMALL))
        ours = {"encoder": "0", "head": "1"}
        for name, value in played.progress.server.items():
            part, _, rest = name.partition(".")
            loop.common[f"{ours[part]}.{rest}"] = value.clone()
        for _ in range(2):
            played.play()
            loop.play()
        assert played.is_over
        for name, value in played.progress.server.items():
            part, _, rest = name.partition(".")
            torch.testing.assert_close(loop.common[f"{ours[part]}.{rest}"], value)


def test_two_bare_loops_share_the_cohort(tmp_path):
    loops = BareLoops(MANY_CLIENTS.quick(), workload.stack_clients(MANY_CLIENTS.quick()))
    loops.play()
    assert all(process.is_alive() for process in loops.processes)
    loops.close()
    assert not any(process.is_alive() for process in loops.processes)


def test_a_quick_workload_is_a_small_one_of_the_same_kind():
    for each in (MANY_IMAGES, MANY_CLIENTS):
        quick = each.quick()
        assert quick.clients * quick.examples < 2000
        assert (quick.cohort == quick.clients) == (each.cohort == each.clients)
        assert quick.batch_size == each.batch_size
        assert quick.name == f"{quick.clients} x {quick.examples}"


def test_random_images_are_said_to_be_random():
    found = workload.images(24)
    assert found.x.shape == (24, 28, 28, 1)
    assert "are random" in found.source
    x, y = workload.stack_clients(SMALL)
    assert x.shape == (4, 6, 1, 28, 28)
    assert torch.equal(x[1, 0, 0], torch.from_numpy(found.x[6, :, :, 0]) / 255)
    assert y[1].tolist() == found.y[6:12].tolist()


def test_what_is_written_for_programs_is_read_back(tmp_path):
    workload.write_workload(SMALL, tmp_path / "w.pt")
    found, clients = workload.read_workload(str(tmp_path / "w.pt"))
    assert found == SMALL
    assert torch.equal(clients.x, workload.stack_clients(SMALL).x)


# --- timing ---------------------------------------------------------------------------------------


def test_all_take_turns():
    played = []
    names = ["a", "b"]
    timings = take_turns({name: lambda name=name: played.append(name) for name in names}, 3)
    assert played == names * (NUM_WARM_UPS + 3)
    assert all(len(timing.seconds) == 3 for timing in timings.values())


def test_figures_of_repeats():
    timing = Timing((3.0, 1.0, 2.0))
    assert (timing.median, timing.low, timing.high) == (2.0, 1.0, 3.0)
    # a slow minute is in both
    assert ratio([1.0, 10.0, 1.0], [2.0, 20.0, 2.0]) == 0.5
    assert Marks((5.0, 6.0, 8.0)).later == (1.0, 2.0)


def test_other_work_on_the_machine_is_said(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (50.0, 0.0, 0.0))
    assert "busy (load 50.0" in busy_warning()
    monkeypatch.setattr(os, "getloadavg", lambda: (0.1, 50.0, 50.0))
    assert busy_warning() is None


# --- speed and methods ----------------------------------------------------------------------------


def test_speed_of_a_workload():
    timings = speed._time_workload(MANY_CLIENTS.quick(), 1, lambda _: None)
    table = speed._workload_table(MANY_CLIENTS.quick(), timings)
    rows = {row[0]: row for row in table.rows}
    assert list(rows) == ["bare loop", "serial", "two bare loops", "processes, two workers"]
    assert rows["bare loop"][-1] is None
    assert rows["serial"][-1] == pytest.approx(
        timings["bare loop"].median / timings["serial"].median, abs=1e-4
    )


def test_the_phases_of_a_start_add_up():
    phases = speed._phases(Path("experiments/demo.toml").absolute(), "serial")
    total = phases.pop("total")
    assert sum(phases.values()) == pytest.approx(total)
    assert list(phases)[:3] == ["interpreter", "import torch", "import the rest"]


def test_every_method_claims_a_cost_that_can_be_compared():
    for name, kind in ALGORITHMS.items():
        assert all(claim >= 0 for claim in times_fedavg_by_stage(kind())), name
    assert times_fedavg_by_stage(ALGORITHMS["fedem"](num_models=5))[0] >= 5
    assert times_fedavg_by_stage(ALGORITHMS["fedconcat"]()) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("measured", "claimed", "is_far"),
    [(1.1, 1.0, False), (2.0, 1.0, True), (1.0, 2.0, True), (0.1, 0.0, False), (0.5, 0.0, True)],
)
def test_a_claim_that_is_far_off_is_flagged(measured, claimed, is_far):
    assert (methods.remark(measured, claimed) == methods.FAR) == is_far


def test_methods_beside_fedavg(tmp_path, monkeypatch):
    chosen = {name: ALGORITHMS[name] for name in ("fedavg", "fedconcat", "fedem", "local")}
    monkeypatch.setattr(methods, "ALGORITHMS", chosen)
    monkeypatch.setattr(methods, "WORKLOAD", SMALL)
    done = concordfl(tmp_path, "bench", "methods", "--quick", "--repeats", "1", "--out", "found")
    assert done.returncode == 0, done.stderr
    assert "Images are random" in done.stdout
    found = json.loads((tmp_path / "found/methods.json").read_text())
    (table,) = found["tables"]
    rows = {tuple(row[:2]): dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}
    sent = {key: row["bytes, times FedAvg's"] for key, row in rows.items()}
    assert sent["fedavg", "train"] == 1
    assert sent["local", "train"] == 0
    assert sent["fedem", "train"] == pytest.approx(3, abs=0.1)  # three models
    assert sent["fedconcat", "head"] < 0.5
    assert found["repeats"] == 1
    assert found["machine"]["torch"] == torch.__version__
    csv_lines = (tmp_path / "found/methods.csv").read_text().splitlines()
    assert csv_lines[0] == "table,row,column,value"
    assert (tmp_path / "found/methods.svg").read_bytes().startswith(b"<?xml")
    names = sorted(path.name for path in (tmp_path / "found").iterdir())
    assert names == ["methods.csv", "methods.json", "methods.svg"]


def test_scale_of_a_few_and_of_more_clients(monkeypatch):
    sizes = scale.Sizes(populations=(6, 12), cohort=4, rounds=3, files=3)
    found = scale.measure_scale(1, names=["apfl"], sizes=sizes)
    table, files = found.tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [(row["method"], row["clients"]) for row in rows] == [("apfl", 6), ("apfl", 12)]
    assert rows[0]["times the few's"] == 1
    assert all(row["MB on disk"] > 0 and row["files of checkpoints"] > 0 for row in rows)
    assert files.rows[0][0] == "3 .csv files of 20 rows"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells")
def test_memory_of_a_process():
    held = bytearray(b"1") * 50_000_000
    assert scale.memory_of(os.getpid()) > len(held)


def test_a_table_names_rows_that_differ_in_their_second_column(tmp_path):
    table = FindingsTable("t", ("who", "what", "s"), (("a", "x", 1.5), ("a", "y", None)), labels=2)
    findings = Findings("x", (table,), (), (bars("p", "s", {"": {"a": 1.5}}),), 1)
    assert findings.to_csv().splitlines() == ["table,row,column,value", "t,a x,s,1.5", "t,a y,s,"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("speed", "--repeats", "0"), "Invalid value for '--repeats'"),
        (("methods", "--out", "file"), "concordfl: --out must be a folder, got the file file"),
        (("scale", "--algorithms", "ifca"), "must be of fedavg, fedconceptem, apfl, got ifca"),
        (
            ("methods", "--algorithms", "a.b:C"),
            "must be names of concordfl's own methods, got a.b:C",
        ),
        (("nothing",), "No such command 'nothing'"),
    ],
)
def test_refused(tmp_path, arguments, message):
    (tmp_path / "file").write_text("")
    done = concordfl(tmp_path, "bench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr


# --- programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["bare_rounds", "concordfl_rounds"])
def test_our_programs_play_rounds(tmp_path, program):
    workload.write_workload(SMALL, tmp_path / "w.pt")
    marks = time_program(own_program(program), own_environment(), tmp_path / "w.pt", 2)
    assert 0 < marks.at[0] < marks.at[1]


def test_a_program_that_fails_is_one_line(tmp_path):
    with pytest.raises(ServiceError, match=r"got code 3: so it is$"):
        run_program([sys.executable, "-c", "print('so it is'); exit(3)"], {}, tmp_path)
    fake = tmp_path / "fake.py"
    fake.write_text("")
    with pytest.raises(ServiceError, match="must play 2 rounds, got 0"):
        time_program([sys.executable, str(fake)], {}, tmp_path, 2)


def test_a_bare_loop_hardly_imports_anything_when_it_begins():
    """A Ctrl-C in the middle of an import may be lost, or become another exception: torch's first
    optimizer imports 800 modules.
    """
    script = (
        "import sys; from concordfl.bench.bare import BareLoop; "
        "from concordfl.bench.workload import Workload, stack_clients; "
        "small = Workload('small', clients=4, examples=6, cohort=4, batch_size=8); "
        "clients = stack_clients(small); before = len(sys.modules); "
        "BareLoop(small, clients).play(); sys.exit(len(sys.modules) - before)"
    )
    run = subprocess.run([sys.executable, "-c", script], env={**os.environ, **own_environment()})
    assert run.returncode < 10


def test_ctrl_c_while_a_bare_loop_starts_is_not_lost(monkeypatch):
    class Interrupted:
        def __init__(self, **_):
            pass

        def start(self):
            os.kill(os.getpid(), signal.SIGINT)

    context = multiprocessing.get_context("spawn")
    monkeypatch.setattr(type(context), "Process", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        BareLoops(SMALL, workload.stack_clients(SMALL))


def test_ctrl_c_leaves_nothing_behind(tmp_path):
    folder, log = tmp_path / "folder", tmp_path / "errors"
    folder.mkdir()
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "concordfl", "bench", "speed", "--quick", "--out", "found"],
            cwd=folder,
            env={**os.environ, **own_environment(), "TMPDIR": str(folder)},
            stdout=subprocess.DEVNULL,
            stderr=errors,
        )
    try:
        while len(children := descendants([process.pid])) < 4:  # bare loops and workers
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "concordfl: stopped" in log.read_text()
    assert "Traceback" not in log.read_text()
    # The server of workers sees that it is alone when it has imported what it was told to.
    end = time.monotonic() + 60
    while left := alive(children):
        assert time.monotonic() < end, left
        time.sleep(0.05)
    assert list(folder.iterdir()) == []


# --- other libraries ------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Programs that need neither torch nor a library."""
    file = tmp_path / "fake.py"
    file.write_text(FAKE)
    monkeypatch.setattr(peers, "own_program", lambda name: [sys.executable, str(file)])
    monkeypatch.setattr(peers, "_program", lambda name: str(file))
    return file


def test_a_library_that_cannot_be_installed_is_skipped_with_the_reason(fake, tmp_path):
    def install(library, folder):
        if library is PFL:
            raise Skipped("there is no network")
        return Path(sys.executable)

    found = peers.compare_peers(2, quick=True, venvs=tmp_path, install=install)
    assert "pfl 0.6.0 is skipped: there is no network" in found.notes
    for table in found.tables:
        assert [row[0] for row in table.rows] == [
            peers.OWN,
            peers.LIMIT,
            f"{FLOWER.title}, two Ray workers",
        ]
        assert table.rows[0][-1] == 1
    assert len(found.panels) == 4
    (series,) = found.panels[0]["series"]
    assert len(series["spread"]) == len(series["y"]) == 3


def test_a_library_whose_program_fails_is_skipped_with_the_reason(fake, tmp_path, monkeypatch):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('no such thing')")
    monkeypatch.setattr(peers, "_program", lambda name: str(broken))
    entries = [entry for entry in peers.ENTRIES if entry.library is FLOWER]
    monkeypatch.setattr(peers, "ENTRIES", entries)
    python = Path(sys.executable)
    found = peers.compare_peers(1, quick=True, venvs=tmp_path, install=lambda *_: python)
    assert found.notes[0] == (
        f"{FLOWER.title}, two Ray workers is skipped: a program must end well, got code 1: no such "
        "thing"
    )
    assert len(found.tables[0].rows) == 2


def test_an_environment_is_whole_or_not_there(tmp_path, monkeypatch):
    asked = []

    def run(command, environment, folder):
        asked.append(command)
        if command[1:3] == ["-m", "venv"]:
            home = Path(command[3])
            (home / "bin").mkdir(parents=True)
            (home / "bin/python").write_text("")
        elif fails:
            raise ServiceError("a program must end well, got code 1: ERROR: no network")

    monkeypatch.setattr(venvs, "run_program", run)
    fails = True
    with pytest.raises(Skipped, match=r"pfl\[pytorch\]==0.6.0 could not be installed: ERROR: no"):
        venvs.python_of(PFL, tmp_path)
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == []
    fails = False
    python = venvs.python_of(PFL, tmp_path)
    assert python.exists()
    torch_version = torch.__version__.partition("+")[0]
    assert f"torch=={torch_version}" in asked[-1]
    count = len(asked)
    assert venvs.python_of(PFL, tmp_path) == python
    assert len(asked) == count  # it is kept


@pytest.mark.slow
def test_real_libraries_play_the_same_rounds(tmp_path):
    done = concordfl(tmp_path, "bench", "peers", "--quick", "--repeats", "1", "--out", "found")
    assert done.returncode == 0, done.stderr
    if "is skipped" in done.stdout:
        pytest.skip(next(line for line in done.stdout.splitlines() if "is skipped" in line))
    found = json.loads((tmp_path / "found/peers.json").read_text())
    for table in found["tables"]:
        assert [row[0] for row in table["rows"]][2:] == [each.title for each in peers.ENTRIES]


@pytest.mark.slow
def test_speed_as_a_command(tmp_path):
    done = concordfl(tmp_path, "bench", "speed", "--quick", "--repeats", "1", "--out", "found")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found/speed.json").read_text())
    assert len(found["tables"]) == 4


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["all is well", "the end"], "the end"),
        (["ERROR: no network", "a new release of pip is available"], "ERROR: no network"),
        # As torchrun ends, whatever a process has failed by.
        (
            ["rank1: RuntimeError: closed by peer", "ChildFailedError:", "rank : 1", "===="],
            "rank1: RuntimeError: closed by peer",
        ),
        (["", "----"], "it printed nothing"),
    ],
)
def test_of_a_log_the_line_that_says_most_is_shown(lines, words):
    assert last_words("\n".join(lines)) == words
