"""A user's own data from memory: clients' examples given in Python, checked like those in files.

A run with a folder keeps them there in one file of plain arrays, so that it can be taken up again
like any other.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import InstanceOf

from ..core import DataError, Key, SettingError
from ..core.settings import check_keys
from .columns import Column, columns_from_record, feature_names, to_record
from .csv_table import columns_of
from .dataset import Dataset, Source
from .files import reading
from .labels import Labels
from .samples import ColumnNames, Samples, join_samples
from .text import printable

FORMAT = 1  # of the file
FILE_NAME = "examples.npz"
# settings that may be given beside examples
OPTIONS = ("drop", "limit", "standardise", "test_limit", "without")


@dataclass(frozen=True, eq=False)
class Given:
    """What was given in Python, by client in the order of their names."""

    parts: tuple[Samples, ...]
    columns: tuple[Column, ...] = ()  # of data frames, where some are categories
    notices: tuple[str, ...] = ()  # sentences on what a user should know of the data

    def digest(self) -> str:
        """sha256 of all of it."""
        total = hashlib.sha256(json.dumps(self._header()).encode())
        for array in _arrays(self.parts):
            total.update(f"{array.dtype.str} {array.shape}\n".encode())
            total.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return total.hexdigest()

    def to_bytes(self) -> bytes:
        """As an .npz file that `read_given` reads back."""
        # Notices are no part of the digest: the same examples with other words are the same.
        facts = self._header() | ({"notices": self.notices} if self.notices else {})
        header = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        x, y = _arrays(self.parts)
        file = io.BytesIO()
        np.savez(file, header=header, x=x, y=y)
        return file.getvalue()

    def _header(self) -> dict[str, Any]:
        labels = _labels(self.parts)
        columns = {"columns": [to_record(column) for column in self.columns]}
        return {
            "format": FORMAT,
            "clients": [(part.client, len(part.x)) for part in self.parts],
            "classes": labels.names,
            "features": self.parts[0].features,
            **({"targets": labels.columns} if labels.columns else {}),
            **(columns if self.columns else {}),
        }


@dataclass(frozen=True)
class Memory(Source):
    """Examples given in Python; `memory` is the file in which a run's folder keeps them."""

    about: ClassVar[str] = (
        "your own data, given in Python: `cf.run(clients=...)`; a run's folder keeps them in a file"
    )
    has_clients: ClassVar[bool] = True

    standardise: bool = True
    client: str | None = None  # of a data frame, the column that says whose each row is
    label: ColumnNames | None = None  # of a data frame, the column of labels, or several of numbers
    drop: tuple[str, ...] | None = None  # columns of data frames to leave out
    memory: str = ""  # the file, where the examples are not given
    relative_to: str | None = None  # where a relative path begins: the run file's folder
    given: InstanceOf[Given] | None = field(default=None, repr=False)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], where: str = "") -> Self:
        if isinstance(table, Mapping):
            check_keys(table, [one.name for one in fields(cls) if one.name != "given"], where)
        return super().from_table(table, where)

    def to_table(self) -> dict[str, Any]:
        table = super().to_table()
        table.pop("given", None)  # which no run file can hold
        return table

    def fingerprint(self) -> str:
        return self._examples().digest()

    def read(self, key: Key) -> Dataset:
        given = self._examples()
        data = join_samples(given.parts)
        return data._replace(
            targets=data.targets if self.label is None else columns_of(self.label),
            columns=given.columns,
            ignored=self.drop or (),
            notices=given.notices,
        )

    def _examples(self) -> Given:
        if self.given is not None:
            return self.given
        if not self.memory:
            raise SettingError("data.memory must name a file where no examples are given, got none")
        return read_given(Path(self.relative_to or "", self.memory))


def read_given(path: Path) -> Given:
    """What `Given.to_bytes` wrote; anything else is refused."""
    from .datasets.formats import read_npz

    header, x, y = read_npz(path, "header", "x", "y")
    with reading(path, "be a file that a run keeps its examples in"):
        facts = json.loads(header.tobytes())
        names, features = ([*map(_text, facts[key])] for key in ("classes", "features"))
        targets = tuple(map(_text, facts.get("targets", ())))
        notices = tuple(map(_text, facts.get("notices", ())))  # which older files do not have
        clients = [(_text(name), int(size)) for name, size in facts["clients"]]
        number = facts["format"]
        sizes = [size for _, size in clients]
        if len(dict(clients)) < len(clients) or len({*names}) < len(names):
            raise ValueError("its clients and classes must have different names, got some twice")
        fits = len(x) == len(y) == sum(sizes) and min(sizes) > 0 and y.ndim == 1 < x.ndim
        if number != FORMAT or not fits or y.dtype != np.int64 or x.dtype.kind not in "fu":
            raise ValueError("its arrays must be as its header says, got others")
        if len(y) and not (y.min() >= 0 and y.max() < len(names)):
            raise ValueError("its labels must be among its classes, got others")
        columns = columns_from_record(facts.get("columns", []))
        if columns and feature_names(columns) != tuple(features):
            raise ValueError("its columns must be its features, got others")
    ends = np.cumsum(sizes)[:-1]
    # One tuple for all clients: joining them looks at the names once.
    classes, columns_of_x = tuple(names), tuple(features)
    return Given(
        tuple(
            Samples(client, part, Labels(classes, index, targets), columns_of_x)
            for (client, _), part, index in zip(
                clients, np.split(x, ends), np.split(y, ends), strict=True
            )
        ),
        columns,
        notices,
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"names must be text, got {printable(value)}")
    return value


def _arrays(parts: Sequence[Samples]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([part.x for part in parts]), _labels(parts).index


def _labels(parts: Sequence[Samples]) -> Labels:
    """Of all clients; parts without labels never come here."""
    known = [part.labels for part in parts if part.labels is not None]
    if len(known) < len(parts):
        raise DataError("every client must have labels, got one without")
    return Labels.join(known)
