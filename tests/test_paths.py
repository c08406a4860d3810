"""Paths of own data begin at the run file's folder; a run finds its data again from anywhere."""

import shutil

import numpy as np
import pytest

import concordfl as cf
from command import concordfl
from concordfl.config import Config, read_table
from concordfl.study.cells import ConfigHasher

RUN_FILE = """
[run]
rounds = 2
executor = "serial"
checkpoint_seconds = 0.0
[data]
folder = "sites"
[model]
hidden = [4]
"""


@pytest.fixture
def project(tmp_path):
    """A folder with a run file, and its data beside it."""
    write_project(tmp_path / "project")
    return tmp_path / "project"


def write_project(project, seed=0):
    rng = np.random.default_rng(seed)
    (project / "sites").mkdir(parents=True)
    for name in "ab":
        rows = [f"{x:.3f},{int(x > 0)}" for x in rng.normal(size=20)]
        (project / f"sites/{name}.csv").write_text("\n".join(["x,y", *rows]))
    (project / "run.toml").write_text(RUN_FILE)


def stop(event):
    if event.turn.round == 1:
        raise KeyboardInterrupt


def test_a_run_file_may_be_called_from_anywhere(project, tmp_path):
    (tmp_path / "else").mkdir()
    done = concordfl(tmp_path / "else", "run", "../project/run.toml", "--out", "run")
    assert (done.returncode, done.stderr) == (0, "")
    done = concordfl(tmp_path, "compare", "project/run.toml", "--algorithms", "fedavg")
    assert (done.returncode, done.stderr) == (0, "")
    assert cf.run(project / "run.toml").summary["rounds"] == 2


def test_set_is_as_if_it_stood_in_the_run_file(project, tmp_path):
    (project / "sites").rename(project / "clinics")
    done = concordfl(
        tmp_path, "run", "project/run.toml", "--dry-run", "--set", "data={folder='clinics'}"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_path_that_only_the_working_folder_has_is_told(project, tmp_path):
    shutil.move(project / "sites", tmp_path / "sites")
    done = concordfl(tmp_path, "run", "project/run.toml", "--dry-run")
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"got '{project}/sites': a path in a run file begins at the file's folder, not at the "
        "working folder, where there is 'sites'\n"
    )
    (tmp_path / "all.csv").write_text("client,x,y\na,1,0\nb,2,1\n")
    options = ("--dry-run", "--set", "data={table='all.csv'}")
    done = concordfl(tmp_path, "run", "project/run.toml", *options)
    assert "working folder, where there is 'all.csv'" in done.stderr


def test_from_python_paths_begin_at_the_working_folder(project, monkeypatch):
    table = {"data": {"folder": "sites"}, "run": {"rounds": 1}}
    monkeypatch.chdir(project)
    assert cf.run(table).summary["rounds"] == 1
    monkeypatch.chdir(project.parent)
    with pytest.raises(cf.DataError, match="data.folder must be a folder, got 'sites'"):
        cf.run(table)


@pytest.mark.parametrize("from_file", [True, False])
def test_a_stopped_run_is_resumed_from_anywhere(project, tmp_path, monkeypatch, from_file):
    source = "run.toml" if from_file else {"data": {"folder": "sites"}, "run": {"rounds": 2}}
    monkeypatch.chdir(project)
    whole = cf.run(source).summary["parameters_sha256"]
    with pytest.raises(KeyboardInterrupt):
        cf.run(source, out="run", on_round=stop)
    monkeypatch.chdir(tmp_path)
    assert cf.resume(project / "run").summary["parameters_sha256"] == whole


def test_data_that_moved_with_their_run_are_found_in_the_working_folder(
    project, tmp_path, monkeypatch
):
    monkeypatch.chdir(project)
    with pytest.raises(KeyboardInterrupt):
        cf.run("run.toml", out="run", on_round=stop)
    monkeypatch.chdir(tmp_path)
    project.rename(tmp_path / "moved")
    monkeypatch.chdir(tmp_path / "moved")
    assert cf.resume("run").summary["rounds"] == 2


def test_other_data_in_the_working_folder_are_refused(project, tmp_path, monkeypatch):
    monkeypatch.chdir(project)
    with pytest.raises(KeyboardInterrupt):
        cf.run("run.toml", out="run", on_round=stop)
    shutil.rmtree(project / "sites")
    write_project(tmp_path / "other", seed=1)
    monkeypatch.chdir(tmp_path / "other")
    with pytest.raises(cf.ConcordError, match="data"):
        cf.resume(project / "run")


def test_hashes_do_not_depend_on_the_machine(project, tmp_path):
    shutil.copytree(project, tmp_path / "copy")
    one, two = (
        ConfigHasher()(Config.from_table(read_table(path / "run.toml")))
        for path in (project, tmp_path / "copy")
    )
    assert one == two
    (tmp_path / "copy/sites/a.csv").write_text("x,y\n1,0\n2,1\n")
    assert ConfigHasher()(Config.from_table(read_table(tmp_path / "copy/run.toml"))) != one


def test_hashes_are_what_they_were_before_paths_began_at_run_files(tmp_path, monkeypatch):
    """As results were kept by earlier versions, called in the run file's folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    (tmp_path / "sites/a.csv").write_text("x,y\n1,0\n2,1\n")
    (tmp_path / "run.toml").write_text('[data]\nfolder = "sites"\n')
    hashed = ConfigHasher()(Config.from_table(read_table(tmp_path / "run.toml")))
    assert hashed == ConfigHasher()(Config.from_table({"data": {"folder": "sites"}}))


def test_a_comparison_is_taken_up_from_another_folder(project, tmp_path):
    command = ("compare", project / "run.toml", "--algorithms", "fedavg", "--out", tmp_path / "out")
    first = concordfl(tmp_path, *command)
    (tmp_path / "else").mkdir()
    second = concordfl(tmp_path / "else", *command)
    assert (second.returncode, second.stderr) == (0, "")
    assert sum(path.is_dir() for path in (tmp_path / "out").iterdir()) == 1
    assert [line for line in first.stdout.splitlines() if "fedavg" in line][-1] in second.stdout


def test_a_pipe_begins_at_the_working_folder(project):
    """As `concordfl run <(...)` gives it."""
    import os
    import threading

    os.mkfifo(project / "pipe")
    threading.Thread(target=(project / "pipe").write_text, args=(RUN_FILE,)).start()
    done = concordfl(project, "run", "pipe", "--dry-run")
    assert (done.returncode, done.stderr) == (0, "")
