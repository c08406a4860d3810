import pytest

from concordfl import CheckpointError
from concordfl.engine.client_states import MANY_SEGMENTS, DiskStates, MemoryStates


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


def test_saved_states_come_back_however_many_rounds_later(make, tmp_path):
    states = make()
    for round in range(3 * MANY_SEGMENTS):
        states.put(f"client-{round % 20}", f"state {round}".encode())
        states.commit()
        places = states.save(tmp_path, round)
        assert len({place.segment for place in places.values()}) <= MANY_SEGMENTS + 1
    again = make()
    again.load(tmp_path, places)
    assert again.digest() == states.digest()
    assert again.get("client-3") == b"state 23"
    again.put("client-3", b"newer")
    assert again.get("client-3") == b"newer"


def test_a_damaged_state_is_noticed(make, tmp_path):
    states = make()
    states.put("a", b"precious")
    states.commit()
    places = states.save(tmp_path, 1)
    segment = tmp_path / places["a"].segment
    segment.write_bytes(b"preCious")
    with pytest.raises(CheckpointError, match="state of client 'a' in states-.* is damaged"):
        make().load(tmp_path, places)
    segment.unlink()
    with pytest.raises(CheckpointError, match="state of client 'a' cannot be read"):
        make().load(tmp_path, places)
