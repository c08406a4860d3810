import hashlib
import random

import pytest

from concordfl import CheckpointError, FormatError
from concordfl.core import tree
from concordfl.engine.client_states import DiskStates, MemoryStates
from concordfl.engine.segments import MAX_SEGMENTS, StateLocation, choose_merged, pack_index


@pytest.fixture(params=["memory", "disk"])
def make(request, tmp_path):
    return MemoryStates if request.param == "memory" else lambda: DiskStates(tmp_path)


def test_pending_states_are_seen_and_count_once_committed(make):
    states = make()
    assert states.get("a") is None
    states.put("a", b"1")
    states.commit()
    states.put("a", b"2")
    states.put("b", b"x")
    assert (states.get("a"), states.get("b")) == (b"2", b"x")
    states.discard()
    assert (states.get("a"), states.get("b")) == (b"1", None)
    assert states.ids() == ["a"]


def test_memory_and_disk_have_the_same_digest(tmp_path):
    memory, disk = MemoryStates(), DiskStates(tmp_path)
    for states in (memory, disk):
        for id in "cab":
            states.put(id, id.encode() * 10)
        states.commit()
    assert memory.digest() == disk.digest() != MemoryStates().digest()
    assert memory.digest() == "817326770d41b35a63911cca0e256d02623cb8deb948cba7eb6293ba0f427928"


def test_saved_states_come_back_however_many_rounds_later(make, tmp_path):
    states = make()
    for round in range(3 * MAX_SEGMENTS):
        states.put(f"client-{round % 20}", f"state {round}".encode())
        states.commit()
        saved = states.save(tmp_path, round)
        assert len(saved["segments"]) <= MAX_SEGMENTS
    again = make()
    again.load(tmp_path, saved)
    assert again.digest() == states.digest()
    assert again.get("client-3") == b"state 23"
    again.put("client-3", b"newer")
    assert again.get("client-3") == b"newer"


def names(saved):
    return {segment["name"] for segment in saved["segments"]}


def test_states_in_memory_share_no_file_with_the_last_save(tmp_path):
    states = MemoryStates()
    before = None
    for round in range(9):
        states.put(f"client-{round % 4}", f"state {round}".encode())
        states.put("always", f"{round}".encode())
        states.commit()
        saved = states.save(tmp_path, round)
        if before is not None:
            assert not names(saved) & names(before)
            again = MemoryStates()
            again.load(tmp_path, before)  # which is still whole
        before = saved


def test_a_log_whose_files_were_removed_is_written_again(tmp_path):
    """As where one checkpoint alone is kept."""
    states = MemoryStates()
    for id in "abc":
        states.put(id, id.encode() * 100)
    for round in range(5):
        states.put("a", b"%d" % round)
        states.commit()
        saved = states.save(tmp_path, round)
        for path in tmp_path.iterdir():
            if path.name not in names(saved):
                path.unlink()
    again = MemoryStates()
    again.load(tmp_path, saved)
    assert again.digest() == states.digest()


def test_saving_twice_in_a_round_leaves_both_whole(make, tmp_path):
    states = make()
    states.put("a", b"1")
    states.commit()
    first = states.save(tmp_path, 3)
    second = states.save(tmp_path, 3)
    for saved in (first, second):
        again = make()
        again.load(tmp_path, saved)
        assert again.get("a") == b"1"


def size_of(folder):
    return sum(path.stat().st_size for path in folder.iterdir())


def test_a_save_writes_what_has_changed(make, tmp_path):
    states = make()
    for number in range(1000):
        states.put(f"client-{number:04d}", b"x" * 1000)
    states.commit()
    for round in (1, 2):
        states.save(tmp_path, round)
    whole = size_of(tmp_path)
    for round in (3, 4, 5):
        states.put("client-0007", b"y" * 1000)
        states.commit()
        states.save(tmp_path, round)
    assert size_of(tmp_path) - whole < 10_000


def test_moving_states_together_costs_little_however_often_is_saved(make, tmp_path):
    """Bytes written over many saves, beside those that changed; and nothing ever gets lost."""
    states, expected, written, changed = make(), {}, 0, 0
    rng = random.Random(0)
    for round in range(120):
        for _ in range(10):
            id = f"client-{rng.randrange(600):03d}"
            expected[id] = rng.randbytes(500)
            states.put(id, expected[id])
            changed += 500
        if rng.random() < 0.1:
            states.put("client-000", b"of a void round")
            states.discard()
            expected = {id: states.get(id) for id in states.ids()}
            continue
        states.commit()
        old = set(tmp_path.iterdir())
        saved = states.save(tmp_path, round)
        written += sum(path.stat().st_size for path in set(tmp_path.iterdir()) - old)
        assert len(saved["segments"]) <= MAX_SEGMENTS
    again = make()
    again.load(tmp_path, saved)
    assert {id: again.get(id) for id in again.ids()} == expected
    kinds = 2 if isinstance(states, MemoryStates) else 1  # of logs, each of which has all states
    assert written < kinds * 8 * changed


