import hashlib
import io
import json
import os
import random
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch

from concordfl import CheckpointError, ConcordError, FormatError
from concordfl.core import tree
from concordfl.engine.files import canonical_json
from concordfl.engine.records import RunFolder, seal_records

ODD_IDS = ["a", "site 3", "a/../b", "", "ж" * 60, "漢" * 300, "caf\udce9", "\ud800", "[red]", "\0"]
SUMMARY = {
    "algorithm": "fedavg",
    "rounds": 4,
    "training_rounds": 4,
    "seed": 0,
    "final": {"round": 4, "local_accuracy": 0.5},
    "selected": None,
    "selected_on": "validation",
    "clusters": None,
    "server": None,
    "thresholds": None,
    "bytes": {"down": 10, "up": 20},
    "missing": {"failed": 1},
    "failures": [{"client": "a\udce9", "step": "train", "round": 2, "detail": "bad luck"}],
    "void_rounds": 0,
    "seconds": {"total": 0.5},
    "executor": "serial",
    "executor_reason": "asked for",
    "clients_without_test": 0,
    "damaged_checkpoints": [],
    "task": {"input_shape": [1, 8, 8], "num_classes": 10},
    "preprocessing": {"type": "uint8"},
    "versions": {"torch": "2"},
}
EXECUTOR = {"name": "serial", "workers": 1, "reason": "asked for", "device": "cpu"}


@pytest.fixture
def folder(tmp_path):
    with RunFolder.create(tmp_path / "run", "rounds = 4\n") as made:
        yield made


# --- the folder -----------------------------------------------------------------------------------


def test_a_new_folder_is_locked_before_it_is_looked_into(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "x = 1")
    with (
        pytest.raises(CheckpointError, match="one process at a time"),
        RunFolder.open(tmp_path / "run"),
    ):
        pass
    with folder:
        assert folder.read_config() == "x = 1"
    with RunFolder.open(tmp_path / "run"):
        pass  # free again


def test_of_two_that_begin_at_once_one_is_refused(tmp_path, monkeypatch):
    """The other one's files appear after the first look and before the lock is held."""
    from concordfl.engine import records

    real = records.make_folder

    def overtaken(path):
        real(path)
        (path / "config.toml").write_text("the other's")

    monkeypatch.setattr(records, "make_folder", overtaken)
    with pytest.raises(CheckpointError, match="must be new or empty"):
        RunFolder.create(tmp_path / "run", "ours")
    assert (tmp_path / "run/config.toml").read_text() == "the other's"


def failed_start(path):
    """What a run leaves that was refused when its data had been read."""
    with RunFolder.create(path, "x = 1") as folder:
        folder.write_executor(EXECUTOR)
    return path


EXECUTOR = {"name": "serial", "workers": 1, "reason": "small", "device": "cpu"}


def test_a_folder_with_nothing_but_a_failed_start_is_used_again(tmp_path):
    with RunFolder.create(failed_start(tmp_path / "run"), "x = 2") as folder:
        assert folder.read_config() == "x = 2"
        assert folder.read_executor() is None


@pytest.mark.parametrize("name", ["records.jsonl", "summary.json", "checkpoint/a", "letter.txt"])
def test_a_folder_with_more_than_a_failed_start_is_refused(tmp_path, name):
    path = failed_start(tmp_path / "run") / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    with pytest.raises(CheckpointError, match="must be new or empty, got .* which holds a run"):
        RunFolder.create(tmp_path / "run", "x = 2")
    assert (tmp_path / "run/config.toml").read_text() == "x = 1"
    assert path.read_text() == "mine"


def test_somebodys_own_file_is_no_failed_start(tmp_path):
    """A run file that is called config.toml, and `--out .`"""
    (tmp_path / "config.toml").write_text("mine")
    with pytest.raises(CheckpointError, match="must be new or empty"):
        RunFolder.create(tmp_path, "x = 2")
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


def test_a_start_under_way_is_not_taken_for_a_failed_one(tmp_path):
    with (
        RunFolder.create(tmp_path / "run", "x = 1"),
        pytest.raises(CheckpointError, match="one process at a time"),
    ):
        RunFolder.create(tmp_path / "run", "x = 2")
    assert (tmp_path / "run/config.toml").read_text() == "x = 1"


