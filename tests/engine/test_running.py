"""What a run shows of itself while it runs: that it does, and how far it is."""

import fcntl
import json
import os
import signal
import subprocess
import sys

import pytest

import toys
from concordfl.algorithms import ALGORITHMS
from concordfl.engine import experiment as loop
from concordfl.engine.plan import Plan
from concordfl.engine.records import RunFolder
from concordfl.engine.running import RUNNING_FILE, is_running


def look(path):
    """A watcher that holds its look, as one that is suspended in that very instant."""
    handle = os.open(path / RUNNING_FILE, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return handle


def play(path, plan=None, method=None):
    with RunFolder.create(path, "") as folder:
        made = toys.experiment(method or toys.Toy(), plan=plan or Plan(rounds=3), folder=folder)
        digests = toys.digests(made)
        return made, folder, digests


def test_the_sign_is_there_as_long_as_the_folder_is_held(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        assert not is_running(folder.path)
        folder.show_running()
        assert is_running(folder.path)
    assert not is_running(folder.path)
    assert not is_running(tmp_path / "nothing")


def test_the_sign_ends_with_a_killed_process(tmp_path):
    script = """
import sys, time
from pathlib import Path
from concordfl.engine.records import RunFolder
with RunFolder.create(Path(sys.argv[1]), "") as folder:
    folder.show_running()
    print("shown", flush=True)
    time.sleep(600)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "shown\n"
    assert is_running(tmp_path / "run")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not is_running(tmp_path / "run")


def test_a_look_never_hinders_a_run_and_lookers_do_not_see_each_other(tmp_path):
    _, folder, expected = play(tmp_path / "run")
    handle = look(folder.path)
    assert not is_running(folder.path)
    with RunFolder(folder.path) as again:  # begins while somebody looks, and goes on
        again.show_running()
        assert not is_running(folder.path)
        made = toys.experiment(toys.Toy(), plan=Plan(rounds=3), folder=again)
        made.run(made.restore())
        assert toys.digests(made) == expected
        os.close(handle)
        again.write_progress({"round": 1, "rounds": 3, "stage": "train", "seconds": 0.0})
        assert is_running(folder.path)  # it has tried again


def test_progress_is_told_at_both_ends_and_at_most_so_often(tmp_path, monkeypatch):
    told = []
    write = RunFolder.write_progress
    monkeypatch.setattr(
        RunFolder, "write_progress", lambda self, facts: (told.append(facts), write(self, facts))
    )
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_PROGRESS", 1e9)
    _, folder, _ = play(tmp_path / "run", Plan(rounds=5), ALGORITHMS["fedavg"]())
    assert [facts["round"] for facts in told] == [0, 5]
    assert folder.read_progress() == told[-1]
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_PROGRESS", 0.0)
    told.clear()
    play(tmp_path / "often", Plan(rounds=5), ALGORITHMS["fedavg"]())
    assert [facts["round"] for facts in told] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("name", "further"), [("fedavg", 0), ("fesem", 1)])
def test_all_stages_are_counted(tmp_path, name, further):
    made, folder, _ = play(tmp_path / "run", Plan(rounds=4), ALGORITHMS[name]())
    facts = folder.read_progress()
    assert facts["rounds"] == len(made.turns) == 4 + further
    assert facts["round"] == facts["rounds"]
    assert facts["stage"] == "train"


def test_a_run_does_without_its_progress_file(tmp_path):
    _, _, expected = play(tmp_path / "run")
    (tmp_path / "other").mkdir()
    with RunFolder.create(tmp_path / "other", "") as folder:
        (folder.path / "progress.json").mkdir()
        (folder.path / RUNNING_FILE).mkdir()
        made = toys.experiment(toys.Toy(), plan=Plan(rounds=3), folder=folder)
        assert toys.digests(made) == expected


def test_a_start_that_was_killed_before_its_first_round_can_be_begun_anew(tmp_path):
    with RunFolder.create(tmp_path / "run", "x = 1") as folder:
        folder.write_progress({"round": 0, "rounds": 3, "stage": "train", "seconds": 0.0})
    with RunFolder.create(tmp_path / "run", "x = 2") as folder:
        assert folder.read_progress() is None


def test_progress_is_sealed(tmp_path):
    _, folder, _ = play(tmp_path / "run")
    content = json.loads((folder.path / "progress.json").read_text())
    assert content["format"] == 1
    assert len(content["sha256"]) == 64
