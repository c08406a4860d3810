import pytest
import torch

from concordfl import CheckpointError
from concordfl.core import tree
from concordfl.engine import checkpoint
from concordfl.engine.checkpoint import Progress, Selected
from concordfl.engine.client_states import MemoryStates
from concordfl.engine.files import write_atomically


def progress(round=3):
    states = MemoryStates()
    states.put("a", tree.pack({"x": torch.tensor([float(round)])}))
    states.commit()
    made = Progress(
        {"w": torch.arange(3.0) + round}, states, round=round, absent={"b"}, seconds=1.5, refused=2
    )
    made.selected = Selected(1, 0.5, {"w": torch.zeros(3)})
    made.publications.publish("pca", b"components", 10)
    made.publications.deliver(["a"])
    made.traffic.add(7, 8)
    return made


def same(left, right):
    return (
        left.round == right.round
        and tree.equal(left.server, right.server)
        and left.states.digest() == right.states.digest()
        and left.publications.__dict__ == right.publications.__dict__
        and (left.traffic, left.absent, left.seconds, left.refused)
        == (right.traffic, right.absent, right.seconds, right.refused)
        and left.selected.round == right.selected.round
        and tree.equal(left.selected.server, right.selected.server)
    )


def test_a_checkpoint_holds_everything(tmp_path):
    checkpoint.save(tmp_path, progress(), keep=2)
    assert same(checkpoint.load(tmp_path, MemoryStates()), progress())


def test_only_the_last_are_kept_with_all_that_they_name(tmp_path):
    for round in (1, 2, 3, 4):
        checkpoint.save(tmp_path, progress(round), keep=2)
    names = {path.name for path in tmp_path.iterdir()}
    assert {name for name in names if name.startswith("manifest")} == {
        "manifest-00000003.json",
        "manifest-00000004.json",
    }
    assert {name for name in names if name.startswith("server")} == {
        f"server-0000000{r}.bin" for r in (1, 3, 4)
    }  # 1: selected
    assert len([name for name in names if name.startswith("published")]) == 1
    (tmp_path / "manifest-00000004.json").unlink()
    assert checkpoint.load(tmp_path, MemoryStates()).round == 3


@pytest.mark.parametrize(
    "victim", ["manifest-00000004.json", "server-00000004.bin", "states-00000004.bin"]
)
@pytest.mark.parametrize("damage", ["cut", "flip", "remove"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, victim, damage):
    for round in (3, 4):
        checkpoint.save(tmp_path, progress(round), keep=2)
    path = tmp_path / victim
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "remove":
        path.unlink()
    else:
        path.write_bytes(data if damage == "flip" else data[: len(data) // 2])
    assert same(checkpoint.load(tmp_path, MemoryStates()), progress(3))
    assert not (tmp_path / "manifest-00000004.json").exists()  # nothing is built on it again


def test_none_and_only_damaged_ones_are_said_in_words(tmp_path):
    with pytest.raises(CheckpointError, match="must hold a checkpoint, got none"):
        checkpoint.load(tmp_path, MemoryStates())
    checkpoint.save(tmp_path, progress(), keep=1)
    (tmp_path / "manifest-00000003.json").write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"every checkpoint in .* is damaged \(manifest-00000003.json"
    ):
        checkpoint.load(tmp_path, MemoryStates())
    assert (tmp_path / "manifest-00000003.json").exists()


def test_atomic_writing_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def broken(handle):
        raise OSError("no space left")

    monkeypatch.setattr("concordfl.engine.files.os.fsync", broken)
    with pytest.raises(OSError, match="no space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_a_damaged_publication_is_written_again(tmp_path):
    checkpoint.save(tmp_path, progress(3), keep=2)
    (published,) = tmp_path.glob("published-*")
    published.write_bytes(b"damaged")
    checkpoint.save(tmp_path, progress(4), keep=2)
    assert same(checkpoint.load(tmp_path, MemoryStates()), progress(4))


def test_an_old_damaged_manifest_does_not_stop_new_checkpoints(tmp_path):
    checkpoint.save(tmp_path, progress(1), keep=3)
    (tmp_path / "manifest-00000001.json").write_text("damaged")
    for round in (2, 3):
        checkpoint.save(tmp_path, progress(round), keep=3)
    assert not (tmp_path / "manifest-00000001.json").exists()