def test_no_lock_is_laid_into_a_folder_of_somebody_else(tmp_path):
    (tmp_path / "letters.txt").touch()
    with pytest.raises(CheckpointError, match="which holds files"):
        RunFolder.create(tmp_path, "")
    assert [path.name for path in tmp_path.iterdir()] == ["letters.txt"]


@pytest.mark.parametrize(
    "name",
    ["records.jsonl", "summary.json", "checkpoint", "models", "clients", ".lock", "config.toml",
     "models/clients/a.safetensors", "checkpoint/manifest-00000004.json", "config.toml.partial"],
)  # fmt: skip
def test_links_in_a_run_folder_are_refused_when_it_is_opened(folder, tmp_path, name):
    target = tmp_path / "target"
    target.write_text("somebody's")
    link = folder.path / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(target)
    with pytest.raises(CheckpointError, match=f"must not hold links, got .*{name}"):
        RunFolder.open(folder.path)
    assert target.read_text() == "somebody's"


def test_links_laid_later_are_not_followed_either(folder, tmp_path):
    target = tmp_path / "target"
    target.write_text("somebody's")
    folder.records_file.symlink_to(target)
    for use in (
        lambda: folder.append_record({"round": 1}),
        folder.cut_records,
        folder.read_records,
    ):
        with pytest.raises(CheckpointError, match=r"records.jsonl must be a file, got a link"):
            use()
    assert target.read_text() == "somebody's"


def test_the_folder_itself_may_be_a_link(folder, tmp_path):
    (tmp_path / "latest").symlink_to(folder.path)
    assert RunFolder.open(tmp_path / "latest").read_config() == "rounds = 4\n"


def test_what_the_system_refuses_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="must lie in a folder"):
        RunFolder.create(tmp_path / "file/run", "")
    with pytest.raises(CheckpointError, match=r"cannot be (made|read): "):
        RunFolder.create(tmp_path / ("x" * 300), "")
    with pytest.raises(CheckpointError, match="settings must be valid Unicode"):
        RunFolder.create(tmp_path / "run", "name = '\udce9'")


# --- sealed files ---------------------------------------------------------------------------------


def test_what_was_written_is_read(folder):
    clients = [{"id": id, "held_out": False, "labels": [1, 2]} for id in ODD_IDS]
    federation = {"identity": {"data": "0" * 64}, "clients": clients, "more": None}
    assert folder.read_summary() is folder.read_executor() is folder.read_federation() is None
    folder.write_summary({**SUMMARY, "more": torch.ones(2)})
    folder.write_executor(EXECUTOR)
    folder.write_federation(federation)
    assert folder.read_summary() == {**SUMMARY, "more": [1.0, 1.0]}
    assert folder.read_executor() == EXECUTOR
    assert folder.read_federation() == federation
    for name in ("summary.json", "executor.json", "federation.json"):
        body = json.loads((folder.path / name).read_text())
        assert (next(iter(body)), list(body)[-1]) == ("format", "sha256")


def test_an_edited_summary_is_noticed_with_advice(folder):
    folder.write_summary(SUMMARY)
    file = folder.path / "summary.json"
    file.write_text(file.read_text().replace("0.5", "0.9"))
    with pytest.raises(
        FormatError,
        match=r"summary.json is damaged or was edited .*: remove it and `concordfl resume .*run` w",
    ):
        folder.read_summary()


@pytest.mark.parametrize(
    ("name", "value"),
    [("missing", None), ("failures", [{}]), ("bytes", {"down": 1}), ("seed", "0"), ("versions", []),
     ("final", {"round": 1, "local_accuracy": "x"}), ("thresholds", {"log_x": []})],
)  # fmt: skip
def test_a_summary_that_its_readers_cannot_use_is_noticed(folder, name, value):
    """However well it is sealed."""
    body = {"format": 1, **SUMMARY, "records_sha256": "0" * 64, name: value}
    seal = hashlib.sha256(canonical_json(body)).hexdigest()
    (folder.path / "summary.json").write_text(json.dumps({**body, "sha256": seal}))
    with pytest.raises(FormatError, match=rf"summary.json is damaged or was edited \({name}"):
        folder.read_summary()


