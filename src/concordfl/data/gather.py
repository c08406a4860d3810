"""Clients' examples as Python has them: arrays and labels, data frames, torch's data sets."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import TensorDataset

from ..core import DataError, SettingError
from ..core.settings import nearest
from .columns import feature_names
from .csv_table import columns_of
from .files import reading
from .frames import EncodedFrames, encode_frames, is_frame
from .labels import Labels
from .memory import Given
from .samples import Samples, check_inputs, check_labels, require_text
from .text import listing, quote, reason

CLIENT, LABEL = "client", "y"  # columns of a data frame, unless others are named


def gather(
    clients: object,
    client: str | None = None,
    label: str | Sequence[str] | None = None,
    drop: Collection[str] = (),
) -> Given:
    """The examples of every client, checked; `client` and `label` are columns of a data frame,
    where several labels may be given. Columns in `drop` are left out.
    """
    if is_frame(clients):
        return _of_frame(clients, client or CLIENT, columns_of(label or LABEL), drop)
    if client is not None or label is not None:
        raise DataError("client and label must be columns of a data frame, got clients without")
    if not isinstance(clients, Mapping):
        raise DataError(
            "clients must be a dict of examples by client, or a data frame, got "
            f"{type(clients).__name__}"
        )
    if not clients:
        raise DataError("clients must be at least one, got none")
    named = {client_name(name): given for name, given in clients.items()}
    if len(named) < len(clients):
        raise DataError(f"clients must have different names, got {listing(map(str, clients))}")
    pairs = {name: _pair(name, named[name]) for name in sorted(named)}
    if all(is_frame(x) for x, _ in pairs.values()):
        return _of_frames(pairs, drop)
    if drop:
        raise SettingError(
            f"data.drop must be about data frames, got {listing(map(quote, drop))} for others"
        )
    return Given(tuple(_samples(name, *pair) for name, pair in pairs.items()))


def _pair(client: str, given: object) -> tuple[Any, Any]:
    """The examples and labels of a client."""
    where = f"client {quote(client)}"
    if isinstance(given, TorchDataset):
        given = _of_torch(given, where)
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise DataError(
            f"{where}: examples must be a pair (x, y) or a torch Dataset, got "
            f"{type(given).__name__}"
        )
    return given[0], given[1]


def _samples(client: str, x: Any, y: Any) -> Samples:
    where = f"client {quote(client)}"
    features = tuple(str(name) for name in x.columns) if is_frame(x) else ()
    inputs = check_inputs(to_array(x, where), where)
    if not len(inputs):
        raise DataError(f"{where} must have at least one example, got none")
    return Samples(client, inputs, to_labels(y, len(inputs), where), features)


def client_name(name: object) -> str:
    """Clients may be called by words or by whole numbers."""
    if isinstance(name, bool) or not isinstance(name, (str, int, np.integer)):
        raise DataError(f"a client's name must be text or a whole number, got {quote(repr(name))}")
    return require_text(str(name), "a client's name")


# --- data frames, which need not be pandas' -------------------------------------------------------


def _of_frames(pairs: Mapping[str, tuple[Any, Any]], drop: Collection[str]) -> Given:
    """Clients that have a frame of features each."""
    for client, (frame, _) in pairs.items():
        if not len(frame):
            raise DataError(f"client {quote(client)} must have at least one example, got none")
    frames = {f"client {quote(name)}": frame for name, (frame, _) in pairs.items()}
    encoded = encode_frames(_without(frames, drop))
    features = feature_names(encoded.columns)
    parts = [
        Samples(client, x, to_labels(y, len(x), f"client {quote(client)}"), features)
        for (client, (_, y)), x in zip(pairs.items(), encoded.x, strict=True)
    ]
    return _given(parts, encoded)


def _given(parts: Iterable[Samples], encoded: EncodedFrames) -> Given:
    has_categories = any(column.categories is not None for column in encoded.columns)
    columns = encoded.columns if has_categories else ()
    return Given(tuple(parts), columns, encoded.notices)


def _without(frames: Mapping[str, Any], drop: Collection[str]) -> Mapping[str, Any]:
    """The frames without columns, each of which one of them must have."""
    if not drop:
        return frames
    known = {str(column) for frame in frames.values() for column in frame.columns}
    for name in drop:
        if name not in known:
            raise SettingError(
                f"data.drop must name columns of the data, got {quote(name)}{nearest(name, known)}"
            )
    return {
        where: frame[[column for column in frame.columns if str(column) not in drop]]
        for where, frame in frames.items()
    }


def _of_frame(
    frame: Any, client: str, labels: tuple[str, ...], drop: Collection[str] = ()
) -> Given:
    for column in (client, *labels):
        if column in drop:
            raise SettingError(
                f"data.drop must be other columns than client and label, got {quote(column)}"
            )
    frame = _without({"": frame}, drop)[""]
    columns = list(frame.columns)
    if len({*map(str, columns)}) < len(columns):
        raise DataError(f"columns must have different names, got {listing(map(str, columns))}")
    for column in (client, *labels):
        if column not in columns:
            raise DataError(
                f"the data frame must have a column called {quote(column)}, got "
                f"{listing(map(str, columns))}"
            )
    features = [column for column in columns if column not in (client, *labels)]
    if client in labels or not features:
        raise DataError(
            f"the data frame must have a column of features beside {quote(client)} and "
            f"{listing(map(quote, labels))}, got {listing(map(str, columns))}"
        )
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(frame[client].to_numpy().tolist()):
        rows.setdefault(_owner(name, row, client), []).append(row)
    encoded = encode_frames({"the data frame": frame[features]})
    inputs, names = encoded.x[0], feature_names(encoded.columns)
    targets = _frame_labels(frame, labels, len(inputs))
    parts = [
        Samples(owner, inputs[rows[owner]], targets.take(rows[owner]), names)
        for owner in sorted(rows)
    ]
    return _given(parts, encoded)


def _frame_labels(frame: Any, columns: tuple[str, ...], count: int) -> Labels:
    where = "the data frame"
    if len(columns) == 1:
        return to_labels(frame[columns[0]], count, where)
    found = check_labels(to_array(frame[list(columns)], where), count, where)
    return replace(found, columns=columns)


def _owner(name: object, row: int, column: str) -> str:
    if isinstance(name, float) and name.is_integer():  # whole numbers beside missing ones
        name = int(name)
    if name is None or isinstance(name, float):
        raise DataError(
            f"row {row}: every row must name its client in column {quote(column)}, got {name}"
        )
    return client_name(name)


# --- torch's data sets ----------------------------------------------------------------------------


def _of_torch(data: TorchDataset[Any], where: str) -> tuple[object, object]:
    """Read once: (x, y) of all examples."""
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors[0], data.tensors[1]
    inputs, labels = [], []
    for item in _items(data):
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise DataError(
                f"{where}: a data set's examples must be pairs (x, y), got {type(item).__name__}"
            )
        value = item[0][None] if isinstance(item[0], torch.Tensor) else np.asarray(item[0])[None]
        inputs.append(to_array(value, where))
        labels.append(item[1].tolist() if hasattr(item[1], "tolist") else item[1])
    shapes = {one.shape[1:] for one in inputs}
    if len(shapes) != 1:
        raise DataError(
            f"{where}: examples must have one shape, got {listing(map(str, sorted(shapes)))}"
        )
    return np.concatenate(inputs), labels


def _items(data: Any) -> Iterable[Any]:
    return (data[index] for index in range(len(data))) if hasattr(data, "__len__") else data


# --- arrays ---------------------------------------------------------------------------------------


def to_array(given: Any, where: str) -> np.ndarray:
    """As numpy has it; torch's images, which have their channels first, as ours."""
    try:
        if isinstance(given, torch.Tensor):
            values = given.detach().cpu()
            values = values.float() if values.dtype == torch.bfloat16 else values
            return (values.permute(0, 2, 3, 1) if values.ndim == 4 else values).numpy()
        if is_frame(given):
            return np.asarray(given.to_numpy(dtype=np.float64, na_value=np.nan))
        return np.asarray(given)
    except (TypeError, ValueError) as error:
        raise DataError(f"{where}: x must be an array of numbers: {reason(error)}") from None


