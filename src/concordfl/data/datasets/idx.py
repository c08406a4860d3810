"""The idx file format of MNIST and its relatives."""

import gzip
from pathlib import Path

import numpy as np

from ...core import DataError


def read_idx(path: Path) -> np.ndarray:
    """A uint8 array from an idx file, gzipped or not."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"{path} must be a readable idx file: {error}") from None
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise DataError(f"{path} must be an idx file of unsigned bytes, got a header of {data[:4].hex()}")
    rank = data[3]
    shape = np.frombuffer(data, dtype=">u4", count=rank, offset=4).astype(int)
    values = np.frombuffer(data, dtype=np.uint8, offset=4 + 4 * rank)
    if len(values) != shape.prod():
        raise DataError(f"{path} must hold {shape.prod()} bytes of data as its header says, got {len(values)}")
    return values.reshape(shape)