def test_equal_models_give_equal_bytes(folder):
    tensors = {"head.weight": torch.ones(2, 3), "head.bias": torch.zeros(2)}
    file = folder.path / "models/final.safetensors"
    folder.write_model("final", tensors)
    before = file.read_bytes()
    for _ in range(20):  # safetensors writes metadata in an order that differs from call to call
        folder.write_model("final", tensors)
        assert file.read_bytes() == before
    assert torch.equal(safetensors.torch.load_file(file)["head.weight"], tensors["head.weight"])
    with safetensors.safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt", "concordfl_format": "1"}


# --- records --------------------------------------------------------------------------------------


def test_records_are_sealed_and_cut(folder):
    seals = [folder.append_record({"round": round, "x": float("nan")}) for round in (1, 2, 3)]
    assert seals[-1] == seal_records(folder.records_file)
    folder.cut_records(seals[1])
    assert [record["round"] for record in folder.read_records()] == [1, 2]
    assert "format" not in folder.read_records()[0]
    with pytest.raises(CheckpointError, match=r"records.jsonl must have at least \d+ bytes"):
        folder.cut_records(seals[2])
    data = folder.records_file.read_bytes()
    folder.records_file.write_bytes(data.replace(b'"round": 1', b'"round": 9'))
    with pytest.raises(CheckpointError, match=r"must begin with the \d+ bytes that were recorded"):
        folder.cut_records(seals[1])
    folder.cut_records()
    assert folder.read_records() == []


def test_edited_records_of_a_finished_run_are_noticed(folder):
    folder.append_record({"round": 1, "accuracy": 0.5})
    folder.write_summary(SUMMARY)
    assert folder.read_records() == [{"round": 1, "accuracy": 0.5}]
    data = folder.records_file.read_bytes()
    for edited in (data.replace(b"0.5", b"0.9"), data + data, b""):
        folder.records_file.write_bytes(edited)
        with pytest.raises(FormatError, match=r"records.jsonl is damaged or was edited \(it must"):
            folder.read_records()
    folder.records_file.unlink()
    with pytest.raises(FormatError, match=r"records.jsonl is damaged or was edited \(it must"):
        folder.read_records()


@pytest.mark.parametrize(
    "line",
    [b"{", b"[]", b"\xff", b"[" * 5000, b'{"round": 1}', b'{"format": 1}', b"7", b'"round"',
     b'{"format": 1, "round": "2"}', b'{"format": 1, "round": true}'],
)  # fmt: skip
def test_a_damaged_record_is_one_line_that_names_it(folder, line):
    folder.append_record({"round": 1})
    folder.records_file.write_bytes(folder.records_file.read_bytes() + line + b"\n")
    with pytest.raises(FormatError, match=r"records.jsonl, line 2, is damaged or was edited") as e:
        folder.read_records()
    assert "\n" not in str(e.value)


# --- personal parts -------------------------------------------------------------------------------


@pytest.mark.parametrize("id", ODD_IDS)
def test_personal_parts_of_clients_of_any_name(folder, id):
    state = {"w": torch.arange(5.0), "visits": 3}
    assert folder.read_client_state(id) is None
    folder.write_client_state(id, tree.pack(state))
    assert tree.equal(folder.read_client_state(id), state)
    (file,) = (folder.path / "models/clients").iterdir()
    assert torch.equal(safetensors.torch.load_file(file)["0"], state["w"])  # deployable as it is


def test_personal_parts_are_sealed_with_their_client(folder):
    for id in ("a", "b"):
        folder.write_client_state(id, tree.pack({"w": torch.arange(8.0), "id": id}))
    file, other = (folder.path / f"models/clients/{id}.safetensors" for id in ("a", "b"))
    whole, rng = file.read_bytes(), random.Random(0)
    for _ in range(200):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        with pytest.raises(FormatError, match=r"a.safetensors is damaged or was edited|newer") as e:
            folder.read_client_state("a")
        assert "\n" not in str(e.value)
    for damaged in (b"", whole[:7], whole[:40], whole + b"x", tree.pack({"w": 1})):
        file.write_bytes(damaged)
        with pytest.raises(FormatError, match=r"`concordfl resume .*run` writes both"):
            folder.read_client_state("a")
    file.write_bytes(other.read_bytes())
    with pytest.raises(FormatError, match="must be of client 'a', got '\"b\"'"):
        folder.read_client_state("a")


