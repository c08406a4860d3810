import hashlib
import json
import os
import random
from dataclasses import replace

import pytest
import torch

from concordfl import CheckpointError, ConcordError, FormatError
from concordfl.core import tree
from concordfl.engine import checkpoint
from concordfl.engine.checkpoint import Progress, Selected
from concordfl.engine.client_states import DiskStates, MemoryStates
from concordfl.engine.executors.base import Simulation
from concordfl.engine.records import RunFolder, seal_records
from concordfl.engine.segments import MAX_SEGMENTS

IDENTITY = {"config": "c" * 64, "data": "d" * 64}
FILES = ("manifest-00000004.json", "server-00000004.bin", "states-00000004.bin")


def progress(round=3, id="a"):
    made = Progress({"w": torch.arange(3.0) + round}, round=round, absent={"b"}, seconds=1.5)
    made.missing, made.failures = {"refused": 2}, [{"client": id, "error": "bad luck"}]
    made.momentum = {"train": {"w": torch.ones(3) / round}}
    made.selected = Selected(1, 0.5, {"w": torch.zeros(3)})
    made.publications.publish("pca", b"components", 10)
    made.publications.deliver([id])
    made.traffic.add(7, 8)
    return made


def client_state(round):
    return tree.pack({"x": torch.tensor([float(round)])})


def save(folder, made, keep=2, *, id="a", **options):
    """As an executor does: the clients' states first, then the checkpoint that names them."""
    folder.mkdir(exist_ok=True)
    clients = Simulation(MemoryStates(), noise_seed=7)
    clients.states.put(id, client_state(made.round))
    clients.states.commit()
    checkpoint.save(folder, made, keep, clients.save(folder, made.round), **options)


def load(folder, id="a", **options):
    clients = Simulation(MemoryStates(), noise_seed=7)
    loaded = checkpoint.load(folder, clients.load, **options)
    assert clients.states.get(id) == client_state(loaded.progress.round)
    return loaded


def same(left, right):
    def plain(made):
        return (
            made.round, made.traffic, made.absent, made.seconds, made.missing, made.failures,
            made.selected[:2], made.publications.__dict__,
        )  # fmt: skip

    def trees(made):
        return [made.server, made.momentum, made.selected.server]

    return plain(left) == plain(right) and tree.equal(trees(left), trees(right))


def test_a_checkpoint_holds_everything(tmp_path):
    save(tmp_path, progress())
    loaded = load(tmp_path)
    assert same(loaded.progress, progress())
    assert loaded.problems == ()


def test_more_bytes_than_any_setting_may_count(tmp_path):
    made = progress()
    made.traffic.add(10**13, 10**12)
    made.publications.publish("encoders", b"large", 10**10)
    save(tmp_path, made)
    assert load(tmp_path).progress.traffic == made.traffic


def test_a_checkpoint_without_selection_publication_or_state(tmp_path):
    checkpoint.save(tmp_path, Progress({"w": torch.ones(1)}, round=1), keep=2)
    assert {path.name for path in tmp_path.iterdir()} == {
        "manifest-00000001.json",
        "server-00000001.bin",
    }
    back = checkpoint.load(tmp_path).progress
    assert (back.selected, back.publications.data) == (None, {})


def test_ids_of_any_kind_are_kept(tmp_path):
    id = "сайт\udcff/../\n"
    made = progress(id=id)
    made.absent = {"\ud800", ""}
    save(tmp_path, made, id=id)
    assert same(load(tmp_path, id).progress, made)


def test_only_the_last_are_kept_with_all_that_they_need(tmp_path):
    for round in (1, 2, 3, 4):
        save(tmp_path, progress(round))
    assert {path.name for path in tmp_path.iterdir()} == {
        *FILES,
        *(name.replace("4", "3") for name in FILES),
    }
    (tmp_path / "manifest-00000004.json").unlink()
    assert load(tmp_path).progress.round == 3


