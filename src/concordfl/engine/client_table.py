"""The figures of every client in one evaluated round, as the bytes of an npz file.

    format, round    the number of this format, and the round
    sha256           of all other entries
    clients          the clients' ids, as one JSON list
    number:accuracy  a float64 per client, NaN where it has none
    json:group       anything else, as one JSON list with an entry per client

Text is JSON in an array of bytes, so that nothing is ever unpickled, ids and values may be of any
length, and one long value costs no more than itself. Equal rows give equal bytes.
"""

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from torch import Tensor

from ..core import ClientId, FormatError
from .files import check_format, parse_json, to_json

FORMAT = 1

ClientRows = Mapping[ClientId, Mapping[str, Any]]
Columns = dict[str, np.ndarray]


def pack(round: int, rows: ClientRows) -> bytes:
    """The bytes of the table of `round`."""
    ids = sorted(rows)
    names = sorted({name for row in rows.values() for name in row})
    entries = {"format": np.array(FORMAT), "round": np.array(round), "clients": _to_bytes(ids)}
    for name in names:
        if name in ("round", "client"):
            raise ValueError(f"a client's figure must not be called {name!r}")
        values = [_plain(rows[id].get(name)) for id in ids]
        if all(value is None or type(value) in (int, float) for value in values):
            numbers = [math.nan if value is None else value for value in values]
            entries[f"number:{_quote(name)}"] = np.array(numbers, dtype=np.float64)
        else:
            entries[f"json:{_quote(name)}"] = _to_bytes(values)
    entries["sha256"] = _digest(entries)
    file = io.BytesIO()
    np.savez_compressed(file, allow_pickle=False, **entries)
    return file.getvalue()


def _digest(entries: Mapping[str, np.ndarray]) -> np.ndarray:
    total = hashlib.sha256()
    for name, array in sorted(entries.items()):
        total.update(f"{name}\0{array.dtype.str}\0{array.shape}\n".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    return np.frombuffer(total.digest(), dtype=np.uint8)


def unpack(round: int, data: bytes) -> Columns:
    """The columns of the table of `round`; FormatError where `data` is anything else."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            entries = {name: np.asanyarray(file[name]) for name in file.files}
    except Exception as error:  # numpy, zipfile and zlib raise many kinds, and all mean the same
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise FormatError(f"it must be an npz file, got {reason[:200]}") from None
    check_format(_whole_number(entries.get("format")), FORMAT)
    seal = entries.pop("sha256", None)
    if seal is None or not np.array_equal(seal, _digest(entries)):
        raise FormatError("its content must have the sha256 that it names, got another")
    del entries["format"]
    if (found := _whole_number(entries.pop("round", None))) != round:
        raise FormatError(f"it must be of round {round}, got {found}")
    ids = _from_bytes("clients", entries.pop("clients", None))
    if not all(isinstance(id, str) for id in ids):
        raise FormatError("clients must be strings, got others")
    if len(set(ids)) != len(ids):
        raise FormatError("clients must be different, got one twice")
    columns = {"round": np.full(len(ids), round), "client": _objects(ids)}
    for entry, array in entries.items():
        kind, _, name = entry.partition(":")
        if kind == "json":
            column = _objects(_from_bytes(entry, array))
        elif kind == "number" and array.dtype == np.float64:
            column = array
        else:
            raise FormatError(f"columns must be numbers or JSON, got {entry!r} of {array.dtype}")
        if column.shape != (len(ids),):
            raise FormatError(f"{entry!r} must have {len(ids)} values, got {column.shape}")
        columns[unquote(name, errors="surrogatepass")] = column
    return columns


def to_rows(columns: Columns) -> dict[ClientId, dict[str, Any]]:
    """The rows of one round's table by client, without what a client does not have."""
    rows: dict[ClientId, dict[str, Any]] = {id: {} for id in columns["client"].tolist()}
    for name, column in columns.items():
        if name not in ("round", "client"):
            for row, value in zip(rows.values(), column.tolist(), strict=True):
                if value is not None and not (isinstance(value, float) and math.isnan(value)):
                    row[name] = value
    return rows


def join(tables: Sequence[Columns]) -> Columns:
    """One table below the other; a column that one of them lacks is absent there."""
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: _join_column(name, tables) for name in ("round", "client", *names)}


def _join_column(name: str, tables: Sequence[Columns]) -> np.ndarray:
    parts = [table.get(name) for table in tables]
    sizes = [len(table["client"]) for table in tables]
    if name == "round":
        return np.concatenate([np.zeros(0, dtype=np.int64), *(t["round"] for t in tables)])
    if any(part is not None and part.dtype == object for part in parts) or not parts:
        values = [
            [None] * size if part is None else part.tolist()
            for part, size in zip(parts, sizes, strict=True)
        ]
        return _objects([value for part in values for value in part])
    return np.concatenate(
        [
            np.full(size, math.nan) if part is None else part
            for part, size in zip(parts, sizes, strict=True)
        ]
    )


def _quote(name: str) -> str:
    """The name of a column as part of the name of an entry."""
    return quote(name, safe="", errors="surrogatepass")


def _plain(value: Any) -> Any:
    """A value of a row as JSON knows it."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return value.tolist()
    return value


def _to_bytes(values: Sequence[Any]) -> np.ndarray:
    return np.frombuffer(to_json(values).encode(), dtype=np.uint8)


def _from_bytes(entry: str, array: np.ndarray | None) -> list[Any]:
    if array is None or array.dtype != np.uint8:
        raise FormatError(f"{entry!r} must be text, got none")
    values = parse_json(array.tobytes())
    if not isinstance(values, list):
        raise FormatError(f"{entry!r} must be a list, got {type(values).__name__}")
    return values


def _objects(values: Sequence[Any]) -> np.ndarray:
    """A column of Python values; lists among them stay lists."""
    return np.fromiter(values, dtype=object, count=len(values))


def _whole_number(array: np.ndarray | None) -> Any:
    return array.item() if array is not None and array.shape == () else None
