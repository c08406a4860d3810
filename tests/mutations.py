"""Damage for every kind of file that we read, each case repeatable by its name.

A case is a family and a number: `data-17` is always the same damage followed by the same command.
`judge` says how a command ended: refused in a line, accepted with the same result, or wrong.

    PYTHONPATH=src:tests python tests/mutations.py folders-17 data-3    # repeat these cases
    PYTHONPATH=src:tests python tests/mutations.py 3000                 # a table of so many cases
"""

import collections
import contextlib
import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import struct
import sys
import tempfile
import tomllib
import traceback
import unicodedata
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tomli_w
from PIL import Image

import concordfl as cf
from command import Done, concordfl
from concordfl.algorithms import ALGORITHMS
from concordfl.core import Aggregation, DataError, ObjectiveChoice, Training
from concordfl.core.optim import SCHEDULES
from concordfl.data.datasets import DATASETS
from concordfl.engine.files import canonical_json
from concordfl.engine.plan import Plan
from concordfl.models import MODELS
from concordfl.models.options import WIDTH_COPIES, _adapters
from concordfl.scenarios import NAMED, PARTITIONS, SHIFTS, Scenario
from concordfl.study import compare as comparison

Generator = np.random.Generator

MAX_SECONDS = 20  # of a case, on a busy machine
REFUSED, SAME, ACCEPTED = "refused in a line", "same result", "accepted"
TRACEBACK, HANG, CHANGE = "traceback", "hang", "silent change"
UNCLEAN = "other"  # raw warnings, several lines, files changed outside, processes left
WRONG = (TRACEBACK, HANG, CHANGE, UNCLEAN)

# the share of each family in all cases
SHARES = {"folders": 0.35, "joined": 0.1, "data": 0.25, "settings": 0.2, "kept": 0.1}


class Verdict(NamedTuple):
    """How a case ended, and what there is to say about it."""

    kind: str
    case: str
    text: str = ""

    @property
    def wrong(self) -> bool:
        return self.kind in WRONG


class Prepared(NamedTuple):
    """A damaged input in a folder, and the command that is to be called there."""

    what: str  # the damage in words
    arguments: tuple[str, ...]
    # what is wrong with a result that was accepted; None where nothing is
    compare: Callable[[Done], str | None] | None = None


class TooLong(BaseException):
    """The watchdog's; no `except Exception` holds it up."""


# --- the verdict ----------------------------------------------------------------------------------


@contextlib.contextmanager
def watchdog(seconds: int) -> Iterator[None]:
    """Raise TooLong in whatever runs for longer."""

    def end(number: int, frame: Any) -> None:
        raise TooLong("".join(traceback.format_stack(frame, limit=6)))

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def visible_warnings() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings that Python would print."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for hidden in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", hidden)
        warnings.simplefilter("ignore", ResourceWarning)
        yield caught


def offline(*_: Any, **__: Any) -> Any:
    raise DataError("nothing is fetched in tests, got a data set that is not there")


def judge(case: str, folder: Path, prepared: Prepared) -> Verdict:
    """Call the command and look at all that it leaves behind."""
    label = f"{case}: {prepared.what}: {' '.join(prepared.arguments)}"
    outside = snapshot(folder, below=("outside", "data"))
    try:
        with (
            visible_warnings() as caught,
            mock.patch("os.fsync"),  # slow, and no power fails here
            mock.patch("urllib.request.urlopen", offline),
            mock.patch.dict(os.environ, {"CONCORDFL_DATA": str(folder / "nowhere")}),
            watchdog(MAX_SECONDS),
        ):
            done = concordfl(folder, *prepared.arguments)
    except TooLong as late:
        return Verdict(HANG, label, str(late))
    except BaseException as error:  # whatever it is, it was not answered
        if isinstance(error, KeyboardInterrupt):
            raise
        return Verdict(TRACEBACK, label, "".join(traceback.format_exception(error)[-8:]))
    unclean = _unclean(done, caught) or _left_behind()
    if snapshot(folder, below=("outside", "data")) != outside:
        unclean = "files outside the run folder were changed"
    if unclean:
        return Verdict(UNCLEAN, label, f"{unclean}\n{done.stdout[-500:]}\n{done.stderr[-1500:]}")
    if done.returncode != 0:
        return Verdict(REFUSED, label, done.stderr)
    if prepared.compare is None:
        return Verdict(ACCEPTED, label)
    difference = prepared.compare(done)
    return Verdict(CHANGE, label, difference) if difference else Verdict(SAME, label)


def _unclean(done: Done, caught: list[warnings.WarningMessage]) -> str | None:
    if caught:
        return f"a raw warning: {caught[0].category.__name__}: {caught[0].message}"
    steering = {
        letter
        for letter in done.stdout + done.stderr
        if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cs")
    }
    if steering:
        return f"control characters {steering}"
    if done.returncode == 0:
        return "exit code 0 and a complaint" if done.stderr else None
    if done.returncode != 2:
        return f"exit code {done.returncode}"
    usage = done.stderr.startswith("Usage: ")
    line = done.stderr.startswith("concordfl: ") and done.stderr.count("\n") == 1
    return None if usage or line else "not one line that begins with concordfl:"


def _left_behind() -> str | None:
    children = multiprocessing.active_children()
    for child in children:
        child.kill()
    return f"worker processes left: {children}" if children else None


