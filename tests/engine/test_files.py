import hashlib
import json
import os
import random
from typing import Any

import pytest
from typing_extensions import TypedDict

from concordfl import CheckpointError, FormatError
from concordfl.core.errors import OtherFormatError
from concordfl.engine import files
from concordfl.engine.files import SealedJson, file_name, read_file, write_atomically


class Content(TypedDict):
    number: int
    names: list[str]
    more: dict[str, Any]


KIND = SealedJson(Content, format=2, advice="remove it and look into {folder}", indent=2)
CONTENT = {"number": 3, "names": ["a", "ü"], "more": {"x": [1.5, None], "nan": float("inf")}}


def reseal(body):
    """A file as only a stranger would make it: edited, and sealed again."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return json.dumps({**body, "sha256": hashlib.sha256(text.encode()).hexdigest()})


# --- bytes ----------------------------------------------------------------------------------------


def test_atomic_writing_leaves_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, "old")

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("concordfl.engine.files.os.fsync", full)
    with pytest.raises(CheckpointError, match="file cannot be written: No space left on device"):
        write_atomically(path, "new")
    assert path.read_text() == "old"


def test_writing_never_goes_through_a_link(tmp_path):
    target = tmp_path / "target"
    target.write_text("somebody's")
    for name in ("file", "file.partial"):
        (tmp_path / name).symlink_to(target)
    write_atomically(tmp_path / "file", "ours")
    assert (tmp_path / "file").read_text() == "ours"
    (tmp_path / "log").symlink_to(target)
    with pytest.raises(CheckpointError, match="log must be a file, got a link"):
        files.append(tmp_path / "log", b"ours")
    assert target.read_text() == "somebody's"


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "device", "nothing", "secret"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "file"
    (tmp_path / "target").write_text("somebody's")
    if kind == "link":
        path.symlink_to(tmp_path / "target")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "secret":
        if os.getuid() == 0:
            pytest.skip("root may read everything")
        path.touch(mode=0)
    elif kind == "device":
        path = files.Path("/dev/zero")
    with pytest.raises(CheckpointError, match=f"{path.name} (must be a file|cannot be read)") as e:
        read_file(path)
    assert "\n" not in str(e.value)


def test_links_anywhere_in_a_folder_are_refused_by_name(tmp_path):
    (tmp_path / "a/b").mkdir(parents=True)
    files.refuse_links(tmp_path)
    (tmp_path / "a/b/c").symlink_to("nowhere")
    with pytest.raises(CheckpointError, match="must not hold links, got .*a/b/c: replace it"):
        files.refuse_links(tmp_path)


# --- names ----------------------------------------------------------------------------------------

NAMES = ["a", "site 3", "a/b", "..", "", "ä", "ж" * 41, "ж" * 500, "漢" * 28, "x" * 300, "x" * 301,
         "caf\udce9", "\ud800" * 90, "a%2Fb", "a\0b", "[red]", "x" * 191 + "жж"]  # fmt: skip


def test_names_of_files_are_legal_readable_and_different(tmp_path):
    made = [file_name(id, ".safetensors") for id in NAMES]
    assert len(set(made)) == len(NAMES)
    for name in made:
        write_atomically(tmp_path / name, name)
        assert len(os.fsencode(name)) + len(".partial") <= 255
    assert len(list(tmp_path.iterdir())) == len(NAMES)
    assert made[:3] == ["a.safetensors", "site 3.safetensors", "a%2Fb.safetensors"]
    assert file_name("x" * 300, ".json").startswith("x" * 100 + "+")
    shortened = file_name("ж" * 41, ".json")
    assert file_name(shortened.removesuffix(".json"), ".json") != shortened


# --- sealed JSON ----------------------------------------------------------------------------------


def test_what_was_written_is_read_and_is_pleasant_to_look_at(tmp_path):
    path = tmp_path / "file.json"
    assert KIND.read(path) is None
    KIND.write(path, CONTENT)
    assert KIND.read(path) == CONTENT
    lines = path.read_text().splitlines()
    assert lines[:3] == ["{", '  "format": 2,', '  "number": 3,']
    assert lines[-2].startswith('  "sha256": "')
    body = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(body.items()))))  # another layout, the same content
    assert KIND.read(path) == CONTENT


def test_what_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(FormatError, match="number must be a valid integer, got '3'"):
        KIND.write(tmp_path / "file.json", {**CONTENT, "number": "3"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it must be JSON, got Expecting value"),
        (b"\xff\xfe", "it must be JSON, got 'utf-8' codec"),
        (b"[" * 100_000, "it must be JSON, got maximum recursion"),
        (b'{"format": 2, "a": ' + b"[" * 300 + b"]" * 300 + b"}", "its content must"),
        (b"[]", r"it must be a JSON object, got \[\]"),
        (b"NaN", "it must be a JSON object, got nan"),
        (b"{}", "format must be a whole number >= 1, got None"),
        (b'{"format": true}', "format must be a whole number >= 1, got True"),
        (b'{"format": "2"}', "format must be a whole number >= 1, got '2'"),
        (b'{"format": 2}', "its content must have the sha256 that it names, got another"),
        (b'{"format": 2, "sha256": 7}', "its content must have the sha256 that it names"),
        (reseal({"format": 2}).encode(), "number must be there, got nothing"),
        (reseal({"format": 2, **CONTENT, "number": "3"}).encode(), "number must be a valid int"),
        (reseal({"format": 2, **CONTENT, "number": True}).encode(), "number must be a valid int"),
        (reseal({"format": 2, **CONTENT, "names": [[]]}).encode(), "names.0 must be a valid str"),
        (reseal({"format": 2, **CONTENT, "more": []}).encode(), "more must be a valid dict"),
    ],
)
def test_what_is_wrong_is_one_line_with_file_reason_and_advice(tmp_path, content, reason):
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(
        FormatError, match=rf"file.json is damaged or was edited \({reason}.*\): remove it and look"
    ) as caught:
        KIND.read(path)
    assert str(caught.value).endswith(f"look into {tmp_path}")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("content", "found"), [(b'{"format": 1, "sha256": "x"}', "1"), (b'{"rounds": 3}', "none")]
)
def test_an_older_format_is_not_called_damage(tmp_path, content, found):
    """Nobody shall be told to remove what another version can read."""
    (tmp_path / "file.json").write_bytes(content)
    rule = f"file.json: written by an older concordfl: format must be 2, got {found}$"
    with pytest.raises(OtherFormatError, match=rule):
        KIND.read(tmp_path / "file.json")


def test_a_newer_format_is_refused_clearly(tmp_path):
    path = tmp_path / "file.json"
    path.write_text(reseal({"format": 3, "news": 1}))
    with pytest.raises(
        OtherFormatError,
        match=r"file.json: written by a newer concordfl: format must be <= 2, got 3$",
    ):
        KIND.read(path)


def test_every_edit_is_noticed(tmp_path):
    path, rng = tmp_path / "file.json", random.Random(0)
    KIND.write(path, CONTENT)
    whole = path.read_bytes()
    noticed = 0
    for _ in range(150):
        data = bytearray(whole)
        where = rng.randrange(len(data))
        data[where : where + rng.randrange(2)] = rng.choice([b"", b"7", b'"', b" ", b"\xc3", b"{"])
        path.write_bytes(data)
        try:
            assert KIND.read(path) == CONTENT  # only white space was touched
        except FormatError:
            noticed += 1
    assert noticed > 100
