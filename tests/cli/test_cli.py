"""The command line as a person uses it."""

import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from command import concordfl
from concordfl import DataError, Key
from concordfl.cli.on_call import COMMANDS, load
from concordfl.cli.preview import preview
from concordfl.data.datasets import DATASETS
from concordfl.runner import load_config

TESTS = Path(__file__).parents[1]
PATHS = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
ENVIRONMENT = {**os.environ, "COLUMNS": "120", "PYTHONPATH": PATHS}

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


def in_a_process(folder, *arguments, **environment):
    """The real command, with further variables in its environment."""
    return subprocess.run(
        [sys.executable, "-m", "concordfl", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT | environment,
    )


def test_run_and_resume(folder):
    done = concordfl(
        folder,
        "run",
        "run.toml",
        "--out",
        "out",
        "--seed",
        "3",
        "--set",
        "algorithm.name=fedprox",
        "--executor",
        "serial",
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("fedprox: round 2/4  participants ")
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
        assert (
            concordfl(folder, "run", "run.toml").stdout.splitlines()[-1]
            == f"Results are in {expected}"
        )


def test_compare_reuses_what_is_finished(folder):
    command = (
        "compare",
        "run.toml",
        "--algorithms",
        "local,fedavg",
        "--seeds",
        "2",
        "--out",
        "cmp",
    )
    first = concordfl(folder, *command)
    assert first.returncode == 0, first.stderr
    assert "±" in first.stdout
    second = concordfl(folder, *command)
    assert "round" not in second.stdout.split("run, 2 seeds")[0]
    assert (
        second.stdout[second.stdout.index("run, 2 seeds") :]
        == first.stdout[first.stdout.index("run, 2 seeds") :]
    )
    assert sum(path.is_dir() for path in (folder / "cmp").iterdir()) == 4
    assert (folder / "cmp/report.html").is_file()


def test_compare_values_of_a_setting(folder):
    command = (
        "compare",
        "run.toml",
        "--algorithms",
        "fedavg",
        "--vary",
        "training.lr=0.01,0.1",
        "--set",
        "run.rounds=2",
    )
    done = concordfl(folder, *command, "--over-clients", "--curve", "curve.svg")
    assert done.returncode == 0, done.stderr
    rows = [
        line.split("│")[1:4] for line in done.stdout.splitlines() if "lr = " in line and "│" in line
    ]
    names = ["fedavg, lr = 0.01", "fedavg, lr = 0.1"]
    assert [[cell.strip() for cell in row[:2]] for row in rows] == [
        [clients, name] for clients in ("participants", "newcomers") for name in names
    ]
    assert all("±" in row[2] for row in rows)
    picture = (folder / "curve.svg").read_text()
    assert "<svg" in picture
    assert "Accuracy against bytes is in curve.svg" in done.stdout


def test_a_setting_without_a_named_method_is_of_those_that_have_it(folder):
    done = concordfl(
        folder, "compare", "run.toml", "--algorithms", "fedavg,fedprox", "--out", "cmp",
        "--set", "algorithm.mu=0.5", "--set", "run.rounds=1", "--device", "cpu",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (settings,) = (folder / "cmp").glob("fedprox-*/config.toml")
    assert "mu = 0.5" in settings.read_text()


def test_a_run_says_that_it_stopped_early(folder):
    patience = ("--set", "run.patience=1", "--set", "run.rounds=60", "--executor", "serial")
    done = concordfl(folder, "run", "run.toml", *patience, "--out", "out")
    assert done.returncode == 0, done.stderr
    summary = json.loads((folder / "out/summary.json").read_text())
    best = summary["selected"]["round"]
    assert summary["rounds"] == best + 2 < 60
    said = f"Stopped early, after round {best + 2}: round {best} was the best on validation data"
    assert said in done.stdout.splitlines()


def test_one_of_the_compared_methods_can_be_run(folder):
    with open(folder / "run.toml", "a") as file:
        file.write("[compare.ditto]\npenalty = 7.0\n[compare.ditto.training]\nlr = 0.5\n")
    shown = concordfl(folder, "run", "run.toml", "--algorithm", "ditto", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert all(text in shown.stdout for text in ('name = "ditto"', "penalty = 7.0", "lr = 0.5"))
    given = ("--set", "training.lr=0.25", "--dry-run")
    shown = concordfl(folder, "run", "run.toml", "--algorithm", "ditto", *given)
    assert "lr = 0.25" in shown.stdout
    refused = concordfl(folder, "run", "run.toml", "--algorithm", "dito")
    assert refused.stderr.startswith("concordfl: --algorithm must be a known name, got 'dito'")


def test_the_version_is_told(folder):
    done = concordfl(folder, "--version")
    assert (done.returncode, done.stdout) == (0, f"concordfl {version('concordfl')}\n")


def test_a_method_without_labels_shows_its_progress(folder):
    without = (
        "--set",
        "algorithm.name=fedgmm-unsupervised",
        "--set",
        "scenario.hold_out=0.25",
        "--set",
        "run.rounds=2",
    )
    done = concordfl(folder, "run", "run.toml", *without)
    assert done.returncode == 0, done.stderr
    assert "participants " in done.stdout


@pytest.mark.parametrize("kind", ["algorithms", "datasets", "models", "scenarios"])
def test_list(folder, kind):
    done = concordfl(folder, "list", kind)
    assert done.returncode == 0
    assert {
        "algorithms": "fedavg-ft",
        "datasets": "digits",
        "models": "lenet",
        "scenarios": "shift label-map",
    }[kind] in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "none.toml"), "concordfl: the run file must exist, got none.toml"),
        (
            ("run", "run.toml", "--set", "training.lr=-1"),
            "concordfl: training.lr must be > 0, got -1",
        ),
        (
            ("run", "run.toml", "--set", "scenario.clients=301"),
            "concordfl: scenario.clients must be <= 300",
        ),
        (
            ("run", "run.toml", "--set", "run.cohort=5"),
            "concordfl: run.cohort must be <= 4, the number of clients, got 5",
        ),
        (("run", "run.toml", "--executor", "cloud"), "concordfl: run.executor must be one of"),
        (
            ("compare", "run.toml", "--algorithms", "fedaverage"),
            "concordfl: --algorithms must be known names, got 'fedaverage'",
        ),
        (
            ("compare", "run.toml", "--algorithms", "fedavg", "--vary", "algorithm.mu=1,2"),
            "concordfl: --vary must change one of the methods fedavg, got 'algorithm.mu=1,2'",
        ),
        (
            ("compare", "run.toml", "--algorithms", "fedavg", "--set", "compare.ditto.penalty=1"),
            "concordfl: --set must change one of the methods fedavg, got 'compare.ditto.penalty=1'",
        ),
        (
            ("run", "run.toml", "--set", "compare.ditto.penalty=1"),
            "concordfl: --set must be about the method that is run, whose settings are algorithm",
        ),
        (
            ("run", "run.toml", "--set", "algorithm.mu=1"),
            "concordfl: [algorithm] must name the method that its settings are of, got 'mu'",
        ),
        (("run", "run.toml", "--device", "tpu"), "concordfl: run.device must be one of"),
        (
            ("compare", "run.toml", "--algorithms", "fedavg", "--curve", "nowhere/curve.svg"),
            "concordfl: a picture must be a file in a folder that exists, got nowhere/curve.svg",
        ),
        (
            ("compare", "run.toml", "--algorithms", "fedavg", "--out", "run.toml"),
            "concordfl: the output folder must lie in a folder, got run.toml/fedavg-seed0",
        ),
        (
            ("resume", "nowhere"),
            "concordfl: a run directory must hold config.toml, got nowhere without one",
        ),
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


@pytest.mark.parametrize("name", COMMANDS)
def test_the_line_of_a_command_is_the_beginning_of_its_help(name):
    own = " ".join(load(name).help.split())
    assert own.startswith(COMMANDS[name].help.removesuffix("."))


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("rum",)])
def test_what_needs_no_torch_does_not_wait_for_it(folder, arguments):
    script = """
    import atexit, sys
    from concordfl.cli import main
    atexit.register(lambda: print("torch" in sys.modules))
    main()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.stdout.splitlines()[-1] == "False"
    assert arguments != ("rum",) or "Did you mean 'run'" in done.stderr


def heed_interrupts():
    """Whoever runs the tests in the background may have had interrupts ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_ctrl_c_stops_and_resume_goes_on(folder):
    expected = concordfl(folder, "run", "run.toml", "--set", "run.rounds=200", "--out", "straight")
    assert expected.returncode == 0
    command = [
        sys.executable,
        "-m",
        "concordfl",
        "run",
        "run.toml",
        "--set",
        "run.rounds=200",
        "--set",
        "run.checkpoint_seconds=0",
        "--out",
        "out",
    ]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "concordfl: stopped; `concordfl resume out` goes on from the last checkpoint\n"
    assert not (folder / "out/summary.json").exists()
    assert concordfl(folder, "resume", "out").returncode == 0
    assert (folder / "out/models/final.safetensors").read_bytes() == (
        folder / "straight/models/final.safetensors"
    ).read_bytes()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_progress_bar_on_a_terminal(folder):
    ours, theirs = pty.openpty()
    command = [
        sys.executable,
        "-m",
        "concordfl",
        "run",
        "run.toml",
        "--set",
        "run.rounds=30",
        "--out",
        "out",
    ]
    environment = {**ENVIRONMENT, "TERM": "xterm"}
    with subprocess.Popen(
        command, cwd=folder, stdout=theirs, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                shown += os.read(ours, 4096)
            except OSError:
                break
    os.close(ours)
    assert process.returncode == 0
    assert "━".encode() in shown
    assert b"/30" in shown


def test_python_m_and_the_command_are_the_same(folder):
    command = Path(sys.executable).with_name("concordfl")
    done = subprocess.run(
        [command, "list", "models"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=ENVIRONMENT,
    )
    assert done.stdout == in_a_process(folder, "list", "models").stdout


def test_dry_run_shows_what_would_be_run(folder):
    done = concordfl(folder, "run", "run.toml", "--dry-run", "--set", "algorithm.name=fedprox")
    assert done.returncode == 0, done.stderr
    assert "mu = 0.01" in done.stdout
    assert "4 clients, 1 held out" in done.stdout
    assert "mlp: 4,810 parameters" in done.stdout
    assert (
        "stage 'train': 77.0 kB down and 77.0 kB up in a round" in done.stdout
    )  # 4 clients x 4,810 x 4 bytes
    assert not (folder / "runs").exists()


EXPERIMENTS = sorted(
    file
    for file in (TESTS.parent / "experiments").rglob("*.toml")
    if file.name != "reproduce.toml"  # entries, which tests/papers looks at
)


def shortened(settings):
    rounds = {key: value for key, value in vars(settings.algorithm).items() if "_rounds" in key}
    few = {key: min(value, 2) for key, value in rounds.items() if value is not None}
    return replace(settings, algorithm=replace(settings.algorithm, **few))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_dry_run_of_every_experiment(path):
    """With two rounds of a stage that has more: a preview plays the preparing ones."""
    settings = load_config(path)
    try:
        settings.data.load(Key(0))
    except DataError as error:
        pytest.skip(f"the data are not here: {error}")
    shown = [str(part) for part in preview(shortened(settings))]
    assert any("parameters" in part for part in shown)
    assert shown[-1].startswith("stage ")


def test_adapt_lets_a_new_client_join(folder):
    for name in ("fedavg", "fedavg-ft", "local"):
        assert (
            concordfl(
                folder, "run", "run.toml", "--set", f"algorithm.name={name}", "--out", name
            ).returncode
            == 0
        )
    data = DATASETS["digits"]().load(Key(1))
    np.savez(folder / "clinic.npz", x=data.test.x, y=data.test.y)
    before = snapshot(folder / "fedavg-ft")
    answers = []
    for _ in range(2):
        done = concordfl(folder, "adapt", "fedavg-ft", "--data", "clinic.npz")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("clinic: adapted: its own copy of the model\n")
        assert "on 182 examples, after adapting to 182 others; what is kept" in done.stdout
        answers.append((folder / "fedavg-ft/adapted/clinic.json").read_text())
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["adapted_on"] == 182
    after = snapshot(folder / "fedavg-ft")
    assert {name: after[name] for name in before} == before
    assert set(after) - set(before) == {"adapted/clinic.json", "adapted/clinic.safetensors"}
    refused = concordfl(folder, "adapt", "local", "--data", "clinic.npz")
    assert refused.returncode == 2
    assert (
        "adapt needs a method that has a rule for new clients, got 'local': such methods are "
        in refused.stderr
    )
    np.savez(folder / "odd.npz", x=data.test.x[:, :4], y=data.test.y)
    assert (
        "examples must have the shape [1, 8, 8], got [1, 4, 8]"
        in concordfl(folder, "adapt", "fedavg", "--data", "odd.npz").stderr
    )
    np.savez(folder / "odd.npz", x=data.test.x, y=data.test.y + 5)
    assert (
        "labels must be among 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, got 10, 11"
        in concordfl(folder, "adapt", "fedavg", "--data", "odd.npz").stderr
    )


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_data_list_and_get(folder):
    listed = concordfl(folder, "data", "list")
    assert listed.returncode == 0
    assert "digits" in listed.stdout
    refused = concordfl(folder, "data", "get", "digits")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        "concordfl: the data set must have a home to fetch from, got 'digits'"
    )
    refused = concordfl(folder, "data", "get", "mnits")
    assert (
        refused.stderr
        == "concordfl: the data set must be a known name, got 'mnits': did you mean 'mnist'?\n"
    )


CLIENT = "a,b,y\n1,2,0\n2,3,1\n3,4,0\n4,5,1\n5,6,0\n"

# What is wrong -> (files to write, settings, the beginning of the message)
BAD_INPUT = {
    "unknown key": ({}, ["training.lrr=1"], "unknown key 'training.lrr': did you mean 'lr'?"),
    "negative learning rate": ({}, ["training.lr=-0.1"], "training.lr must be > 0, got -0.1"),
    "string for a number": (
        {},
        ["run.rounds=many"],
        "run.rounds must be a whole number, got 'many'",
    ),
    "missing data set": (
        {},
        ["data.name=tiny-imagenet"],
        "data set 'tiny-imagenet' must be on this machine, got none",
    ),
    "a client without examples": (
        {"own/a.csv": CLIENT, "own/b.csv": "a,b,y\n"},
        ["data.folder=own"],
        "client 'b' must have at least one example, got none",
    ),
    "labels out of range": (
        {},
        ["scenario.shifts=[{kind='label-map', map=[1, 2]}]"],
        "map must list 10 labels in 0..9, got [1, 2]",
    ),
    "NaN in features": (
        {"own/a.csv": CLIENT.replace("2,3", "2,nan")},
        ["data.folder=own", "data.standardise=false", "scenario.split=[1.0, 0.0, 0.0]"],
        "client 'a', train split: features must be finite, got NaN or infinity",
    ),
    "clients with different columns": (
        {"own/a.csv": CLIENT, "own/b.csv": "a,y\n1,0\n"},
        ["data.folder=own"],
        "client 'b': columns must be those of client 'a', got none called b",
    ),
    "more clients than examples": (
        {},
        ["scenario.clients=301"],
        "scenario.clients must be <= 300, the number of examples (300)",
    ),
    "cohort share above 1": (
        {},
        ["run.cohort=1.5"],
        "run.cohort must be a whole number or <= 1, got 1.5",
    ),
    "batch size 0": ({}, ["training.batch_size=0"], "training.batch_size must be >= 1, got 0"),
    "model of another width": (
        {},
        ["model.name=toy_models:narrow"],
        "model 'toy_models:narrow' must give 10 outputs, one per class",
    ),
    "an image file that is not one": (
        {"own/a/cat/x.png": "no", "own/a/dog/y.png": "no"},
        ["data.folder=own"],
        "own/a/cat/x.png must be an image",
    ),
    "a CSV without the label column": (
        {"own/a.csv": "a,b\n1,2\n"},
        ["data.folder=own"],
        "own/a.csv must have a column called 'y'",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_has_one_short_message(folder, case):
    files, settings, message = BAD_INPUT[case]
    table = RUN if not any("data." in setting for setting in settings) else "[run]\nrounds = 1\n"
    (folder / "run.toml").write_text(table)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    before = snapshot(folder)
    arguments = [part for setting in settings for part in ("--set", setting)]
    done = concordfl(folder, "run", "run.toml", "--out", "out", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"concordfl: {message}")
    assert len(done.stderr.splitlines()) == 1
    after = snapshot(folder)
    assert {name: after[name] for name in before} == before  # nothing of the user's is lost
    assert not (folder / "out/summary.json").exists()


def test_a_damaged_checkpoint_is_said_in_one_line(folder):
    assert concordfl(folder, "run", "run.toml", "--out", "out").returncode == 0
    (folder / "out/summary.json").unlink()
    for manifest in (folder / "out/checkpoint").glob("manifest-*"):
        manifest.write_text("damaged")
    before = snapshot(folder / "out")
    done = concordfl(folder, "resume", "out")
    assert done.returncode == 2
    assert done.stderr.startswith(
        "concordfl: every checkpoint in out/checkpoint is damaged (manifest-00000004.json: "
    )
    assert len(done.stderr.splitlines()) == 1
    assert {name: data for name, data in snapshot(folder / "out").items() if name != ".lock"} == {
        name: data for name, data in before.items() if name != ".lock"
    }