def snapshot(folder: Path, below: tuple[str, ...]) -> dict[str, bytes]:
    """The content of regular files below some folders."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in below
        for path in sorted((folder / name).rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


# --- damage to bytes ------------------------------------------------------------------------------


def pick(rng: Generator, values: Any) -> Any:
    values = list(values)
    return values[int(rng.integers(len(values)))]


def noise(rng: Generator, count: int) -> bytes:
    return rng.integers(256, size=count, dtype=np.uint8).tobytes()


def damage_bytes(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """The data with bits flipped, or a part cut off, taken out, doubled or put in."""
    size = max(len(data), 1)
    start, stop = sorted(rng.integers(size + 1, size=2).tolist())
    kind = pick(rng, ("flip", "flip", "truncate", "insert", "delete", "double", "zero", "longer"))
    if kind == "flip":
        changed = bytearray(data or b"\0")
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
        return f"{kind} bits", bytes(changed)
    replaced = {
        "truncate": data[:start],
        "insert": data[:start] + noise(rng, 6) + data[start:],
        "delete": data[:start] + data[stop:],
        "double": data[:stop] + data[start:],
        "zero": data[:start] + bytes(stop - start) + data[stop:],
        "longer": data + noise(rng, 30),
    }
    return f"{kind} {start}:{stop}", replaced[kind]


# What a number, a text or a table in one of our files might be replaced by.
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 7, 10**9, 10**10, 2**63, 10**30, -(10**30), 0.0, -0.5, 0.5,
    1.5, 1e-300, 1e300, float("nan"), float("inf"), -float("inf"), "", " ", "a", "0", "nan",
    "\u0000", "\u001b[31m", "[/x]", "ж" * 300, "漢", "\ud800", "../../outside/kept.txt",
    "/dev/zero", "os:system", "subprocess:Popen", "x" * 5000, [], {}, [[]], [1, 2, 3], ["a"],
    [None], {"a": 1}, {"": None}, [10**30], "serial", "processes", "cuda", "0" * 64,
)  # fmt: skip
MAX_SECTIONS_DEEP = 100_000


def locations(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all parts of a JSON or TOML value."""
    found = [path] if path else []
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in items:
        found += locations(item, (*path, key))
    return found


def edit(value: Any, rng: Generator, odd: tuple[Any, ...]) -> str:
    """Change `value`, a dict, at one place: replace, remove, add or exchange."""
    paths = locations(value)
    path = pick(rng, paths)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    kind = pick(rng, ("replace", "replace", "replace", "remove", "add", "exchange", "nudge"))
    name = ".".join(map(str, path))[:60]
    if kind == "remove":
        del parent[path[-1]]
    elif kind == "add" and isinstance(parent, dict):
        parent[pick(rng, ("unknown", "", "format", "name", "\u001b[2J"))] = pick(rng, odd)
    elif kind == "nudge" and type(parent[path[-1]]) in (int, float):
        parent[path[-1]] += pick(rng, (1, -1, 1000, 1e-9))
    elif kind == "exchange":
        other = value
        for key in pick(rng, paths):
            other = other[key]
        parent[path[-1]] = json.loads(json.dumps(other))
    else:
        parent[path[-1]] = pick(rng, odd)
        return f"{name} = {str(parent[path[-1]])[:30]!r}"
    return f"{kind} {name}"


def sealed(body: dict[str, Any]) -> dict[str, Any]:
    """The content with a seal that fits: an edit by somebody who knows how."""
    body = {key: value for key, value in body.items() if key != "sha256"}
    return {**body, "sha256": hashlib.sha256(canonical_json(body)).hexdigest()}


def edit_json(data: bytes, rng: Generator, seal: bool) -> tuple[str, bytes]:
    """One JSON object, changed in its content, its keys or its depth."""
    body = json.loads(data)
    kind = pick(rng, ("edit", "edit", "edit", "edit", "deep", "twice", "other", "space"))
    if kind == "deep":
        depth = int(pick(rng, (50, 900, MAX_SECTIONS_DEEP)))
        return f"{depth} levels", data[:-2] + b',"a":' + b"[" * depth + b"]" * depth + b"}\n"
    if kind == "twice":
        key = json.dumps(pick(rng, body))
        return f"{key} twice", b"{" + f"{key}: 7, ".encode() + data.lstrip()[1:]
    if kind == "other":
        return "other JSON", pick(rng, (b"[]", b"7", b'"a"', b"null", b"NaN", b"1" * 5000, b"{}"))
    if kind == "space":
        return "white space", json.dumps(body, indent=3).encode()
    words = edit(body, rng, ODD_VALUES)
    if seal:
        words, body = f"{words}, sealed", sealed(body)
    return words, json.dumps(body).encode() + b"\n"