def test_segments_that_are_merged():
    sizes = {"a": 1000, "b": 100, "c": 20}
    assert choose_merged(sizes, sizes, 1) == []
    assert choose_merged(sizes, sizes, 10) == ["c"]
    assert choose_merged(sizes, sizes, 40) == ["c", "b"]
    assert choose_merged({**sizes, "a": 499}, sizes, 1) == ["a", "c", "b"]  # mostly waste
    many = {str(number): 10**number for number in range(1, 2 * MAX_SEGMENTS)}
    assert len(many) + 1 - len(choose_merged(many, many, 1)) == MAX_SEGMENTS


def test_nothing_is_written_for_no_states(make, tmp_path):
    assert make().save(tmp_path, 1) == {"segments": []}
    assert list(tmp_path.iterdir()) == []


def test_ids_that_are_not_unicode(make, tmp_path):
    states = make()
    states.put("caf\udce9", b"latin-1")
    states.commit()
    again = make()
    again.load(tmp_path, states.save(tmp_path, 1))
    assert again.get("caf\udce9") == b"latin-1"
    assert again.digest() == states.digest()


def test_a_damaged_state_is_noticed(make, tmp_path):
    states = make()
    states.put("a", b"precious")
    states.commit()
    saved = states.save(tmp_path, 1)
    segment = tmp_path / saved["segments"][0]["name"]
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(b"precious", b"preCious"))
    with pytest.raises(CheckpointError, match="state of client 'a' in states-.* is damaged"):
        make().load(tmp_path, saved)
    for damaged in (whole[:-1], whole[:4], b"", whole.replace(b"a", b"b")):
        segment.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="index of states-.* is damaged"):
            make().load(tmp_path, saved)
    segment.unlink()
    with pytest.raises(CheckpointError, match=r"states-.*\.bin cannot be read: No such file"):
        make().load(tmp_path, saved)
    segment.mkdir()
    with pytest.raises(CheckpointError, match=r"states-.*\.bin cannot be read: Is a directory"):
        make().load(tmp_path, saved)


def forged(folder, saved, index):
    """A segment with another index that is sealed: only a stranger's."""
    (segment,) = saved["segments"]
    path = folder / segment["name"]
    path.write_bytes(path.read_bytes()[: segment["states"]] + index)
    seal = hashlib.sha256(index).hexdigest()
    return {"segments": [{**segment, "index": len(index), "sha256": seal}]}


def test_locations_that_cannot_be_are_refused(make, tmp_path):
    states = make()
    states.put("a", b"precious")
    states.commit()
    saved = states.save(tmp_path, 1)
    for numbers in ([0, 10**18, 0], [10**18, 8, 0], [4, 8, 0]):
        index = pack_index({"a": StateLocation("", *numbers)})
        with pytest.raises(CheckpointError, match="state of client 'a' in .* is damaged"):
            make().load(tmp_path, forged(tmp_path, saved, index))
    index = pack_index({"a": StateLocation("", -1, 8, 0)})
    with pytest.raises(FormatError, match="must be >= 0"):
        make().load(tmp_path, forged(tmp_path, saved, index))
    whole = tree.unpack(pack_index({"a": StateLocation("", 0, 8, 0)}))
    text, numbers = whole["clients"], whole["locations"]
    for wrong in (
        {"clients": text},
        {"clients": text, "locations": numbers.float()},
        {"clients": text, "locations": numbers[:0]},
        {"clients": text[:1], "locations": numbers},
        [text, numbers],
    ):
        with pytest.raises(FormatError):
            make().load(tmp_path, forged(tmp_path, saved, tree.pack(wrong)))
    again = forged(tmp_path, saved, pack_index({"a": StateLocation("", 0, 8, 0)}))
    with pytest.raises(FormatError, match="segments must be different, got states-.* twice"):
        make().load(tmp_path, {"segments": again["segments"] * 2})


def test_a_link_is_never_written_through(make, tmp_path):
    target = tmp_path / "target"
    target.write_text("somebody's")
    for round in (0, 1):
        (tmp_path / f"states-{round:08d}.bin").symlink_to(target)
    states = make()
    states.put("a", b"state")
    states.commit()
    saved = states.save(tmp_path, 1)
    assert target.read_text() == "somebody's"
    segment = tmp_path / saved["segments"][0]["name"]
    segment.unlink()
    segment.symlink_to(target)
    with pytest.raises(CheckpointError, match="must be a file, got a link"):
        make().load(tmp_path, saved)