def to_labels(given: Any, count: int, where: str) -> Labels:
    if isinstance(given, torch.Tensor):
        given = given.detach().cpu().numpy()
    values = given.to_numpy() if hasattr(given, "to_numpy") else given
    if isinstance(values, np.ndarray) and values.dtype != object:
        return check_labels(values, count, where)
    if not isinstance(values, (str, bytes)) and _are_rows(values):
        return check_labels(to_array(values, f"{where}: labels"), count, where)
    listed = [one.item() if isinstance(one, np.generic) else one for one in _listed(values)]
    if len(listed) != count:
        raise DataError(f"{where}: x and y must be equally long, got {count} and {len(listed)}")
    for one in listed:
        if not isinstance(one, (str, bytes, int, float)):
            raise DataError(f"{where}: labels must be numbers or text, got {quote(repr(one))}")
        if isinstance(one, float) and not math.isfinite(one):
            raise DataError(f"{where}: labels must be finite, got NaN or infinity")
    with reading(where, "have labels that are UTF-8 text"):
        labels = Labels.of(listed)
    for name in labels.names:
        require_text(name, f"{where}: every label")
    return labels


def _are_rows(values: Any) -> bool:
    """Whether several numbers are given for every example."""
    return isinstance(values, (list, tuple)) and all(
        isinstance(one, (list, tuple, np.ndarray)) for one in values
    )


def _listed(values: Any) -> list[Any]:
    """One after the other: an array of numbers would turn whole numbers beside others into text."""
    if isinstance(values, (str, bytes)) or not isinstance(values, Iterable):
        return [values]
    return list(values)