def test_personal_parts_have_the_same_bytes_in_every_process(folder):
    state = {"w": torch.arange(5.0)}
    folder.write_client_state("a", tree.pack(state))
    script = (
        "import sys, torch; from pathlib import Path; from concordfl.core import tree\n"
        "from concordfl.engine.records import RunFolder\n"
        "RunFolder(Path(sys.argv[1])).write_client_state('a', tree.pack({'w': torch.arange(5.)}))"
    )
    file = folder.path / "models/clients/a.safetensors"
    before = file.read_bytes()
    file.unlink()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script, folder.path], check=True, env=environment)
    assert file.read_bytes() == before


# --- figures of every client ----------------------------------------------------------------------


def test_figures_of_clients_come_back_as_columns(folder):
    folder.write_clients(
        5,
        {
            "b": {"accuracy": 0.5, "examples": 12, "group": "2", "weights": [0.25, 0.75]},
            "a": {"accuracy": None, "examples": 3, "group": None, "weights": [1.0, 0.0]},
        },
    )
    folder.write_clients(10, {"a": {"accuracy": torch.tensor(0.75), "group": 3, "new": True}})
    columns = folder.read_clients()
    assert columns["round"].tolist() == [5, 5, 10]
    assert columns["client"].tolist() == ["a", "b", "a"]
    assert columns["accuracy"].dtype == columns["examples"].dtype == np.float64
    np.testing.assert_equal(columns["accuracy"], [np.nan, 0.5, 0.75])
    np.testing.assert_equal(columns["examples"], [3, 12, np.nan])
    assert columns["group"].tolist() == [None, "2", 3]
    assert columns["weights"].tolist() == [[1.0, 0.0], [0.25, 0.75], None]
    assert columns["new"].tolist() == [None, None, True]
    assert folder.read_clients([10])["client"].tolist() == ["a"]
    folder.cut_clients(5)
    assert folder.read_clients()["round"].tolist() == [5, 5]
    folder.cut_clients(0)
    assert {name: len(column) for name, column in folder.read_clients().items()} == {
        "round": 0,
        "client": 0,
    }


def test_clients_and_figures_of_any_name(folder):
    rows = {id: {"x/y": 1.5, "\udce9": "é\udce9", "": [id]} for id in ODD_IDS}
    folder.write_clients(1, rows)
    columns = folder.read_clients()
    assert sorted(columns["client"].tolist()) == sorted(ODD_IDS)
    assert columns["x/y"].tolist() == [1.5] * len(rows)
    assert columns["\udce9"][0] == "é\udce9"
    assert [values[0] for values in columns[""]] == columns["client"].tolist()
    with pytest.raises(ValueError, match="must not be called 'round'"):
        folder.write_clients(1, {"a": {"round": 1}})


def test_equal_figures_give_equal_bytes(folder):
    rows = {"a": {"x": 1, "y": "u"}, "b": {"y": "v", "x": 2.5}}
    file = folder.path / "clients/round-00000001.npz"
    folder.write_clients(1, rows)
    before = hashlib.sha256(file.read_bytes()).digest()
    folder.write_clients(1, dict(reversed(rows.items())))
    assert hashlib.sha256(file.read_bytes()).digest() == before


def test_a_hundred_thousand_clients_take_about_a_second(folder):
    rows = {
        f"client-{number:06d}": {"accuracy": number / 7, "examples": number, "group": str(number)}
        for number in range(100_000)
    }
    rows["client-000003"]["group"] = "long" * 100_000  # costs no more than itself
    began = time.process_time()
    folder.write_clients(5, rows)
    columns = folder.read_clients()
    assert time.process_time() - began < 5  # about one; machines differ
    assert columns["accuracy"][7] == 1.0
    assert columns["group"][99_999] == "99999"
    assert (folder.path / "clients/round-00000005.npz").stat().st_size < 3_000_000


def npz(path, **entries):
    np.savez_compressed(path, **entries)


