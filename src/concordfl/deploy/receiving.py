"""How a client keeps what came of a run: see received.py for the folder that it makes."""

import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from ..assemble import network_identity
from ..config import read_run_folder
from ..core import FormatError, Model, Predictor, tree
from ..data import Federation
from ..engine.files import one_line, parse_json
from ..engine.records import RunFolder
from ..engine.threads import one_thread
from .finished import FinishedRun
from .kept import Newcomer
from .received import Received, write_received


class Given(NamedTuple):
    """What the server gives."""

    config: str  # the run file
    summary: str  # as JSON
    received: Received


class Own(NamedTuple):
    """What a client that was in training has itself."""

    state: bytes | None  # packed
    data: Federation  # of this client alone


def keep_result(folder: Path, given: Given, model: Model, own: Own | None) -> None:
    """The folder as a whole or not at all; one that is there already stays, with what has been
    added to it. `own` is None of a client that was not in training.
    """
    if _holds(folder, given):
        return
    draft = folder.with_name(f"{folder.name}.{os.getpid()}")
    with one_line(folder, "written"):
        shutil.rmtree(draft, ignore_errors=True)
        try:
            _write(draft, given, model, own)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


def _holds(folder: Path, given: Given) -> bool:
    if not (folder / "summary.json").exists():
        return False
    summary = RunFolder.open(folder).read_summary() or {}
    return bool(summary.get("parameters_sha256") == _summary(given)["parameters_sha256"])


def _summary(given: Given) -> dict[str, Any]:
    found = parse_json(given.summary.encode())
    if not isinstance(found, dict) or not isinstance(found.get("parameters_sha256"), str):
        raise FormatError("a run's summary must be a JSON object with parameters_sha256, got other")
    return found


def _write(folder: Path, given: Given, model: Model, own: Own | None) -> None:
    with RunFolder.create(folder, given.config) as made:
        settings = read_run_folder(folder, trust=True)
        identity = {"config": made.config_digest(), **network_identity(settings, model)}
        clients = [] if own is None else [{"id": given.received.client, "held_out": False}]
        made.write_federation({"identity": identity, "clients": clients})
        write_received(folder, given.received)
        made.write_summary(_summary(given))
    if own is not None:
        _write_predictor(FinishedRun.open(folder, trust=True), own, given.received)


@one_thread()
def _write_predictor(run: FinishedRun, own: Own, received: Received) -> None:
    """Prepared now, while the client's examples are at hand."""
    id = received.client
    train = own.data.splits(id, run.summary["training_rounds"]).train
    state = None if own.state is None else tree.unpack(own.state)
    client = run.client(id, train, has_state=state is not None)
    predictor = Predictor.prepare(run.algorithm, client, state, run.message(id), new=False)
    answer = {
        "client": id,
        "algorithm": run.name,
        "kept_from": len(train),
        "parameters_sha256": run.summary["parameters_sha256"],
    }
    run.kept.keep(Newcomer(answer, tree.normal(predictor.state), received.own))
