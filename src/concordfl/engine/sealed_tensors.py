"""Trees of one client as safetensors files that carry the client's id and a sha256."""

import hashlib
import json
import re
import reprlib
from collections.abc import Mapping
from typing import Any

from ..core import ClientId, FormatError
from .files import canonical_json, check_format, parse_json

FORMAT = 1


def seal_client_tree(id: ClientId, packed: bytes) -> bytes:
    """A packed tree with the client's id and a sha256 in the safetensors header."""
    header, tensors = split_header(packed)
    # As JSON: metadata must be valid Unicode, an id need not be.
    header["__metadata__"] |= {"format": str(FORMAT), "client": json.dumps(id)}
    header["__metadata__"]["sha256"] = _digest(header, tensors)
    return join_header(header, tensors)


def join_header(header: Mapping[str, Any], tensors: bytes) -> bytes:
    """A safetensors file; safetensors itself would write several metadata in any order."""
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + tensors


def verify_client_tree(id: ClientId, data: bytes) -> None:
    """FormatError for what `seal_client_tree` has not made of a tree of this client."""
    header, tensors = split_header(data)
    metadata = header["__metadata__"]
    number = str(metadata.get("format"))
    check_format(int(number) if re.fullmatch("[0-9]{1,9}", number) else number, FORMAT)
    seal = metadata.pop("sha256", None)
    if seal != _digest(header, tensors):
        raise FormatError("its content must have the sha256 that it names, got another")
    if metadata.get("client") != json.dumps(id):
        found = reprlib.repr(metadata.get("client"))
        raise FormatError(f"it must be of client {reprlib.repr(id)}, got {found}")


def split_header(data: bytes) -> tuple[dict[str, Any], bytes]:
    end = 8 + int.from_bytes(data[:8], "little")
    header = parse_json(data[8:end])
    if not isinstance(header, dict) or not isinstance(header.get("__metadata__"), dict):
        raise FormatError("it must be a safetensors file with metadata, got another")
    return header, data[end:]


def _digest(header: Mapping[str, Any], tensors: bytes) -> str:
    return hashlib.sha256(canonical_json(header) + b"\n" + tensors).hexdigest()