CLIENTS = np.frombuffer(b'["a"]', dtype=np.uint8)
GOOD = {"format": np.array(1), "round": np.array(5), "clients": CLIENTS}


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {**GOOD, "format": np.array(2)},
        {**GOOD, "format": np.array([1])},
        {**GOOD, "round": np.array(6)},
        {**GOOD, "clients": np.array(["a"])},
        {**GOOD, "clients": np.frombuffer(b"[1]", dtype=np.uint8)},
        {**GOOD, "clients": np.frombuffer(b"{}", dtype=np.uint8)},
        {**GOOD, "clients": np.frombuffer(b"\xff", dtype=np.uint8)},
        {**GOOD, "number:x": np.zeros(2)},
        {**GOOD, "number:x": np.zeros((1, 1))},
        {**GOOD, "number:x": np.zeros(1, dtype=np.int64)},
        {**GOOD, "json:x": np.frombuffer(b"[1, 2]", dtype=np.uint8)},
        {**GOOD, "json:x": np.frombuffer(b"[" * 5000, dtype=np.uint8)},
        {**GOOD, "json:x": np.array([{"a": "pickle"}], dtype=object)},
        {**GOOD, "other": np.zeros(1)},
    ],
)
def test_a_table_that_we_do_not_write_is_one_line(folder, entries):
    (folder.path / "clients").mkdir()
    npz(folder.path / "clients/round-00000005.npz", **entries)
    with pytest.raises(FormatError, match=r"round-00000005.npz(: written by a newer| is damaged)"):
        folder.read_clients()


@pytest.mark.parametrize("name", ["format", "clients", "number:x"])
def test_a_table_with_an_entry_that_is_no_array_is_one_line(folder, name):
    (folder.path / "clients").mkdir()
    with zipfile.ZipFile(folder.path / "clients/round-00000005.npz", "w") as archive:
        for each, values in {**GOOD, "number:x": np.zeros(1)}.items():
            entry = io.BytesIO()
            np.save(entry, values)
            archive.writestr(f"{each}.npy", b"?" * (each == name) + entry.getvalue())
    with pytest.raises(FormatError, match=r"round-00000005.npz is damaged or was edited"):
        folder.read_clients()


# --- damage anywhere ------------------------------------------------------------------------------


def read_all(folder):
    opened = RunFolder.open(folder.path)
    opened.read_config()
    return (
        opened.read_summary(),
        opened.read_executor(),
        opened.read_federation(),
        opened.read_records(),
        {name: column.tolist() for name, column in opened.read_clients().items()},
        str(opened.read_client_state("a")),
    )


@pytest.mark.parametrize(
    "name",
    ["summary.json", "executor.json", "federation.json", "records.jsonl",
     "clients/round-00000005.npz", "models/clients/a.safetensors", "config.toml"],
)  # fmt: skip
def test_mutated_files_are_one_line_or_the_same_content(folder, name):
    folder.append_record({"round": 5, "local": {"accuracy": 0.5}})
    folder.write_summary(SUMMARY)
    folder.write_executor(EXECUTOR)
    folder.write_federation(
        {"identity": {"data": "0"}, "clients": [{"id": "a", "held_out": False}]}
    )
    folder.write_clients(5, {"a": {"accuracy": 0.5, "group": "x"}})
    folder.write_client_state("a", tree.pack({"w": torch.ones(3)}))
    whole, rng, path = read_all(folder), random.Random(name), folder.path / name
    data, changed = path.read_bytes(), 0
    for _ in range(80):
        mutated = bytearray(data)
        where = rng.randrange(len(data))
        end = where + rng.randrange(4)
        mutated[where:end] = rng.choice(
            [b"", b"\0", b"\xff\xfe", b"[" * 3000, b"NaN", b'"', b"9" * 30, rng.randbytes(3)]
        )
        path.write_bytes(mutated[: rng.choice([len(mutated), where])])
        try:
            changed += read_all(folder) != whole
        except ConcordError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017
    assert changed == 0
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        path.unlink() if not path.is_dir() else path.rmdir()
        make()
        with pytest.raises(ConcordError) as caught:
            read_all(folder)
        assert len(str(caught.value).splitlines()) == 1
