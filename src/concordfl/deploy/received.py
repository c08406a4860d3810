"""What a client of a real federation has of a finished run.

Its folder is a run folder without the server's state, in the place of which it holds what the
client was given: `predict`, `adapt`, `score` and `export` work there without the server.

    received.safetensors    what this client, and any new one, is given; and what was published
    adapted/<client>        what it predicts with, if it was in training: see kept.py
"""

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import ClientId, FormatError, Tree, tree
from ..engine.files import damage_in, read_file, write_atomically
from ..engine.records import RECEIVED_FILE
from ..engine.sealed_tensors import seal_client_tree, verify_client_tree
from ..engine.traffic import Publications

ADVICE = "let the server send it again"
# The file is sealed like a client's: in its place stands what it is.
SEALED_AS = "received"


@tree.register
class Received(NamedTuple):
    """What a server gives a client at the end."""

    client: ClientId  # whom it was given to
    own: Tree  # what it predicts with; None where that is what a new client is given
    new: Tree  # None where the method has nothing for new clients
    published: dict[str, Tensor]  # bytes by name

    def message(self, id: ClientId | None) -> Tree:
        """As the server's state would give it."""
        return self.new if id is None or self.own is None else self.own

    def publications(self) -> Publications:
        made = Publications()
        for name, data in self.published.items():
            made.publish(name, data.numpy().tobytes(), 0)
        return made


def write_received(folder: Path, received: Received) -> None:
    write_atomically(_file(folder), seal_client_tree(SEALED_AS, tree.pack(received)))


def read_received(folder: Path) -> Received | None:
    """None in the folder of a run whose server's state is there."""
    file = _file(folder)
    if not file.exists():
        return None
    data = read_file(file)
    with damage_in(file, ADVICE):
        verify_client_tree(SEALED_AS, data)
        found = tree.unpack(data)
        if not isinstance(found, Received) or not _is_whole(found):
            raise FormatError("it must hold what a server gives a client, got another tree")
        return found


def _is_whole(received: Received) -> bool:
    published = received.published
    return (
        isinstance(received.client, str)
        and isinstance(published, dict)
        and all(
            isinstance(data, Tensor) and data.dtype == torch.uint8 for data in published.values()
        )
    )


def _file(folder: Path) -> Path:
    return folder / RECEIVED_FILE
