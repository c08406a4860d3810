"""Own data that are damaged, hostile or strange: one line each, never a traceback or a hang."""

import io
import os
import struct
import sys
import warnings
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from concordfl import DataError, Key
from concordfl.data.own import Folder, Table
from concordfl.data.samples import read_samples
from concordfl.data.text import reason

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX files")
ROWS = np.arange(12.0).reshape(6, 2)


def folder(path):
    return Folder(folder=str(path)).load(Key(0))


def table(path, **options):
    return Table(table=str(path), **options).load(Key(0))


def refusal(call, *arguments, **options):
    """The message of the refusal, which is one line that can be printed anywhere."""
    with pytest.raises(DataError) as error:
        call(*arguments, **options)
    message = str(error.value)
    message.encode()
    assert len(message.splitlines()) == 1
    assert message.isprintable()
    return message


def npz_bytes(compress=True, **arrays):
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **arrays)
    return file.getvalue()


def image_bytes(kind):
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(256, size=(12, 10, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


# --- .npz -----------------------------------------------------------------------------------------


def with_compression(method):
    """An .npz file whose members claim another compression."""
    data = bytearray(npz_bytes(x=ROWS, y=np.arange(6)))
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = 0
        while (start := data.find(signature, start)) >= 0:
            data[start + offset : start + offset + 2] = struct.pack("<H", method)
            start += 4
    return bytes(data)


def with_damaged_stream():
    """An .npz file whose deflate streams are cut to pieces."""
    data = bytearray(npz_bytes(x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50)))
    data[120:160] = b"\xff" * 40
    return bytes(data)


def with_header(text):
    """An .npz file whose array x has the given header and no data."""
    file = io.BytesIO()
    header = text.encode() + b"\n"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        with_damaged_stream(),
        with_compression(99),
        with_compression(14),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,)}"),
        with_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-3,)}"),
        with_header("{'descr': 'nonsense', 'fortran_order': False, 'shape': (3,)}"),
        with_header("(" * 2000),
        npz_bytes(x=np.array([ROWS, None], dtype=object)),
        b"",
        b"\x93NUMPY",
    ],
)
def test_damaged_npz_files(tmp_path, content):
    (tmp_path / "a.npz").write_bytes(content)
    assert f"{tmp_path}/a.npz must be a readable .npz file: " in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": ROWS, "y": np.array([(1, 2.0)] * 6, dtype="i4,f4")}, "numbers or text"),
        ({"x": ROWS, "y": np.arange(6).astype("M8[D]")}, "labels must be numbers or text"),
        ({"x": ROWS, "y": np.arange(6) * 1j}, "labels must be numbers or text, got 'complex128'"),
        ({"x": ROWS, "y": np.array([b"\xff"] * 6)}, "must have labels that are UTF-8 text"),
        ({"x": ROWS, "y": np.array(["a", " "] * 3)}, "every label must not be blank, got ' '"),
        ({"x": np.array([(1, 2.0)] * 6, dtype="i4,f4"), "y": np.arange(6)}, "rows of numbers"),
        ({"x": ROWS[:, :0], "y": np.arange(6)}, "got shape (6, 0)"),
        ({"x": np.float64(3), "y": np.arange(6)}, "got shape ()"),
        ({"x": ROWS * 1e300, "y": np.arange(6)}, "must fit into 32-bit floats, got 1.1e+301"),
    ],
)
def test_arrays_of_types_that_are_no_examples(tmp_path, arrays, message):
    np.savez(tmp_path / "a.npz", **arrays)
    assert message in refusal(folder, tmp_path)