@pytest.mark.parametrize("victim", FILES)
@pytest.mark.parametrize("damage", ["cut", "flip", "remove", "folder", "pipe", "link", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, victim, damage):
    for round in (3, 4):
        save(tmp_path, progress(round))
    path = tmp_path / victim
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if damage in ("cut", "flip", "empty"):
        path.write_bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    elif damage == "folder":
        path.mkdir()
    elif damage == "pipe":
        os.mkfifo(path)
    elif damage == "link":
        path.symlink_to(tmp_path / victim.replace("4", "3"))
    before = sorted(tmp_path.iterdir())
    loaded = load(tmp_path)
    assert same(loaded.progress, progress(3))
    assert sorted(tmp_path.iterdir()) == before  # reading changes nothing
    if (victim, damage) != ("manifest-00000004.json", "remove"):
        (problem,) = loaded.problems
        assert problem.startswith("manifest-00000004.json: ")
        assert "\n" not in problem
    if damage != "folder":  # the round is played again: nothing is built on what is damaged
        save(tmp_path, progress(4))
        assert same(load(tmp_path).progress, progress(4))
        assert load(tmp_path).problems == ()


def test_no_file_is_shared_by_two_checkpoints(tmp_path):
    """The selected round, the publications and unchanged client states are the same in both."""
    for round in (3, 4):
        save(tmp_path, replace(progress(3), round=round))
    for path in tmp_path.glob("*-00000004.*"):
        path.write_bytes(b"damaged")
    assert load(tmp_path).progress.round == 3


def test_a_damaged_newer_checkpoint_is_never_kept_instead_of_a_whole_one(tmp_path):
    for round in (3, 9):
        save(tmp_path, progress(round))
    (tmp_path / "server-00000009.bin").write_bytes(b"damaged")
    for round in (4, 5):  # what a resumed run does
        save(tmp_path, progress(round), keep=1)
        assert load(tmp_path).problems == ()
        assert load(tmp_path).progress.round == round


def test_none_and_only_damaged_ones_are_said_in_words(tmp_path):
    with pytest.raises(CheckpointError, match="must hold a checkpoint, got none"):
        load(tmp_path)
    save(tmp_path, progress(), keep=1)
    (tmp_path / "manifest-00000003.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"every checkpoint in .* is damaged \(manifest-00000003.json"
    ):
        load(tmp_path)
    assert (tmp_path / "manifest-00000003.json").exists()


def test_an_old_damaged_manifest_does_not_stop_new_checkpoints(tmp_path):
    save(tmp_path, progress(1), keep=3)
    (tmp_path / "manifest-00000001.json").write_text("damaged")
    for round in (2, 3):
        save(tmp_path, progress(round), keep=3)
    assert not (tmp_path / "manifest-00000001.json").exists()


# --- what a checkpoint seals ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("config", "config.toml was edited since the run began: config must be cccc.*, got xxxx"),
        ("data", "the run was begun with other data: data must be dddd.*, got xxxx"),
        ("weather", "begun with another weather: weather must be none, got xxxx"),
    ],
)
def test_other_settings_or_data_are_refused_and_are_no_damage(tmp_path, name, line):
    for round in (3, 4):
        save(tmp_path, progress(round), identity=IDENTITY)
    assert load(tmp_path, identity=IDENTITY).progress.round == 4
    assert load(tmp_path).progress.round == 4  # a reader that need not know
    with pytest.raises(CheckpointError, match=line):
        load(tmp_path, identity={**IDENTITY, name: "x" * 64})


