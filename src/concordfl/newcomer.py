"""A client that was not in training joins a finished run: nothing of the run is changed."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import config as configuration
from .algorithms import ALGORITHMS
from .config import Config
from .core import Algorithm, CheckpointError, Client, DataError, Examples, Key, SettingError, tree
from .data import Arrays, Standard
from .data.own import class_name, read_client, without_colour
from .engine import checkpoint
from .engine.checkpoint import Progress
from .engine.client_states import MemoryStates
from .engine.files import write_atomically
from .engine.records import RunFolder, to_json
from .metrics import score
from .runner import model_from


def adapt(folder: Path, data: Path) -> dict[str, Any]:
    """Adapt to one half of a client's labelled examples by the method's rule for new clients, and test on the other half.

    The answer is written to `adapted/<client>.json` in the run's folder; asked again, it is the same.
    """
    run, settings, summary, progress = _finished(folder)
    algorithm = settings.algorithm
    require(algorithm, "accepts_new_clients", "adapt", "has a rule for new clients")
    own = read_client(data, getattr(settings.data, "label", "y"), getattr(settings.data, "client", None))
    features = summary["preprocessing"].get("features", [])
    if features and own.features and list(own.features) != features:
        raise DataError(f"{data}: columns must be {', '.join(features)}, got {', '.join(own.features)}")
    arrays = _prepared(Arrays(own.x, _numbered(own.labels, summary, data)), summary, data)
    halves = np.array_split(Key(settings.run.seed, "adapt", own.client).numpy().permutation(len(arrays.y)), 2)
    train, test = (_examples(arrays.take(half), summary) for half in halves)
    client = Client(
        own.client,
        train,
        num_classes=summary["task"]["num_classes"],
        model=model_from(settings, tuple(summary["task"]["input_shape"]), summary["task"]["num_classes"]),
        training=settings.training,
        seed=settings.run.seed,
        round=progress.round,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    message = algorithm.message(progress.server, None)
    state = algorithm.adapt(client, algorithm.init_client(client, message), message, new=True)
    answer = {
        "client": own.client,
        "algorithm": summary["algorithm"],
        "adapted_on": len(train),
        "tested_on": score(algorithm.predict(client, state, message, test).numpy(), test.y.numpy())._asdict(),
        "inspect": algorithm.inspect(client, state, message),
    }
    out = run.path / "adapted" / f"{own.client}.json"
    out.parent.mkdir(exist_ok=True)
    write_atomically(out, to_json(answer, indent=2) + "\n")
    return answer


def require(algorithm: Algorithm, ability: str, verb: str, phrase: str) -> None:
    """Refuse a verb that the method does not support, and say which methods do."""
    if not getattr(algorithm, ability):
        able = [name for name, kind in ALGORITHMS.items() if getattr(kind, ability)]
        name = configuration.name_of(algorithm, ALGORITHMS)
        raise SettingError(
            f"{verb} needs a method that {phrase}, got {name!r}: such methods are {', '.join(able) or 'none in this version'}"
        )


def open_finished(folder: Path) -> Config:
    """The configuration of a finished run."""
    return _finished(folder)[1]


def _finished(folder: Path) -> tuple[RunFolder, Config, dict[str, Any], Progress]:
    run = RunFolder.open(folder)
    summary = run.read_summary()
    if summary is None:
        raise CheckpointError(f"the run must be finished, got {folder} without summary.json: `concordfl resume {folder}` first")
    settings = Config.from_table(configuration.read_table(run.path / "config.toml"))
    return run, settings, summary, checkpoint.load(run.checkpoints, MemoryStates())


def _numbered(labels: np.ndarray, summary: dict[str, Any], data: Path) -> np.ndarray:
    """Labels as the run numbers its classes: by name where they have names, else as they are."""
    top = summary["task"]["num_classes"]
    names = summary["preprocessing"].get("classes") or [str(number) for number in range(top)]
    known = {name: number for number, name in enumerate(names)}
    given = [class_name(label) for label in labels.tolist()]
    unknown = sorted(set(given) - set(known))
    if unknown:
        shown = ", ".join(names) if len(names) <= 20 else f"0..{top - 1}"
        raise DataError(f"{data}: labels must be among {shown}, got {', '.join(unknown)}")
    return np.array([known[name] for name in given], dtype=np.int64)


def _prepared(arrays: Arrays, summary: dict[str, Any], data: Path) -> Arrays:
    """As the run prepared its own data, after a look whether they are of the same shape."""
    if summary["task"]["input_shape"][:1] == [1]:
        arrays = Arrays(without_colour(arrays.x), arrays.y)
    kind = summary["preprocessing"]["type"]
    if (arrays.x.dtype == np.uint8) != (kind == "uint8"):
        raise DataError(f"{data}: x must be of type {kind} as in the run, got {arrays.x.dtype}")
    shape = arrays.x.shape[1:]
    seen = (shape[2], *shape[:2]) if len(shape) == 3 else shape
    if list(seen) != summary["task"]["input_shape"]:
        raise DataError(f"{data}: examples must have the shape {summary['task']['input_shape']}, got {list(seen)}")
    if len(arrays.y) < 2:
        raise DataError(f"{data}: at least two examples are needed, one to adapt to and one to test on, got {len(arrays.y)}")
    record = summary["preprocessing"].get("standardised")
    prepared = arrays if record is None or kind == "uint8" else Standard.from_record(record).apply(arrays)
    if prepared.x.dtype.kind == "f" and not np.isfinite(prepared.x).all():
        raise DataError(f"{data}: features must be finite, got NaN or infinity")
    return prepared


def _examples(arrays: Arrays, summary: dict[str, Any]) -> Examples:
    record = summary["preprocessing"].get("standardised")
    scale = Standard.from_record(record).scale() if record is not None and arrays.x.dtype == np.uint8 else None
    x, y = torch.from_numpy(np.ascontiguousarray(arrays.x)), torch.from_numpy(arrays.y.astype(np.int64))
    return Examples(x, y, scale=scale)
