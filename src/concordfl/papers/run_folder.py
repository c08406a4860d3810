"""What a measured run has written beside its figures."""

from typing import Any

from ..deploy.finished import FinishedRun
from ..deploy.kept import InFolder
from ..engine.records import RunFolder


def folder_of(finished: FinishedRun) -> RunFolder:
    if not isinstance(finished.kept, InFolder):
        raise TypeError("what is measured must be a run in a folder")
    return RunFolder.open(finished.kept.path)


def clients_of(finished: FinishedRun) -> list[dict[str, Any]]:
    """What is recorded of every client: id, groups, numbers of examples, whether it is held out."""
    recorded = folder_of(finished).read_federation()
    return [] if recorded is None else [dict(client) for client in recorded["clients"]]