def edit_lines(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """Lines of JSON: one edited, left out, doubled, or two exchanged."""
    lines = data.splitlines(keepends=True)
    index, other = (int(rng.integers(len(lines))) for _ in range(2))
    kind = pick(rng, ("edit", "edit", "edit", "remove", "double", "exchange", "cut", "blank"))
    words = kind
    if kind == "edit":
        words, lines[index] = edit_json(lines[index], rng, seal=False)
    elif kind == "remove":
        del lines[index]
    elif kind == "double":
        lines.insert(other, lines[index])
    elif kind == "exchange":
        lines[index], lines[other] = lines[other], lines[index]
    elif kind == "cut":
        lines[-1] = lines[-1][: int(rng.integers(len(lines[-1])))]
    else:
        lines.insert(index, pick(rng, (b"\n", b"\r\n", b" \n", b"\x0b\n", b"\xff\n")))
    return f"line {index}: {words}", b"".join(lines)


TOML_VALUES = tuple(
    value
    for value in ODD_VALUES
    if value not in (None, [None], {"": None}) and "\ud800" not in str(value)
)


def edit_toml(data: bytes, rng: Generator) -> tuple[str, bytes]:
    table = tomllib.loads(data.decode())
    words = edit(table, rng, TOML_VALUES)
    try:
        return words, tomli_w.dumps(table).encode()
    except (TypeError, ValueError):
        return "no TOML", b"= [\n"


def edit_tensors(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """A safetensors file: its header is JSON."""
    length = struct.unpack("<Q", data[:8])[0]
    if rng.integers(6) == 0:
        claim = int(pick(rng, (0, 1, length - 1, length + 1, 2**31, 2**63)))
        return f"header of {claim} bytes", struct.pack("<Q", claim) + data[8:]
    header = json.loads(data[8 : 8 + length])
    words = edit(header, rng, ODD_VALUES)
    text = json.dumps(header).encode()
    return f"header: {words}", struct.pack("<Q", len(text)) + text + data[8 + length :]


ODD_ARRAYS: tuple[Any, ...] = (
    np.array(2), np.zeros(0), np.zeros((3, 0)), np.zeros((16, 4)), np.full((16, 4), np.nan),
    np.full((16, 4), np.inf), np.full((16, 4), 1e300), np.zeros((16, 4), np.int8),
    np.zeros((16, 4), np.float16), np.zeros((16, 4), bool), np.zeros((16, 4, 2, 2, 2)),
    np.zeros((16, 5, 5), np.uint8), np.zeros((16, 1, 1, 1), np.uint8), np.zeros((16, 4), "c8"),
    np.zeros((16, 8, 8, 7), np.uint8), np.array(["a"] * 16), np.array([b"\xff"] * 16),
    np.array(["\x00", "\x1b[31m"] * 8), np.arange(16) % 2, np.arange(16), np.arange(16) * 2**58,
    np.array([0, np.nan] * 8), np.array([None, 1] * 8, dtype=object), np.array([(1, 2.0)], "i4,f4"),
    np.array(["2026-01-01"] * 16, "M8[D]"), np.array(["ж" * 2000, "b"] * 8), np.ones(16) * -1,
    np.array(["[/x]", "a"] * 8), np.array(["", "a"] * 8), np.zeros((16, 4), ">f8"),
    np.array([0.5, 1e308] * 8), np.array([True, False] * 8), np.zeros((16, 4), np.longdouble),
)  # fmt: skip


def edit_npz(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """Arrays replaced, left out, added or called otherwise; or the archive itself changed."""
    with np.load(io.BytesIO(data)) as archive:
        arrays = dict(archive)
    name = pick(rng, arrays)
    kind = pick(rng, ("array", "array", "array", "remove", "rename", "dtype", "values", "zip"))
    words = f"{kind} {name}"
    if kind == "array":
        index = int(rng.integers(len(ODD_ARRAYS)))
        words, arrays[name] = f"{name} = odd array {index}", ODD_ARRAYS[index]
    elif kind == "remove":
        del arrays[name]
    elif kind == "rename":
        arrays[pick(rng, ("z", "", "../x", "x/y", "é", "number:a", "json:a"))] = arrays.pop(name)
    elif kind == "dtype":
        kind = pick(rng, ("f2", "f4", "f8", "i1", "u8", "U3", "S2", "?", "c16", ">i4"))
        words = f"{name} as {kind}"
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arrays[name] = arrays[name].astype(kind)
    elif kind == "values" and arrays[name].size:
        flat = arrays[name].reshape(-1).copy()
        with np.errstate(all="ignore"):
            flat[rng.integers(flat.size)] = pick(rng, (0, 1, 255, 3))
        arrays[name] = flat.reshape(arrays[name].shape)
    elif kind == "zip":
        return edit_zip(data, rng)
    return words, npz_bytes(**arrays)


def npz_bytes(**arrays: Any) -> bytes:
    """Saved under any name, which numpy's own function does not allow."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, np.asanyarray(values), allow_pickle=True)
            archive.writestr(f"{name}.npy", entry.getvalue())
    return file.getvalue()


def edit_zip(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """Entries of an archive changed before they are packed, with checksums that fit."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as before, zipfile.ZipFile(file, "w") as after:
        victim = pick(rng, before.namelist())
        words = ""
        for name in before.namelist():
            content = before.read(name)
            if name == victim:
                words, content = damage_bytes(content, rng)
            after.writestr(name, content)
    return f"{victim}: {words}", file.getvalue()


# --- damage to files ------------------------------------------------------------------------------

LINK_TARGETS = ("outside/kept.txt", "outside", "/dev/zero", "/dev/null", "nowhere", "data/a.npz")


def replace_file(root: Path, path: Path, rng: Generator, *, pipes: bool = True) -> str:
    """Something else in a file's place: nothing, a folder, a pipe, a link, another file."""
    kind = pick(rng, ("nothing", "empty", "folder", "pipe", "link", "other", "copy", "huge"))
    others = [each for each in sorted(path.parent.iterdir()) if each.is_file()]
    alike = [each for each in others if each.suffix == path.suffix] or others
    other = pick(rng, alike) if rng.integers(2) else pick(rng, others)
    content = other.read_bytes()
    if kind == "copy":
        names = (f"manifest-{int(rng.integers(20)):08d}.json", "states-00000001.bin", "x.partial")
        target = path.with_name(pick(rng, (*names, "round-00000009.npz", path.name + ".partial")))
        if not target.exists():
            shutil.copyfile(path, target)
        return f"copied to {target.name}"
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
        if rng.integers(2):
            (path / "file").write_text("text")
    elif kind == "pipe" and pipes:
        os.mkfifo(path)
    elif kind == "link":
        target = pick(rng, LINK_TARGETS)
        path.symlink_to(root / target)
        return f"link to {target}"
    elif kind == "other":
        path.write_bytes(content)
        return f"content of {other.name}"
    elif kind == "huge":
        path.write_bytes(pick(rng, (b"\0", b"[", b"a = 1\n", b'{"a":', b"1", b",")) * 300_000)
    return kind


Editor = Callable[[bytes, Generator], tuple[str, bytes]]  # words, and what the file becomes
EDITORS: dict[str, Editor] = {
    ".toml": edit_toml,
    ".jsonl": edit_lines,
    ".npz": edit_npz,
    ".safetensors": edit_tensors,
    ".bin": edit_tensors,
}


def damage_content(data: bytes, rng: Generator, editor: Editor | None) -> tuple[str, bytes]:
    """What a file says, edited; its bytes where that cannot be."""
    with contextlib.suppress(Exception):  # already damaged, or nothing in it to edit
        if editor is not None:
            return editor(data, rng)
    return damage_bytes(data, rng)


def damage_file(root: Path, path: Path, rng: Generator) -> tuple[str, bool]:
    """Damage in words, and whether the file was sealed again so that it looks whole."""
    data, name = path.read_bytes(), path.relative_to(root)
    kind = pick(rng, ("bytes", "content", "content", "file"))
    if kind == "file":
        return f"{name}: {replace_file(root, path, rng)}", False
    seal = path.suffix == ".json" and bool(rng.integers(2))
    editors = {**EDITORS, ".json": partial(edit_json, seal=seal)}
    editor = editors.get(path.suffix) if kind == "content" else None
    words, data = damage_content(data, rng, editor)
    path.write_bytes(data)
    return f"{name}: {words}", seal and "sealed" in words


# --- what is damaged ------------------------------------------------------------------------------

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"name": "fedavg"},
    "apfl": {"name": "apfl"},
    "fedgmm": {"name": "fedgmm", "dimensions": 2, "num_gaussians": 2, "num_models": 2},
    "local": {"name": "local"},
}
RUNS = {**METHODS, "auto": {"name": "auto"}}
IN_MEMORY = ("fedavg", "local")
PLAN = {"rounds": 3, "executor": "serial", "checkpoint_seconds": 0.0, "evaluate_every": 1}
NEWCOMER = ("--data", "newcomer.npz")
PREDICT = ("predict", "run", *NEWCOMER, "--client", "newcomer", "-o", "predictions.csv")
KEPT_RUN_FILE = """
[run]
rounds = 1
executor = "serial"
[data]
folder = "data"
[model]
hidden = [4]
"""


class Halt(BaseException):
    """Stops a run in its middle."""


@dataclass(frozen=True)
class World:
    """Whole inputs and whole results, made once."""

    path: Path

    @classmethod
    def build(cls, path: Path) -> "World":
        world = cls(path)
        rng = np.random.default_rng(0)
        with contextlib.chdir(path), mock.patch("os.fsync"):
            _write_inputs(path, rng)
            for method in RUNS:
                world._run(method)
            world._run_on_mixed_table()
            for method in RUNS:
                world._use(method)
            Path("kept/kept.toml").write_text(KEPT_RUN_FILE)
            shutil.copytree("data", "kept/data")
            with mock.patch.object(comparison, "WORTH_KEEPING_SECONDS", 0.0):
                concordfl("kept", *COMPARE, "--keep", "--out", "first")
            shutil.rmtree("kept/first")
            Path("kept/expected.txt").write_text(concordfl("kept", *COMPARE).stdout)
        return world

    def _run(self, method: str) -> None:
        """One run that was finished, and one that was stopped before its last round."""
        states = "memory" if method in IN_MEMORY else "disk"

        def stop(event: Any) -> None:
            if event.turn.round == event.rounds - 1:
                raise Halt

        sections = {
            "run": {**PLAN, "client_states": states},
            "data": {"folder": "data"},
            "model": {"hidden": [4]},
            "algorithm": RUNS[method],
        }
        cf.run(**sections, out=f"runs/{method}-finished")
        with contextlib.suppress(Halt):
            cf.run(**sections, out=f"runs/{method}-stopped", on_round=stop)

    def _run_on_mixed_table(self) -> None:
        cf.run(
            run={**PLAN, "rounds": 1},
            data={**MIXED, "table": "own/mixed.csv"},
            model={"hidden": [4]},
            out="runs/mixed-finished",
        )

    def _use(self, method: str) -> None:
        """What `adapt` and `score` say of the whole run."""
        shutil.copytree(f"runs/{method}-finished", "run")
        for verb in ("adapt", "score"):
            done = concordfl(".", verb, "run", *NEWCOMER)
            if done.returncode == 0:
                (self.path / f"answers/{method}-{verb}.txt").write_text(done.stdout)
        for part in ("adapted", "scores"):
            if Path("run", part).exists():
                shutil.copytree(f"run/{part}", f"answers/{method}-{part}")
        if Path("run/adapted").exists():
            concordfl(".", *PREDICT)
            shutil.copyfile("predictions.csv", f"answers/{method}-predictions.csv")
        shutil.rmtree("run")

    def answer(self, method: str, verb: str) -> str | None:
        """What a whole run answers; None where it refuses."""
        file = self.path / f"answers/{method}-{verb}.txt"
        return file.read_text() if file.exists() else None


COMPARE = ("compare", "kept.toml", "--algorithms", "fedavg,local", "--seeds", "2")
OWN_FORMS = ("table", "csv", "npz", "images", "mixed", "numbers")
NUMBERS = ("price", ["price", "size"], ["new", "near"])  # what a table of numbers is asked for
MIXED = {  # a table with a column of every kind
    "table": "mixed.csv",
    "client": "site",
    "drop": ["id"],
    "group": "region",
    "split": "set",
}


def _write_inputs(path: Path, rng: Generator) -> None:
    for name in ("data", "outside", "answers", "runs", "kept", "own/csv", "own/npz", "own/images"):
        (path / name).mkdir(parents=True)
    (path / "outside/kept.txt").write_text("somebody's\n")
    for name in ("data/a", "data/b", "data/c", "newcomer", "own/npz/a", "own/npz/b"):
        x, y = rng.normal(size=(16, 4)), np.arange(16) % 3
        (path / f"{name}.npz").write_bytes(npz_bytes(x=x + y[:, None], y=y))
    rows = [f"{'ab'[i % 2]},{rng.normal():.3f},{rng.normal():.3f},{i % 3}" for i in range(24)]
    (path / "own/table.csv").write_text("client,age,height,y\n" + "\n".join(rows) + "\n")
    for name in "ab":
        lines = [row[2:] for row in rows if row.startswith(name)]
        (path / f"own/csv/{name}.csv").write_text("age,height,y\n" + "\n".join(lines) + "\n")
    sets = ("train", "train", "validation", "test")
    mixed = [
        f"{i},{'ab'[i % 2]},{'NS'[i % 2]},{sets[i // 2 % 4]},{rng.normal():.2f},{'mf?'[i % 3]},"
        f"{('red', 'green', '')[i // 2 % 3]},{i % 3}"
        for i in range(32)
    ]
    header = "id,site,region,set,age,sex,colour,y"
    (path / "own/mixed.csv").write_text("\n".join([header, *mixed]) + "\n")
    numbers = [
        f"{'ab'[i % 2]},{rng.normal():.2f},{100 + 10 * rng.normal():.2f},{rng.normal():.3f},"
        f"{i % 2},{i // 2 % 2}"
        for i in range(24)
    ]
    (path / "own/numbers.csv").write_text(
        "\n".join(["client,age,price,size,new,near", *numbers]) + "\n"
    )
    for client in "ab":
        for index, ending in enumerate(("png", "jpg", "gif", "bmp", "png", "jpg")):
            file = path / "own/images" / client / ("cat", "dog")[index % 2] / f"{index}.{ending}"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(file)


# --- family: run folders --------------------------------------------------------------------------

# Figures that tell how long something took, or what was met on the way.
TIMES = ("seconds", "damaged_checkpoints", "versions", "records_sha256", "sha256")


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_times(item) for key, item in value.items() if key not in TIMES}
    return [without_times(item) for item in value] if isinstance(value, list) else value


