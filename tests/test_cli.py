"""The command line as a person uses it."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
[run]
rounds = 4
evaluate_every = 2

[data]
name = "digits"
limit = 300

[scenario]
clients = 4
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "run.toml").write_text(RUN)
    return tmp_path


def concordfl(folder, *arguments):
    command = [sys.executable, "-m", "concordfl", *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, env={**os.environ, "COLUMNS": "120"}
    )


def test_run_and_resume(folder):
    done = concordfl(
        folder, "run", "run.toml", "--out", "out", "--seed", "3", "--set", "algorithm.name=fedprox", "--executor", "serial"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fedprox: round 2/4  local ")
    assert "fedprox, seed 3" in done.stdout
    assert "Results are in out" in done.stdout
    assert 'name = "fedprox"' in (folder / "out/config.toml").read_text()
    again = concordfl(folder, "resume", "out")
    assert again.returncode == 0
    assert again.stdout.splitlines()[-1] == "Results are in out"
    refused = concordfl(folder, "run", "run.toml", "--out", "out")
    assert refused.returncode == 2
    assert refused.stderr.startswith("concordfl: the output folder must be new or empty")


def test_the_default_folder_is_always_new(folder):
    for expected in ("runs/run-fedavg-seed0", "runs/run-fedavg-seed0-2"):
        assert concordfl(folder, "run", "run.toml").stdout.splitlines()[-1] == f"Results are in {expected}"


def test_compare_reuses_what_is_finished(folder):
    command = ("compare", "run.toml", "--algorithms", "local,fedavg", "--seeds", "2", "--out", "cmp")
    first = concordfl(folder, *command)
    assert first.returncode == 0, first.stderr
    assert "±" in first.stdout
    second = concordfl(folder, *command)
    assert "round" not in second.stdout.split("run, 2 seeds")[0]
    assert second.stdout[second.stdout.index("run, 2 seeds") :] == first.stdout[first.stdout.index("run, 2 seeds") :]
    assert len(list((folder / "cmp").iterdir())) == 4


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "models", "scenarios"])
def test_list(folder, kind):
    done = concordfl(folder, "list", kind)
    assert done.returncode == 0
    assert {"algorithms": "fedavg-ft", "datasets": "digits", "models": "lenet", "scenarios": "shift label-map"}[
        kind
    ] in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "none.toml"), "concordfl: the run file must exist, got none.toml"),
        (("run", "run.toml", "--set", "training.lr=-1"), "concordfl: training.lr must be > 0, got -1"),
        (("run", "run.toml", "--set", "scenario.clients=301"), "concordfl: scenario.clients must be <= 300"),
        (("run", "run.toml", "--set", "run.cohort=5"), "concordfl: run.cohort must be <= 4, the number of clients, got 5"),
        (("run", "run.toml", "--executor", "cloud"), "concordfl: run.executor must be one of"),
        (
            ("compare", "run.toml", "--algorithms", "fedaverage"),
            "concordfl: --algorithms must be known names, got 'fedaverage'",
        ),
        (("resume", "nowhere"), "concordfl: a run directory must hold config.toml, got nowhere without one"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder, arguments, message):
    done = concordfl(folder, *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert len(done.stderr.splitlines()) == 1


def test_wrong_usage_shows_the_usage(folder):
    done = concordfl(folder, "run", "--nonsense")
    assert done.returncode == 2
    assert "Usage:" in done.stderr
    assert concordfl(folder, "--help").returncode == 0


def heed_interrupts():
    """Whoever runs the tests in the background may have had interrupts ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_stops_and_resume_goes_on(folder):
    expected = concordfl(folder, "run", "run.toml", "--set", "run.rounds=400", "--out", "straight")
    assert expected.returncode == 0
    command = [
        sys.executable,
        "-m",
        "concordfl",
        "run",
        "run.toml",
        "--set",
        "run.rounds=400",
        "--set",
        "run.checkpoint_seconds=0",
        "--out",
        "out",
    ]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "concordfl: stopped; `concordfl resume out` goes on from the last checkpoint\n"
    assert not (folder / "out/summary.json").exists()
    assert concordfl(folder, "resume", "out").returncode == 0
    assert (folder / "out/models/final.safetensors").read_bytes() == (folder / "straight/models/final.safetensors").read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_progress_bar_on_a_terminal(folder):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "concordfl", "run", "run.toml", "--set", "run.rounds=100", "--out", "out"]
    with subprocess.Popen(command, cwd=folder, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    assert "━".encode() in shown
    assert b"/100" in shown


def test_python_m_and_the_command_are_the_same(folder):
    command = Path(sys.executable).with_name("concordfl")
    done = subprocess.run(
        [command, "list", "models"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, "COLUMNS": "120"},
    )
    assert done.stdout == concordfl(folder, "list", "models").stdout
