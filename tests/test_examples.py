"""The examples run, and say what they promise."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples"


def printed(name, folder):
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_five_lines(tmp_path):
    accuracies = {
        line.split(":")[0]: float(line.split()[1].rstrip("%"))
        for line in printed("five_lines.py", tmp_path).splitlines()
    }
    assert set(accuracies) == {"fedavg", "fedprox"}
    assert min(accuracies.values()) > 50  # chance is 10


def test_encoders_side_by_side_tell_more_than_their_average(tmp_path):
    """Table 7 of the FedConcat paper: by far the least classification loss."""
    losses = {
        name: float(loss)
        for name, loss in map(str.split, printed("concatenate.py", tmp_path).splitlines())
    }
    assert losses["both"] < losses["average"] < min(losses["first"], losses["second"])