def results(folder: Path) -> dict[str, Any]:
    """All that a run leaves for its user."""
    records = (folder / "records.jsonl").read_text().splitlines()
    found: dict[str, Any] = {
        "summary.json": without_times(json.loads((folder / "summary.json").read_text())),
        "records.jsonl": [without_times(json.loads(line)) for line in records],
    }
    for path in (*folder.glob("models/**/*.safetensors"), *folder.glob("clients/round-*.npz")):
        if path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


def prepare_folder(world: World, folder: Path, rng: Generator) -> Prepared:
    """A file of a run folder is damaged, or two are; then the run is resumed or used."""
    method, end = pick(rng, RUNS), pick(rng, ("finished", "stopped"))
    whole = world.path / f"runs/{method}-finished"
    for name in ("data", "outside"):
        shutil.copytree(world.path / name, folder / name)
    shutil.copyfile(world.path / "newcomer.npz", folder / "newcomer.npz")
    shutil.copytree(world.path / f"runs/{method}-{end}", folder / "run")
    before = _contents(folder / "run")
    words, was_sealed = [], False
    for _ in range(1 + (rng.random() < 0.2)):
        files = [path for path in sorted((folder / "run").rglob("*")) if path.is_file()]
        text, resealed = damage_file(folder, pick(rng, files), rng)
        words.append(text)
        was_sealed |= resealed
    damaged = {
        name: content
        for name, content in _contents(folder / "run").items()
        if before.get(name) != content
    }
    verbs = ("resume",) if end == "stopped" and rng.random() < 0.9 else ("resume", "adapt", "score")
    verb = pick(rng, verbs)
    arguments = (verb, "run") if verb == "resume" else (verb, "run", *NEWCOMER)
    # A seal without a secret proves no author: an edit that was sealed again may be accepted.
    if was_sealed:
        compare = None
    elif verb == "resume":

        def compare(done: Done) -> str | None:
            return _other_results(folder / "run", whole, damaged)
    else:

        def compare(done: Done) -> str | None:
            expected = world.answer(method, verb)
            return None if done.stdout == expected else f"{expected}\n{done.stdout}"

    return Prepared(f"{method} {end}, {'; '.join(words)}", arguments, compare)