@pytest.mark.parametrize(
    ("name", "rule"), [("x", "rows of numbers"), ("y", "one label per example")]
)
def test_entries_of_an_archive_that_are_no_arrays(tmp_path, name, rule):
    """numpy hands an entry that does not begin as an array over as bytes."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for each, values in {"x": ROWS, "y": np.arange(6)}.items():
            entry = io.BytesIO()
            np.save(entry, values)
            begin = b"?" if each == name else b""
            archive.writestr(f"{each}.npy", begin + entry.getvalue())
    assert rule in refusal(folder, tmp_path)


def test_labels_of_several_types_are_the_same_classes(tmp_path):
    labels = {
        "bools": np.array([False, True] * 3),
        "bytes": np.array([b"0", b"1"] * 3),
        "floats": np.array([0.0, 1.0] * 3),
        "small": np.array([0, 1] * 3, dtype=np.int8),
        "texts": np.array(["0", "1.0"] * 3),
    }
    for name, y in labels.items():
        np.savez(tmp_path / f"{name}.npz", x=ROWS, y=y)
    data = folder(tmp_path)
    assert data.classes == ("0", "1")
    assert data.train.y.tolist() == [0, 1] * 15


def test_clients_of_different_types(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 3, 3, 1), np.uint8), y=[0, 1, 0, 1])
    np.savez(tmp_path / "b.npz", x=np.zeros((4, 3, 3, 1)), y=[0, 1, 0, 1])
    assert refusal(folder, tmp_path) == (
        "client 'b': examples must be of the type uint8 of client 'a', got float32"
    )


# --- images ---------------------------------------------------------------------------------------


def bomb(side):
    """A PNG of a few bytes that claims to be an image of side x side pixels."""

    def chunk(kind, content):
        data = kind + content
        return struct.pack(">I", len(content)) + data + struct.pack(">I", zlib.crc32(data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, content)
        for kind, content in ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
    )


@pytest.mark.parametrize("side", [10_000, 100_000])  # Pillow warns of one, and refuses the other
def test_decompression_bombs(tmp_path, side):
    (tmp_path / "client/cat").mkdir(parents=True)
    (tmp_path / "client/cat/bomb.png").write_bytes(bomb(side))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as outside of tests, where a warning stops nothing
        message = refusal(folder, tmp_path)
    assert "bomb.png must be an image: Image size" in message


# --- .csv -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,a,y\nn,1\0,0\n", "line 2: must be text, got a null byte"),
        ("client,a,y\nn,1,0\n,2,1\n", "line 3: every row must name its client in column 'client'"),
        ("client,a,y\nn,1,0\n  ,2,1\n", "in column 'client', got ''"),
        ("client,a,y\n\n?,2,1\n", "line 3: every row must name its client in column 'client'"),
        ("client,a,y\nNA,2,1\n", "line 2: every row must name its client in column 'client'"),
        ("client,a,y,y\nn,1,0,1\n", "columns must have different names, got several called y"),
        ("client,a,a,y\nn,1,0,1\n", "columns must have different names, got several called a"),
        ("client,client,a,y\nn,1,0,1\n", "different names, got several called client"),
        ("client,,,y\nn,1,0,1\n", "different names, got several called ''"),
        ("client,y\nn,1\n", "must have a column of features, got client, y alone"),
        ("client,a,y\nn,1_000,0\n", "column 'a' must be a number or missing, got '1_000'"),
        ('"cli\nent",a,y\nn,1,0\n', "must have a column called 'client', got 'cli\\nent', a, y"),
        ("client,a,y\n" + "n" * 200_000 + ",1,0\n", "must be a readable .csv file: field larger"),
        (b"client,a,y\n\xff,1,0\n", "must be a readable .csv file: 'utf-8' codec can't decode"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, message):
    path = tmp_path / "all.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in refusal(table, path)


def test_the_label_comes_from_one_column(tmp_path):
    """A second column of labels must not become a feature that gives the answer away."""
    (tmp_path / "a.csv").write_text("y,a,y\n0,1,0\n1,2,1\n")
    assert "got several called y" in refusal(folder, tmp_path)


def test_lines_are_numbered_as_in_the_file(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n\n1,0\n\n1e99,1\n")
    assert "line 5: column 'x' must be a number" in refusal(folder, tmp_path)


def test_a_long_message_is_cut(tmp_path):
    (tmp_path / "a.csv").write_text(",".join(f"column-{n}" for n in range(5000)) + "\n")
    assert len(refusal(folder, tmp_path)) < 500 + len(str(tmp_path))


# --- what is no regular file ----------------------------------------------------------------------


@POSIX
def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    assert "pipe.csv must be a file, got a named pipe" in refusal(table, tmp_path / "pipe.csv")
    assert "pipe.csv must be a file, got a named pipe" in refusal(folder, tmp_path)
    assert Folder(folder=str(tmp_path)).fingerprint() == Folder(folder="nowhere").fingerprint()
    assert refusal(table, "/dev/zero") == "/dev/zero must be a file, got a device"
    assert refusal(read_samples, tmp_path / "pipe.csv").endswith("got a named pipe")
    os.mkfifo(tmp_path / "pipe.npz")
    assert refusal(read_samples, tmp_path / "pipe.npz").endswith("got a named pipe")
    (tmp_path / "client/cat").mkdir(parents=True)
    os.mkfifo(tmp_path / "client/cat/pipe.png")
    assert refusal(read_samples, tmp_path / "client").endswith("got a named pipe")


def test_a_folder_is_no_table(tmp_path):
    assert refusal(table, tmp_path) == f"{tmp_path} must be a file, got a folder"
    assert Table(table=str(tmp_path)).fingerprint() == Table(table="nowhere").fingerprint()


@pytest.mark.parametrize("name", ["a\0b", "n" * 5000])
def test_names_that_no_file_can_have(name):
    for call in (table, folder, lambda path: Table(table=path).fingerprint()):
        assert "must be readable: " in refusal(call, name)


def test_errors_of_the_file_system_name_the_file(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    (tmp_path / "a.csv").write_text("x,y\n1,0\n2,1\n")
    np.savez(tmp_path / "b.npz", x=ROWS, y=np.arange(6))
    with monkeypatch.context() as patch:
        patch.setattr("builtins.open", fail)
        for call in (
            lambda: table(tmp_path / "a.csv", client="x"),
            lambda: read_samples(tmp_path / "b.npz"),
            lambda: Table(table=str(tmp_path / "a.csv")).fingerprint(),
        ):
            message = refusal(call)
            assert message.startswith(str(tmp_path))
            assert message.endswith("Input/output error")
    monkeypatch.setattr("pathlib.Path.iterdir", fail)
    assert refusal(folder, tmp_path).startswith(f"{tmp_path} must be a readable folder: ")


def test_reasons_are_one_line_whatever_was_raised():
    assert reason(KeyError("X")) == "KeyError: 'X'"
    assert reason(ValueError("first\nsecond")) == "first"
    assert reason(ValueError("\x1b[31mred")) == repr("\x1b[31mred")
    assert reason(EOFError()) == "EOFError"
    assert len(reason(ValueError("x" * 10_000))) == 200


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="needs file names of any bytes")
def test_names_that_are_not_utf8(tmp_path):
    name = os.fsdecode(b"caf\xe9")
    (tmp_path / f"{name}.csv").write_text("x,y\n1,0\n2,1\n")
    assert Folder(folder=str(tmp_path)).fingerprint()
    assert refusal(folder, tmp_path).endswith("must be UTF-8 text, got 'caf\\udce9'")
    (tmp_path / f"{name}.csv").unlink()
    (tmp_path / "client" / name).mkdir(parents=True)
    assert refusal(folder, tmp_path).endswith("must be UTF-8 text, got 'caf\\udce9'")
    (tmp_path / name).mkdir()
    (tmp_path / name / "a.csv").write_text("x,y\n1e99,one\n")
    assert "caf\\udce9" in refusal(folder, tmp_path / name)


def test_a_client_without_a_name(tmp_path):
    (tmp_path / " .csv").write_text("x,y\n1,0\n2,1\n")
    assert refusal(folder, tmp_path).endswith("must not be blank, got ' '")


# --- at random ------------------------------------------------------------------------------------


WHOLE = {
    "a.npz": npz_bytes(x=np.random.default_rng(1).normal(size=(9, 3)), y=np.arange(9) % 3),
    "plain.npz": npz_bytes(compress=False, x=ROWS, y=np.array(list("ababab"))),
    "a.csv": b"a,b,y\n1,2.5,yes\n3,?,no\n-1e3,,yes\n",
    "c/one/a.png": image_bytes("PNG"),
    "c/one/a.jpg": image_bytes("JPEG"),
    "c/one/a.gif": image_bytes("GIF"),
    "c/one/a.tiff": image_bytes("TIFF"),
    "c/one/a.webp": image_bytes("WEBP"),
    "c/one/a.ppm": image_bytes("PPM"),
    "c/one/a.bmp": image_bytes("BMP"),
}


def mutate(data, rng):
    """The data with some bytes changed, cut off, doubled or exchanged."""
    data = bytearray(data)
    for _ in range(rng.integers(1, 6)):
        start, stop = sorted(rng.integers(len(data) + 1, size=2).tolist())
        kind = rng.integers(4)
        if kind == 0:
            data[start : start + 1] = bytes(rng.integers(256, size=1, dtype=np.uint8))
        elif kind == 1 and start:
            del data[start:]
        elif kind == 2:
            data[start:start] = data[start : min(stop, start + 50)]
        else:
            noise = rng.integers(256, size=min(stop - start, 8), dtype=np.uint8)
            data[start : start + len(noise)] = noise.tobytes()
    return bytes(data)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of much that it can read all the same
@pytest.mark.parametrize("name", WHOLE)
def test_files_that_were_changed_at_random(tmp_path, name):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(list(name.encode()))
    path = tmp_path / ("c" if name.startswith("c/") else name)
    for _ in range(40):
        (tmp_path / name).write_bytes(mutate(WHOLE[name], rng))
        message, samples = "", None
        try:
            samples = read_samples(path)
        except DataError as error:
            message = str(error)
        assert len(message.splitlines()) == (samples is None)
        if samples is not None:
            assert samples.x.dtype in (np.float32, np.uint8)
            assert samples.labels is None or len(samples.labels) == len(samples.x)
