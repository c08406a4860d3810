import pytest

from concordfl import CheckpointError, FormatError
from concordfl.engine.client_states import MAX_SEGMENTS, DiskStates, MemoryStates


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
        assert len(saved["segments"]) <= (MAX_SEGMENTS if isinstance(states, DiskStates) else 1)
    again = make()
    again.load(tmp_path, saved)
    assert again.digest() == states.digest()
    assert again.get("client-3") == b"state 23"
    again.put("client-3", b"newer")
    assert again.get("client-3") == b"newer"


def test_states_in_memory_are_saved_whole_each_time(tmp_path):
    states = MemoryStates()
    states.put("a", b"unchanged")
    states.commit()
    first, second = states.save(tmp_path, 1), states.save(tmp_path, 2)
    (tmp_path / first["segments"][0]).unlink()
    states.load(tmp_path, second)
    assert states.get("a") == b"unchanged"


def test_nothing_is_written_for_no_states(make, tmp_path):
    assert make().save(tmp_path, 1) == {"segments": [], "clients": {}}
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
    segment = tmp_path / saved["segments"][0]
    for damaged in (b"preCious", b"prec", b""):
        segment.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="state of client 'a' in states-.* is damaged"):
            make().load(tmp_path, saved)
    segment.unlink()
    with pytest.raises(CheckpointError, match=r"states-.*\.bin cannot be read: No such file"):
        make().load(tmp_path, saved)
    segment.mkdir()
    with pytest.raises(CheckpointError, match=r"states-.*\.bin cannot be read: Is a directory"):
        make().load(tmp_path, saved)


def test_locations_that_cannot_be_are_refused(make, tmp_path):
    states = make()
    states.put("a", b"precious")
    states.commit()
    saved = states.save(tmp_path, 1)
    for location in ([0, 0, 10**18, 0], [0, 10**30, 8, 0], [0, 4, 8, 0]):
        with pytest.raises(CheckpointError, match="is damaged"):
            make().load(tmp_path, {**saved, "clients": {"a": location}})
    with pytest.raises(FormatError, match="lies in segment 7, got no such"):
        make().load(tmp_path, {**saved, "clients": {"a": [7, 0, 8, 0]}})


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
    segment = tmp_path / saved["segments"][0]
    segment.unlink()
    segment.symlink_to(target)
    with pytest.raises(CheckpointError, match="must be a file, got a link"):
        make().load(tmp_path, saved)
