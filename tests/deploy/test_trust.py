"""A run folder may be a stranger's: it runs no code unless it is trusted."""

import hashlib
import json
import shutil
import sys
import tomllib

import numpy as np
import pytest
import tomli_w

from command import concordfl
from concordfl import CheckpointError, FormatError, SettingError, load, resume, run
from concordfl.config import Config
from concordfl.deploy.finished import FinishedRun
from concordfl.deploy.newcomer import adapt
from concordfl.deploy.scoring import score
from concordfl.engine.files import canonical_json
from concordfl.study.cells import cells
from concordfl.study.compare import compare
from concordfl.toolbox import embedding

SECTIONS = {
    "data": {"name": "digits", "limit": 200},
    "scenario": {"clients": 3},
    "run": {"rounds": 1, "executor": "serial"},
}
REFUSAL = "a run folder must not name code of its own unless it is trusted"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run, beside examples in digits.npz."""
    folder = tmp_path_factory.mktemp("trust")
    run(**SECTIONS, algorithm={"name": "fedgmm", "dimensions": 4}, out=folder / "run")
    images = np.random.default_rng(0).integers(256, size=(20, 8, 8, 1), dtype=np.uint8)
    np.savez(folder / "digits.npz", x=images, y=np.arange(20) % 10)
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy that a test may change."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def change(folder, section, **values):
    file = folder / "run/config.toml"
    table = tomllib.loads(file.read_text())
    table[section] |= values
    file.write_text(tomli_w.dumps(table))


def change_summary(folder, **task):
    """With a new seal: whoever edits a file can compute its sha256."""
    file = folder / "run/summary.json"
    body = json.loads(file.read_text())
    del body["sha256"]
    body["task"] |= task
    seal = hashlib.sha256(canonical_json(body)).hexdigest()
    file.write_text(json.dumps(body | {"sha256": seal}))


COMMANDS = {
    "score": ("score", "run", "--data", "digits.npz"),
    "adapt": ("adapt", "run", "--data", "digits.npz"),
    "predict": ("predict", "run", "--data", "digits.npz"),
    "export": ("export", "run", "-o", "model.safetensors"),
    "resume": ("resume", "run"),
}


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_command_in_a_received_folder_is_not_run(folder, verb):
    change(folder, "model", name="subprocess:Popen")
    change_summary(folder, input_shape=["touch", str(folder / "ran")])
    if verb == "resume":
        (folder / "run/summary.json").unlink()
    done = concordfl(folder, *COMMANDS[verb])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert REFUSAL in done.stderr
    assert "got model.name = 'subprocess:Popen' in run" in done.stderr
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("section", "values"),
    [("model", {"name": "stranger:net"}), ("algorithm", {"embedding": "stranger:encoder"})],
)
def test_nothing_is_imported(folder, section, values, monkeypatch):
    (folder / "stranger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(folder)
    change(folder, section, **values)
    data = folder / "digits.npz"
    with pytest.raises(SettingError, match=REFUSAL):
        resume(folder / "run")
    with pytest.raises(SettingError, match=REFUSAL):
        load(folder / "run")
    with pytest.raises(SettingError, match=REFUSAL):
        adapt(folder / "run", data)
    with pytest.raises(SettingError, match=REFUSAL):
        score(folder / "run", data)
    assert "stranger" not in sys.modules


def test_what_is_trusted_runs(tmp_path):
    own = SECTIONS | {"model": {"name": "toy_models:narrow_enough"}}
    run(**own, out=tmp_path / "run")
    assert resume(tmp_path / "run", trust=True).summary["rounds"] == 1
    assert FinishedRun.open(tmp_path / "run", trust=True).settings.own_code() == {
        "model.name": "toy_models:narrow_enough"
    }
    assert concordfl(tmp_path, "resume", "run").returncode == 2
    assert concordfl(tmp_path, "resume", "run", "--trust").returncode == 0


@pytest.mark.parametrize(
    "task",
    [
        {"input_shape": ["touch", "file"]},
        {"input_shape": "touch"},
        {"input_shape": []},
        {"input_shape": [1, 0, 8]},
        {"input_shape": [1, 1, 1, 1, 1]},
        {"input_shape": [10**5, 10**5]},
        {"input_shape": [1.5]},
        {"num_classes": 0},
        {"num_classes": "ten"},
        {"num_classes": 10**9},
        {"objective": "ranking"},
        {"objective": ["classification"]},
        {"objective_settings": {"num_classes": 9}},
        {"objective_settings": "touch"},
    ],
    ids=str,
)
def test_the_task_of_a_summary_is_checked(folder, task):
    change_summary(folder, **task)
    with pytest.raises((CheckpointError, FormatError), match=rf"summary.json .*{next(iter(task))}"):
        FinishedRun.open(folder / "run")


def test_settings_are_checked_without_calling_a_function(tmp_path, monkeypatch):
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    table = {
        "model": {"name": "strange:net"},
        "algorithm": {"name": "fedgmm", "embedding": "strange:encoder"},
    }
    assert Config.from_table(table).own_code() == {
        "model.name": "strange:net",
        "algorithm.embedding": "strange:encoder",
    }
    assert "strange" not in sys.modules


@pytest.mark.parametrize("name", ["a:", ":b", "a b:c", "a:b:c", "a..b:c", ".a:b", "a:b()", "1:2"])
def test_names_that_cannot_be_functions(name):
    with pytest.raises(SettingError, match=r"model.name must be written as `package.module:func"):
        Config.from_table({"model": {"name": name}})
    with pytest.raises(SettingError, match=r"embedding must be written as `package.module:func"):
        embedding.check(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math:pi", "embedding must name a function, got 'math:pi', a float"),
        ("os:getcwd", "must name a function that returns an nn.Module, got str"),
        ("os:kill", "without arguments that returns an nn.Module, got 'os:kill': TypeError"),
        ("no_such_module:f", "embedding must be importable as `package.module:function`"),
    ],
)
def test_functions_that_are_no_encoders(name, message):
    with pytest.raises(SettingError, match=message):
        embedding.encoder(name)


def test_a_comparison_takes_up_only_what_it_asked_for(tmp_path):
    table = SECTIONS | {"model": {"name": "toy_models:narrow_enough"}}
    configs = cells(table, ["fedavg"], [0])

    class Quiet:
        def __enter__(self):
            return lambda event: None

        def __exit__(self, *_):
            return None

    first = compare(configs, tmp_path, lambda title: Quiet()).figures
    assert compare(configs, tmp_path, lambda title: Quiet()).figures == first
    # how it is computed may change, what is computed may not
    faster = cells(table | {"run": {"rounds": 1, "executor": "auto"}}, ["fedavg"], [0])
    assert compare(faster, tmp_path, lambda title: Quiet()).figures == first
    (folder,) = tmp_path.iterdir()
    text = (folder / "config.toml").read_text()
    for edited, message in {
        text.replace("toy_models:narrow_enough", "subprocess:Popen"): "must hold the run that is",
        "run = 3": r"\[run\] must be a table, got 3",
    }.items():
        (folder / "config.toml").write_text(edited)
        with pytest.raises(SettingError, match=message):
            compare(configs, tmp_path, lambda title: Quiet())