def _contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else None
        for path in folder.rglob("*")
    }


def _other_results(folder: Path, whole: Path, damaged: dict[str, bytes | None]) -> str | None:
    """What differs from the run that nothing happened to.

    A damaged file for users that the command had no reason to read (figures of clients in earlier
    rounds, deployed models of a finished run) may stay as it is: whoever reads it is told.
    """
    found, expected = results(folder), results(whole)
    for name in sorted({*found, *expected}):
        untouched = name in damaged and found.get(name) == damaged[name]
        if name.startswith(("models/", "clients/")) and (untouched or name not in found):
            continue
        if name in expected and found.get(name) != expected[name]:
            return f"{name}: {str(expected[name])[:700]}\n{str(found.get(name))[:700]}"
    return None


# --- family: clients that have joined -------------------------------------------------------------


def prepare_joined(world: World, folder: Path, rng: Generator) -> Prepared:
    """What a client that joined has left in a run's folder is damaged; then it is to predict."""
    method = pick(rng, [name for name in METHODS if name != "local"])
    for name in ("data", "outside"):
        shutil.copytree(world.path / name, folder / name)
    shutil.copyfile(world.path / "newcomer.npz", folder / "newcomer.npz")
    shutil.copytree(world.path / f"runs/{method}-finished", folder / "run")
    shutil.copytree(world.path / f"answers/{method}-adapted", folder / "run/adapted")
    files = sorted((folder / "run/adapted").iterdir())
    words, was_sealed = damage_file(folder, pick(rng, files), rng)
    expected = (world.path / f"answers/{method}-predictions.csv").read_text()

    def compare(done: Done) -> str | None:
        found = (folder / "predictions.csv").read_text()
        return None if found == expected else f"{expected}\n{found}"

    return Prepared(f"{method} {words}", PREDICT, None if was_sealed else compare)


