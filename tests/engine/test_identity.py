"""A run is resumed with the settings and data that it began with, or not at all."""

import json
import shutil

import numpy as np
import pytest

import concordfl as cf

ROWS = 40


def write_client(folder, name, seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{name}.npz", x=rng.normal(size=(rows, 3)), y=rng.integers(2, size=rows))


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run on own data that was stopped after its first round, with `data` relative to here."""
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        write_client(tmp_path / "data", name, seed)

    def stop(event):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cf.run(
            run={"rounds": 3, "checkpoint_seconds": 0.0, "evaluate_every": 1},
            data={"folder": "data"},
            out="run",
            on_round=stop,
        )
    return tmp_path


def test_what_is_the_same_is_resumed(begun):
    assert cf.resume("run").summary["rounds"] == 3


def test_other_data_are_refused(begun):
    write_client(begun / "data", "b", seed=9)
    with pytest.raises(cf.CheckpointError, match="the run was begun with other data"):
        cf.resume("run")


def test_the_folder_of_that_name_somewhere_else_is_refused(begun, monkeypatch):
    elsewhere = begun / "elsewhere"
    elsewhere.mkdir()
    for name in "abc":
        write_client(elsewhere / "data", name, seed=7)
    monkeypatch.chdir(elsewhere)
    shutil.rmtree(begun / "data")  # or its own would be found
    with pytest.raises(cf.CheckpointError, match="the run was begun with other data"):
        cf.resume(begun / "run")


@pytest.mark.parametrize("checkpointed", [True, False])
def test_edited_settings_are_refused(begun, checkpointed):
    if not checkpointed:
        shutil.rmtree(begun / "run" / "checkpoint")
    config = begun / "run" / "config.toml"
    edited = config.read_text().replace("momentum = 0.9", "momentum = 0.8")
    assert edited != config.read_text()
    config.write_text(edited)
    with pytest.raises(cf.CheckpointError, match=r"config.toml was edited since the run began"):
        cf.resume("run")


def test_edited_settings_of_a_finished_run_are_refused(begun):
    from concordfl.deploy.finished import FinishedRun

    cf.resume("run")
    assert FinishedRun.open(begun / "run").summary["rounds"] == 3
    config = begun / "run" / "config.toml"
    config.write_text(config.read_text() + "\n# a remark\n")
    with pytest.raises(cf.CheckpointError, match=r"config.toml was edited since the run began"):
        FinishedRun.open(begun / "run")


def test_one_damaged_file_costs_one_checkpoint(begun):
    """Whatever of the newest checkpoint is damaged, the one before is whole, and it is said."""
    expected = cf.run(
        run={"rounds": 3, "checkpoint_seconds": 0.0, "evaluate_every": 1}, data={"folder": "data"}
    )

    def stop(event):
        if event.turn.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cf.resume("run", on_round=stop)
    newest = sorted((begun / "run" / "checkpoint").glob("server-*.bin"))[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    summary = cf.resume("run").summary
    assert summary["parameters_sha256"] == expected.summary["parameters_sha256"]
    assert "server-00000002.bin is damaged" in summary["damaged_checkpoints"][0]


def test_who_takes_part_is_written_at_the_start(begun):
    written = json.loads((begun / "run" / "federation.json").read_text())
    assert [client["id"] for client in written["clients"]] == ["a", "b", "c"]
    first = written["clients"][0]
    assert first["train"] + first["validation"] + first["test"] == ROWS
    assert sum(first["labels"]) == first["train"]
    assert set(written["identity"]) == {"config", "data"}
    assert written["format"] == 1
