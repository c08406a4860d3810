"""How files are written and read back: complete or not there, and never trusted.

- Writing is atomic: a kill leaves the old file or the new one.
- Reading follows no link and refuses whatever is not a regular file.
- JSON files are *sealed*: they carry a format number and a sha256 of their own content, and are
  checked against a schema, so that damage, an edit or a newer version is one clear line.
"""

import errno
import hashlib
import json
import os
import re
import reprlib
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from ..core.errors import CheckpointError, FormatError, OtherFormatError

Content = TypeVar("Content")

MAX_NAME_BYTES = 200  # of a file's name without its ending; file systems allow 255 with it
READABLE_BYTES = 100  # of a name that is too long are kept, before its digest

# Windows knows neither flag, and has no links or pipes that anybody could lay there unnoticed.
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


# --- names and folders ----------------------------------------------------------------------------


def file_name(id: str, ending: str) -> str:
    """The name of a client's file: readable, and different for different ids of any kind.

    >>> file_name("site 3", ".json"), file_name("a/b", ".json")
    ('site 3.json', 'a%2Fb.json')
    """
    name = quote(id, safe=" ", errors="surrogatepass")
    if len(name) > MAX_NAME_BYTES:
        digest = hashlib.sha256(id.encode(errors="surrogatepass")).hexdigest()[:32]
        # `quote` leaves no plus sign, so a shortened name is never another client's whole one.
        name = f"{re.sub('%.?$', '', name[:READABLE_BYTES])}+{digest}"
    return name + ending


def make_folder(path: Path) -> None:
    with one_line(path, "made"):
        path.mkdir(parents=True, exist_ok=True)


def new_folder(wanted: Path) -> Path:
    """`wanted`, or with the first number that makes it new."""
    folder, number = wanted, 1
    while folder.exists():
        number += 1
        folder = wanted.with_name(f"{wanted.name}-{number}")
    return folder


def refuse_links(folder: Path) -> None:
    """A link inside a run folder could lead reading, writing and deleting anywhere."""
    unseen = [folder]
    with one_line(folder, "read"):
        while unseen:
            with os.scandir(unseen.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink():
                        raise CheckpointError(
                            f"a run folder must not hold links, got {entry.path}: replace it by "
                            "what it leads to"
                        )
                    if entry.is_dir(follow_symlinks=False):
                        unseen.append(Path(entry.path))


def remove(path: Path) -> None:
    with one_line(path, "removed"):
        path.unlink(missing_ok=True)


@contextmanager
def one_line(path: Path, action: str) -> Iterator[None]:
    """Whatever the system refuses to do with `path` is one line."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CheckpointError(f"{path} must be a file, got a link") from None
        reason = error.strerror or str(error)
        raise CheckpointError(f"{path} cannot be {action}: {reason}") from error


# --- bytes ----------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Write beside `path`, force to disk, then rename: a kill leaves the old file or the new one,
    never half of one.

    What is not `durable` is not forced to disk, which takes long: only a power cut damages it.
    """
    partial = path.with_name(path.name + ".partial")
    with one_line(path, "written"):
        partial.unlink(missing_ok=True)
        with open(partial, "xb") as file:  # never through a link that lies there
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(partial, path)
        if durable:
            sync_folder(path.parent)


@contextmanager
def open_file(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """A regular file, not one behind a link, opened `rb`, `xb` or `ab`."""
    with (
        one_line(path, "read" if mode == "rb" else "written"),
        open(path, mode, opener=_open_no_link) as file,
    ):
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise CheckpointError(f"{path} must be a file, got a pipe or a device")
        yield file


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | NO_LINK, 0o666)


def read_file(path: Path) -> bytes:
    with open_file(path, "rb") as file:
        return file.read()


def append(path: Path, data: bytes) -> None:
    """Add `data` at the end and force it to disk."""
    with open_file(path, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Force a rename to disk, where the system can (not on Windows)."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# --- JSON -----------------------------------------------------------------------------------------


def to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.tolist()
    raise TypeError(f"cannot be recorded: {type(value).__name__}")


def parse_json(data: bytes) -> Any:
    """FormatError for whatever is not JSON in UTF-8, or is nested too deep to be ours."""
    try:
        return json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"it must be JSON, got {error}") from None


@contextmanager
def damage_in(file: Path | str, advice: str) -> Iterator[None]:
    """What is found wrong with the content of `file` is one line, with what can be done."""
    try:
        yield
    except OtherFormatError as error:
        raise OtherFormatError(f"{file}: {error}") from None
    except FormatError as error:
        raise FormatError(f"{file} is damaged or was edited ({error}): {advice}") from None


def check_format(found: Any, newest: int) -> None:
    """Whether this version can read a file that says it has the format `found`."""
    if type(found) is not int or found < 1:
        raise FormatError(f"format must be a whole number >= 1, got {reprlib.repr(found)}")
    if found > newest:
        raise OtherFormatError(
            f"written by a newer concordfl: format must be <= {newest}, got {found}"
        )
    if found < newest:
        raise OtherFormatError(
            f"written by an older concordfl: format must be {newest}, got {found}"
        )


def check_schema(adapter: TypeAdapter[Content], value: Any) -> Content:
    """`value`, if it keeps the schema; else the first thing that is wrong, in one line."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in problem["loc"]) or "it"
        rule = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
        if problem["type"] == "missing":
            raise FormatError(f"{name} must be there, got nothing") from None
        raise FormatError(f"{name} must be {rule}, got {reprlib.repr(problem['input'])}") from None


@dataclass(frozen=True)
class SealedJson(Generic[Content]):
    """A kind of JSON file that only concordfl writes.

    The file holds its `format` as the first key and, as the last, a sha256 of all the others.
    """

    schema: type[Content]
    format: int
    advice: str = ""  # what to do about a damaged file; {folder} stands for the folder it lies in
    indent: int | None = None
    durable: bool = True  # forced to disk whenever it is written

    @cached_property
    def _adapter(self) -> TypeAdapter[Content]:
        return TypeAdapter(self.schema)

    def write(self, path: Path, content: Mapping[str, Any]) -> None:
        write_atomically(path, self.seal(content), durable=self.durable)

    def seal(self, content: Mapping[str, Any]) -> str:
        """The text of such a file."""
        body = json.loads(to_json({"format": self.format, **content}))
        check_schema(self._adapter, _without_frame(body))
        return to_json({**body, "sha256": _digest(body)}, self.indent) + "\n"

    def read(self, path: Path) -> Content | None:
        """What was written to `path`, without format and sha256; None where there is no file."""
        if not os.path.lexists(path):
            return None
        data = read_file(path)
        with damage_in(path, self.advice.format(folder=path.parent)):
            return self.parse(data)

    def parse(self, data: bytes) -> Content:
        """What `write` has turned into `data`; FormatError where `data` is anything else."""
        body = parse_json(data)
        if not isinstance(body, dict):
            raise FormatError(f"it must be a JSON object, got {reprlib.repr(body)}")
        if body and not {"format", "sha256"} & body.keys():
            raise OtherFormatError(
                f"written by an older concordfl: format must be {self.format}, got none"
            )
        check_format(body.get("format"), self.format)
        seal = body.pop("sha256", None)
        if seal != _digest(body):
            raise FormatError("its content must have the sha256 that it names, got another")
        return check_schema(self._adapter, _without_frame(body))


def canonical_json(value: Any) -> bytes:
    """The same bytes for the same content: white space and the order of keys do not count."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError:
        raise FormatError("it must not be nested so deep") from None


def _digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(body)).hexdigest()


def _without_frame(body: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key not in ("format", "sha256")}
