"""A run is resumed with the settings and data that it began with, or not at all."""

import json
import shutil

import numpy as np
import pytest
from torch import nn

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


# --- a network given again ------------------------------------------------------------------------


def network(width=4, activation=nn.ReLU):
    return nn.Sequential(nn.Linear(3, width), activation(), nn.Linear(width, 2))


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A run of a network that no other process could import."""
    monkeypatch.chdir(tmp_path)
    write_client(tmp_path / "data", "a", 0)
    write_client(tmp_path / "data", "b", 1)
    cf.run(run={"rounds": 1}, data={"folder": "data"}, model=network(), out="run")
    return tmp_path / "run"


OTHERS = [network(width=9), network(activation=nn.Tanh)]


@pytest.mark.parametrize("other", OTHERS)
def test_another_network_of_the_same_name_is_not_loaded(finished, other):
    examples = np.zeros((2, 3))
    assert len(cf.load(finished, model=network()).predict(examples)) == 2
    with pytest.raises(cf.CheckpointError, match="the run was begun with another network: network"):
        cf.load(finished, model=other)
    with pytest.raises(cf.CheckpointError, match="the run was begun with another network: network"):
        cf.resume(finished, model=other)


def test_a_run_goes_on_with_the_network_that_it_began_with(begun):
    shutil.rmtree(begun / "run")
    given = network()
    settings = {"run": {"rounds": 2, "evaluate_every": 1}, "data": {"folder": "data"}}
    cf.run(settings, model=given, out="run", until=1)
    other = network(activation=nn.Tanh)
    other.load_state_dict(given.state_dict())
    with pytest.raises(cf.CheckpointError, match="the run was begun with another network"):
        cf.resume("run", model=other)
    assert cf.resume("run", model=given).summary["rounds"] == 2


def test_a_network_that_prints_addresses_is_the_same_again(finished):
    class Printing(nn.Linear):
        def extra_repr(self):
            return repr(object())

    cf.run(run={"rounds": 1}, data={"folder": "data"}, model=Printing(3, 2), out="printing")
    assert cf.load("printing", model=Printing(3, 2)).summary["rounds"] == 1


@pytest.mark.parametrize("until", [1, 2])
def test_runs_that_recorded_no_network_are_gone_on_with(begun, monkeypatch, until):
    shutil.rmtree(begun / "run")
    given = network()
    with monkeypatch.context() as before:
        before.setattr("concordfl.assemble.network_identity", lambda settings, model: {})
        settings = {"run": {"rounds": 2, "evaluate_every": 1}, "data": {"folder": "data"}}
        cf.run(settings, model=given, out="run", until=until)
    assert cf.resume("run", model=given).summary["rounds"] == 2
    assert cf.load("run", model=given).summary["rounds"] == 2


def test_an_own_function_that_builds_another_network_is_refused(finished, monkeypatch):
    (finished.parent / "own_network.py").write_text(
        "from torch import nn\nact = nn.ReLU\n"
        "def net(): return nn.Sequential(nn.Linear(3, 4), act(), nn.Linear(4, 2))\n"
    )
    monkeypatch.syspath_prepend(finished.parent)
    cf.run(run={"rounds": 1}, data={"folder": "data"}, model="own_network:net", out="own")
    assert cf.load("own", trust=True).summary["rounds"] == 1
    monkeypatch.setattr("own_network.act", nn.Tanh)
    with pytest.raises(cf.CheckpointError, match="the run was begun with another network"):
        cf.load("own", trust=True)