# --- family: own data -----------------------------------------------------------------------------

ODD_CELLS = (
    "", " ", "?", "NA", "nan", "inf", "-inf", "1e400", "1e-400", "1e39", "-0", "0x10", "1_0", "１",
    "٣", "1,5", '"', '""', '"a', "'", "\0", "\r", "\n", "\t", "\u2028", "\u202e", "\ufeff", "[/x]",
    "[red]a", "\x1b[31m", "ж" * 300, "a" * 140_000, "9" * 400, "=1+1", "client", "y", "pooled",
    "..", "a/b", "true", "null", "2026-01-01", "é", "🙂", "\\", "%s", "{}", "server",
)  # fmt: skip


def edit_csv(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """Cells, columns, rows, separators, line ends and encodings."""
    rows = [line.split(",") for line in data.decode().splitlines()]
    kind = pick(
        rng,
        ("cell", "cell", "cell", "header", "column", "no column", "twice", "row", "no row",
         "separator", "ends", "encoding", "wide", "only header", "order", "whole column"),
    )  # fmt: skip
    row, column = int(rng.integers(1, len(rows))), int(rng.integers(len(rows[0])))
    odd = pick(rng, ODD_CELLS)
    words = f"{kind} {row}, {column}: {odd[:20]!r}"
    if kind == "cell":
        rows[row][column] = odd
    elif kind == "header":
        rows[0][column] = odd
    elif kind == "whole column":
        rows[1:] = [[*line[:column], odd, *line[column + 1 :]] for line in rows[1:]]
    elif kind in ("column", "twice"):
        extra = rows[0][column] if kind == "twice" else odd
        rows = [[*line, extra if index == 0 else "1"] for index, line in enumerate(rows)]
    elif kind == "no column":
        rows = [[*line[:column], *line[column + 1 :]] for line in rows]
    elif kind == "row":
        rows.insert(row, [odd] * int(rng.integers(1, 6)))
    elif kind == "no row":
        rows = rows[: int(rng.integers(1, 4))]
    elif kind == "wide":
        rows = [[*line[:-1], *(f"c{n}" if i == 0 else "1" for n in range(300)), line[-1]]
                for i, line in enumerate(rows)]  # fmt: skip
    elif kind == "only header":
        rows = rows[: int(rng.integers(2))]
    elif kind == "order":
        rows.reverse()
    separator = pick(rng, (";", "\t", "|", ", ")) if kind == "separator" else ","
    end = pick(rng, ("\r\n", "\r", "\n\n", "\x85", " ")) if kind == "ends" else "\n"
    text = end.join(separator.join(line) for line in rows) + end
    encodings = ("utf-16", "utf-8-sig", "utf-32", "utf-7")
    encoding = pick(rng, encodings) if kind == "encoding" else "utf-8"
    return words, text.encode(encoding, errors="surrogatepass")


def edit_image(data: bytes, rng: Generator) -> tuple[str, bytes]:
    """Images of other sizes, modes and formats."""
    mode = pick(rng, ("RGB", "L", "1", "P", "RGBA", "I;16", "F", "CMYK", "LA", "I"))
    size = pick(rng, ((8, 8), (8, 8), (1, 1), (8, 9), (300, 8), (2000, 2000)))
    format = pick(rng, ("PNG", "TIFF", "WEBP", "PPM", "GIF", "JPEG", "ICO"))
    file = io.BytesIO()
    try:
        Image.new(mode, size).save(file, format)
    except (OSError, ValueError, KeyError):
        Image.new("RGB", size).save(file, "PNG")
    return f"{mode} {size} {format}", file.getvalue()


OWN_EDITORS = {".csv": edit_csv, ".npz": edit_npz}
ODD_NAMES = ("ж" * 60, "漢" * 60, "pooled", "server", "[red]", "a\x1b[31mb", " ", ".hidden", "a\nb",
             "é", "x" * 200, "samples", "..a", "%2F", "-", "held-out")  # fmt: skip


def prepare_data(world: World, folder: Path, rng: Generator) -> Prepared:
    """A user's file is damaged; then it is previewed or run on for a round."""
    if rng.random() < 0.2:
        return _prepare_newcomer(world, folder, rng)
    form = pick(rng, OWN_FORMS)
    (folder / "outside").mkdir()
    (folder / "outside/kept.txt").write_text("somebody's\n")
    source = world.path / "own"
    if form == "table":
        shutil.copyfile(source / "table.csv", folder / "table.csv")
        data, root = {"table": "table.csv"}, folder / "table.csv"
    elif form == "mixed":
        shutil.copyfile(source / "mixed.csv", folder / "mixed.csv")
        data, root = MIXED, folder / "mixed.csv"
        if rng.random() < 0.5:
            data = {**{key: MIXED[key] for key in ("table", "client", "group")}, "time": "age"}
    elif form == "numbers":
        shutil.copyfile(source / "numbers.csv", folder / "numbers.csv")
        data = {"table": "numbers.csv", "label": NUMBERS[rng.integers(len(NUMBERS))]}
        root = folder / "numbers.csv"
    else:
        shutil.copytree(source / form, folder / "mine")
        data, root = {"folder": "mine"}, folder / "mine"
        if form == "images" and rng.random() < 0.4:
            data |= {"resize": [5, 6]}
    words = []
    for _ in range(1 + (rng.random() < 0.15)):
        paths = [root] if root.is_file() else sorted(root.rglob("*"))
        files = [path for path in paths if path.is_file() and not path.is_symlink()]
        if files:
            words.append(_damage_own(folder, pick(rng, files), rng))
    table = {
        "run": {**PLAN, "rounds": 1, "seed": int(rng.integers(3))},
        "data": data,
        "model": {"hidden": [4]},
        "algorithm": METHODS[pick(rng, METHODS)],
    }
    (folder / "own.toml").write_text(tomli_w.dumps(table))
    last = ("--dry-run",) if rng.random() < 0.6 else ("--out", "run")
    return Prepared(f"{form} {'; '.join(words)}", ("run", "own.toml", *last))


def _prepare_newcomer(world: World, folder: Path, rng: Generator) -> Prepared:
    """The data of a client that joins a finished run, or is scored by it."""
    form, method = pick(rng, ("npz", "csv", "images", "mixed")), pick(rng, METHODS)
    method = "mixed" if form == "mixed" else method
    for name in ("data", "outside"):
        shutil.copytree(world.path / name, folder / name)
    shutil.copytree(world.path / f"runs/{method}-finished", folder / "run")
    source = {"images": "images/a", "mixed": "mixed.csv"}.get(form, f"{form}/a.{form}")
    given = folder / ("new.csv" if form == "mixed" else f"new.{form}")
    if form == "images":
        shutil.copytree(world.path / "own" / source, given)
    else:
        shutil.copyfile(world.path / "own" / source, given)
    files = [path for path in (given, *sorted(given.rglob("*"))) if path.is_file()]
    words = _damage_own(folder, pick(rng, files), rng)
    verb = pick(rng, ("adapt", "score", "predict"))
    return Prepared(f"{method} {words}", (verb, "run", "--data", given.name))


def _damage_own(folder: Path, path: Path, rng: Generator) -> str:
    kind = pick(rng, ("bytes", "content", "content", "content", "file", "name"))
    name = str(path.relative_to(folder))
    if kind == "file":
        return f"{name}: {replace_file(folder, path, rng)}"
    if kind == "name" and path.parent != folder:
        renamed = pick(rng, [path, *([path.parent] if path.parent.name != "mine" else [])])
        target = renamed.with_name(
            pick(rng, ODD_NAMES) + (renamed.suffix if rng.random() < 0.8 else "")
        )
        with contextlib.suppress(OSError):
            renamed.rename(target)
        return f"{name} called {target.name[:30]!r}"
    data = path.read_bytes()
    editor = OWN_EDITORS.get(path.suffix, edit_image) if kind == "content" else None
    words, changed = damage_content(data, rng, editor)
    path.write_bytes(changed)
    return f"{name}: {words}"


# --- family: settings -----------------------------------------------------------------------------

# As they are typed after `--set section.key=`. Numbers are small, or larger than any bound: those
# in between would be begun, as they should be.
TYPED = (
    "0", "1", "2", "3", "-1", "7", "10000000000", "1" + "0" * 30, "-1" + "0" * 30, "9" * 5000,
    "0.0", "-0.0", "0.5", "1.0", "1.5", "-0.5", "1e-300", "1e300", "1e400", "inf", "-inf", "nan",
    "true", "false", '""', "''", "", " ", "a", '"a"', "é", "ж漢🙂", "[]", "[[]]", "[1, 2]", "[0.5]",
    "[0.2, 0.3, 0.5]", "[1, 0, 0]", '["a"]', "[nan]", "[-1]", "{}", "{a = 1}", "{kind = 'iid'}",
    "[{}]", "[{kind = 'rotate'}]", "2026-01-01", "12:00:00", "2026-01-01T00:00:00Z", "\x1b[31m",
    "[/x]", "a\nb", "\t", "\u202e", "os:system", "subprocess:Popen", "a:b:c", "none", "null",
    "regression", "learnt", "squared", "balanced",
    "0x10", "0b1", "1_000", "+1", "01", "[" * 200 + "]" * 200, "[" * 50_000, "{a={a={a={a=1}}}}",
    "a=b", "=", '"\\u0000"', "x" * 5000, "[1, 'a']", "'''", "#", "auto", "fedavg", "mlp", "digits",
    "/dev/zero", "../..", "natural", "cuda", "[1, 1, 1, 1, 1, 1, 1, 1]", "1e5", "4.0",
)  # fmt: skip
LOCAL_DATA = (
    "digits", "synthetic-mixture", "three-datasets", "two-gaussians", "folder", "table",
)  # fmt: skip
QUICK_MODELS = ("linear", "mlp", "mlp", "mlp", "cnn", "lenet", "femnist_cnn")


class Target(NamedTuple):
    """A key that can be set, and what else is set so that it counts."""

    key: str
    context: tuple[str, ...] = ()


def targets() -> list[Target]:
    """Every key of every section."""
    found = [Target(f"run.{field.name}") for field in fields(Plan)] * 2
    found += [Target(f"scenario.{field.name}") for field in fields(Scenario)] * 2
    found += [Target(f"training.{field.name}") for field in fields(Training)] * 2
    found += [Target(f"aggregation.{field.name}") for field in fields(Aggregation)] * 2
    found += [Target(f"objective.{field.name}") for field in fields(ObjectiveChoice)] * 2
    found += [Target(f"algorithm.training.{field.name}") for field in fields(Training)]
    found += [Target(f"{section}.name") for section in ("data", "model", "algorithm", "scenario")]
    found += [Target("unknown.key"), Target("run.unknown"), Target("run"), Target("compare.fedavg")]
    for name, method in ALGORITHMS.items():
        for field in fields(method):
            found.append(Target(f"algorithm.{field.name}", (f"algorithm.name={name}",)))
            found.append(Target(f"compare.{name}.{field.name}"))
    for name, source in DATASETS.items():
        for field in fields(source):
            found.append(Target(f"data.{field.name}", (f"data={{name='{name}'}}",)))
    for name, model in MODELS.items():
        for option in (*_adapters(model), WIDTH_COPIES):
            found.append(Target(f"model.{option}", (f"model={{name='{name}'}}",)))
    for group, registry in (("scenario.partition", PARTITIONS), ("training.schedule", SCHEDULES)):
        for name, kind in registry.items():
            for field in fields(kind):
                context = (f"{group}={{kind='{name}'}}", "scenario.clients=3")
                found.append(Target(f"{group}.{field.name}", context))
    for name, kind in SHIFTS.items():
        for field in fields(kind):
            found.append(Target(f"shift {field.name}", (name,)))
    found += [Target("run.seed", (f"scenario.name={name}",)) for name in NAMED]
    return found


TARGETS = targets()
SLOW_MODELS = ("resnet", "vgg", "mobilenet")


def prepare_settings(world: World, folder: Path, rng: Generator) -> Prepared:
    """A setting of any key, on the command line; or the run file itself is damaged."""
    shutil.copytree(world.path / "data", folder / "data")
    own = rng.random() < 0.6
    data = {"folder": "data"} if own else {"name": "digits", "limit": 60}
    table: dict[str, Any] = {
        "run": {**PLAN, "rounds": 1},
        "data": data,
        "model": {"hidden": [4]},
        "scenario": {} if own else {"clients": 3},
    }
    dry = ("--dry-run",) if rng.random() < 0.7 else ("--out", "run")
    file = folder / "own.toml"
    if rng.random() < 0.15:
        table |= {"algorithm": METHODS[pick(rng, METHODS)], "training": {"lr": 0.1}}
        data_bytes = tomli_w.dumps(table).encode()
        file.write_bytes(data_bytes)
        if rng.random() < 0.15:
            words = replace_file(folder, file, rng, pipes=False)  # a shell's <(...) is a pipe
        else:
            words, changed = pick(rng, (edit_toml, damage_bytes))(data_bytes, rng)
            file.write_bytes(changed)
        return Prepared(f"run file: {words}", ("run", "own.toml", *dry))
    file.write_text(tomli_w.dumps(table))
    assignments = [word for _ in range(1 + (rng.random() < 0.2)) for word in assign(rng)]
    if any(name in word for word in assignments for name in SLOW_MODELS):
        dry = ("--dry-run",)
    options = [word for each in assignments for word in ("--set", each)]
    words = ", ".join(each[:80] for each in assignments)
    return Prepared(words, ("run", "own.toml", *options, *dry))


def assign(rng: Generator) -> list[str]:
    target, value = pick(rng, TARGETS), pick(rng, TYPED)
    if target.key.startswith("shift "):
        key = target.key.removeprefix("shift ")
        return [f"scenario.shifts=[{{kind='{target.context[0]}', {key}={value}}}]"]
    context = list(target.context)
    if rng.random() < 0.2:
        context.append(f"algorithm.name={pick(rng, ALGORITHMS)}")
    return [*context, f"{target.key}={value}"]


# --- family: kept results -------------------------------------------------------------------------


def prepare_kept(world: World, folder: Path, rng: Generator) -> Prepared:
    """The file of kept results is damaged; then the table is asked for."""
    shutil.copytree(world.path / "kept", folder, dirs_exist_ok=True)
    shutil.copytree(world.path / "outside", folder / "outside")
    file = folder / "kept.results.jsonl"
    words, _ = damage_file(folder, file, rng)
    more = pick(
        rng,
        (
            (),
            ("--fresh",),
            ("--over-clients",),
            ("--last-ten",),
            ("--curve", "curve.svg"),
            ("--keep",),
        ),
    )
    # Kept results are a user's to edit: what keeps the rules is shown as it stands.
    return Prepared(words, (*COMPARE, *more))


PREPARE: dict[str, Callable[[World, Path, Generator], Prepared]] = {
    "folders": prepare_folder,
    "joined": prepare_joined,
    "data": prepare_data,
    "settings": prepare_settings,
    "kept": prepare_kept,
}


# --- all of it ------------------------------------------------------------------------------------


def play(world: World, family: str, number: int, scratch: Path) -> Verdict:
    """One case, in a folder of its own below `scratch`."""
    rng = np.random.default_rng([*family.encode(), number])
    folder = Path(tempfile.mkdtemp(dir=scratch))
    try:
        prepared = PREPARE[family](world, folder, rng)
        return judge(f"{family}-{number}", folder, prepared)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counts(total: int) -> dict[str, int]:
    """The number of cases of every family."""
    return {family: max(1, round(total * share)) for family, share in SHARES.items()}


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "world").mkdir()
        world = World.build(Path(scratch) / "world")
        if len(arguments) == 1 and arguments[0].isdigit():
            names = [
                (family, number)
                for family, count in counts(int(arguments[0])).items()
                for number in range(count)
            ]
        else:
            pairs = (argument.rsplit("-", 1) for argument in arguments)
            names = [(family, int(number)) for family, number in pairs]
        tally: dict[str, collections.Counter[str]] = {}
        for family, number in names:
            verdict = play(world, family, number, Path(scratch))
            tally.setdefault(family, collections.Counter())[verdict.kind] += 1
            if verdict.wrong or len(names) < 20:
                print(f"{verdict.kind.upper()}: {verdict.case[:600]}\n{verdict.text}\n", flush=True)
    kinds = (REFUSED, SAME, ACCEPTED, *WRONG)
    print("| family | cases |", " | ".join(kinds), "|")
    for family, tallied in tally.items():
        figures = " | ".join(str(tallied[kind]) for kind in kinds)
        print(f"| {family} | {sum(tallied.values())} | {figures} |")
    return any(tallied[kind] for tallied in tally.values() for kind in WRONG)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