def test_edited_or_shortened_records_are_noticed_and_an_older_checkpoint_may_still_fit(tmp_path):
    folder, made = RunFolder(tmp_path), {}
    for round in (3, 4):
        made[round] = progress(round)
        made[round].records = folder.append_record({"round": round, "accuracy": 0.5})
        save(folder.checkpoints, made[round])
    assert made[4].records == seal_records(folder.records_file)
    whole = folder.records_file.read_bytes()
    assert load(folder.checkpoints, records_file=folder.records_file).progress.round == 4

    folder.records_file.write_bytes(whole + b'{"round": 5}\n')  # after the checkpoint
    assert load(folder.checkpoints, records_file=folder.records_file).progress.round == 4

    folder.records_file.write_bytes(whole[:-3])
    loaded = load(folder.checkpoints, records_file=folder.records_file)
    assert loaded.progress.round == 3
    assert "records.jsonl must have at least" in loaded.problems[0]

    folder.records_file.write_bytes(whole.replace(b"0.5", b"0.9"))
    with pytest.raises(CheckpointError, match=r"records.jsonl must begin with the \d+ bytes"):
        load(folder.checkpoints, records_file=folder.records_file)


def edit(path, change):
    """A manifest whose content is changed and whose seal is true again: only a stranger's."""
    body = json.loads(path.read_text())
    del body["sha256"]
    change(body)
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    body["sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(body))


def test_void_rounds_of_training_are_kept_and_not_known_of_older_checkpoints(tmp_path):
    made = progress()
    made.void_rounds, made.void_training_rounds = 5, 2
    save(tmp_path, made)
    assert load(tmp_path).progress.void_training_rounds == 2
    edit(tmp_path / "manifest-00000003.json", lambda body: body.pop("void_training_rounds"))
    assert load(tmp_path).progress.void_training_rounds == 5  # the nearest that is known


def fields(body, path=()):
    yield path
    if isinstance(body, dict):
        for key, value in body.items():
            yield from fields(value, (*path, key))


def test_every_field_of_a_wrong_type_is_damage_in_one_line(tmp_path):
    for round in (3, 4):
        save(tmp_path, progress(round), identity=IDENTITY)
    path = tmp_path / "manifest-00000004.json"
    whole = path.read_text()
    found = [names for names in fields(json.loads(whole)) if names and names != ("sha256",)]
    assert len(found) > 20
    refused = 0
    for names in found:
        for value in (None, -1, "x", [[]], float("nan")):

            def change(body, names=names, value=value):
                for name in names[:-1]:
                    body = body[name]
                body[names[-1]] = value

            path.write_text(whole)
            edit(path, change)
            try:
                loaded = load(tmp_path)
            except FormatError as error:
                assert "newer concordfl: format must be <= 4" in str(error)  # noqa: PT017
                refused += 1
            else:
                refused += bool(loaded.problems)
                assert all(len(line) < 500 and "\n" not in line for line in loaded.problems)
    assert refused > 4 * len(found)


def test_names_in_a_manifest_lead_nowhere_else(tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"private")
    folder = tmp_path / "checkpoint"
    save(folder, progress(4))

    def change(body):
        body["clients"]["states"]["segments"][0]["name"] = "../secret"

    edit(folder / "manifest-00000004.json", change)
    with pytest.raises(CheckpointError, match=r"clients.states.segments.0.name must be"):
        load(folder)


def test_a_newer_format_is_refused_and_not_stepped_over(tmp_path):
    for round in (3, 4):
        save(tmp_path, progress(round))
    edit(tmp_path / "manifest-00000004.json", lambda body: body.update(format=5))
    with pytest.raises(
        FormatError, match="written by a newer concordfl: format must be <= 4, got 5"
    ):
        load(tmp_path)


@pytest.mark.parametrize("victim", FILES)
def test_mutated_files_of_a_checkpoint_never_raise_anything_else(tmp_path, victim):
    for round in (3, 4):
        save(tmp_path, progress(round))
    rng, path = random.Random(victim), tmp_path / victim
    whole = path.read_bytes()
    for _ in range(60):
        data = bytearray(whole)
        where = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data[where] ^= 1 << rng.randrange(8)
            case 1:
                del data[where:]
            case 2:
                data[where:where] = rng.choice([b"\xff", b"\0" * 9, b"[" * 2000, b'"', b"NaN"])
            case 3:
                del data[where : where + rng.randrange(1, 30)]
        path.write_bytes(data)
        try:
            loaded = load(tmp_path)
        except ConcordError as error:
            assert "newer" in str(error)  # noqa: PT017
        else:
            assert loaded.progress.round == 3 or same(loaded.progress, progress(4))


def test_a_full_disk_is_one_line_and_the_checkpoint_before_stays(tmp_path, monkeypatch):
    save(tmp_path, progress(3), keep=1)

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("concordfl.engine.files.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"states-00000004.bin cannot be written: No space"):
        save(tmp_path, progress(4), keep=1)
    assert same(load(tmp_path).progress, progress(3))


# --- many clients ---------------------------------------------------------------------------------


def simulation(kind, folder):
    states = MemoryStates() if kind == "memory" else DiskStates(folder)
    return Simulation(states, noise_seed=7)


def visit(clients, ids, round):
    for id in ids:
        clients.states.put(id, tree.pack({"x": torch.full((40,), float(round))}))
    clients.states.commit()


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_neither_the_manifest_nor_the_number_of_files_grows_with_the_clients(tmp_path, kind):
    found = {}
    for population in (10, 3000):
        folder = tmp_path / str(population)
        folder.mkdir()
        clients = simulation(kind, folder)
        ids = [f"client-{number:06d}" for number in range(population)]
        made = progress()
        made.publications.deliver(ids)
        made.absent = set(ids)
        for round in range(1, 5):
            visit(clients, ids if round < 3 else ids[:5], round)
            made.round = round
            checkpoint.save(folder, made, 2, clients.save(folder, round))
        manifest = (folder / "manifest-00000004.json").read_bytes()
        assert b"client-" not in manifest
        found[population] = (len(manifest) // 100, len(list(folder.iterdir())))
        assert same(checkpoint.load(folder, simulation(kind, folder).load).progress, made)
    assert found[10][0] <= found[3000][0] <= found[10][0] + 3  # longer numbers, one more segment
    assert found[3000][1] <= found[10][1] + 2


@pytest.mark.parametrize("kind", ["memory", "disk"])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_every_kept_checkpoint_has_all_its_states_whatever_is_merged(tmp_path, kind, keep):
    clients, rng, expected = simulation(kind, tmp_path), random.Random(kind), {}
    ids = [f"client-{number:03d}" for number in range(60)]
    for round in range(1, 40):
        visit(clients, ids if round == 1 else rng.sample(ids, 4), round)
        checkpoint.save(tmp_path, progress(round), keep, clients.save(tmp_path, round))
        expected[round] = clients.states_digest()
        if round % 13 == 0:  # killed, and taken up again
            clients = simulation(kind, tmp_path)
            checkpoint.load(tmp_path, clients.load)
        for manifest in sorted(tmp_path.glob("manifest-*.json")):
            kept = int(manifest.stem[-8:])
            assert round - keep < kept <= round
            body = checkpoint.MANIFEST.parse(manifest.read_bytes())
            again = simulation(kind, tmp_path)
            again.load(tmp_path, body["clients"])
            assert again.states_digest() == expected[kept]
        named = {each["name"] for each in body["clients"]["states"]["segments"]}
        assert named <= {path.name for path in tmp_path.glob("states-*.bin")}
    assert len(list(tmp_path.glob("states-*.bin"))) <= 3 * MAX_SEGMENTS


def test_an_older_format_is_refused_in_one_line(tmp_path):
    save(tmp_path, progress(4))
    edit(tmp_path / "manifest-00000004.json", lambda body: body.update(format=3))
    with pytest.raises(
        FormatError, match="written by an older concordfl: format must be 4, got 3$"
    ):
        load(tmp_path)
