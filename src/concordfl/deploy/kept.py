"""What a finished run keeps beside its server's state: its clients' states and data, and what
clients that joined later have made of it.

In a run's folder a client that joined is two files:

    adapted/<client>.safetensors    what it predicts with, sealed with its id
    adapted/<client>.json           what came of it; it names the sha256 of the other file
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import InstanceOf, with_config
from typing_extensions import TypedDict

from ..assemble import make_federation
from ..config import Config
from ..core import CheckpointError, ClientId, FormatError, Tree, tree
from ..data import Federation
from ..engine.checkpoint import check_identity
from ..engine.files import (
    SealedJson,
    damage_in,
    file_name,
    make_folder,
    read_file,
    write_atomically,
)
from ..engine.records import ClientFacts, RunFolder
from ..engine.sealed_tensors import seal_client_tree, verify_client_tree

ADVICE = "let the client adapt again"
MAX_SECONDS_TO_WAIT = 10.0  # for another process that keeps a client in the same folder


class Newcomer(NamedTuple):
    """A client that joined a finished run: what came of it, and what it predicts with."""

    answer: dict[str, Any]
    state: Tree
    message: Tree | None  # None where it is what any new client receives


@with_config(extra="allow")
class Answer(TypedDict):
    """What readers of `adapted/<client>.json` rely on; it holds more."""

    client: InstanceOf[str]  # which need not be valid Unicode
    parameters_sha256: str  # of the run that the client joined
    predictor_sha256: str  # of the other file


ANSWER = SealedJson(Answer, format=2, advice=ADVICE, indent=2)


class Kept(ABC):
    """What a finished run keeps, wherever that is."""

    @property
    @abstractmethod
    def participants(self) -> tuple[ClientId, ...]:
        """Who took part in training."""

    @property
    @abstractmethod
    def held_out(self) -> tuple[ClientId, ...]:
        """Who only measured how well new clients are served."""

    @abstractmethod
    def state(self, id: ClientId) -> Tree | None:
        """The personal part of a participant; None where it has none."""

    @abstractmethod
    def federation(self) -> Federation:
        """The clients and their examples."""

    @abstractmethod
    def newcomer(self, id: ClientId) -> Newcomer | None:
        """A client that joined later; None where nobody of that name has."""

    @abstractmethod
    def newcomers(self) -> list[ClientId]:
        """Who joined later, in order."""

    @abstractmethod
    def keep(self, newcomer: Newcomer) -> None:
        """Keep a client that has joined; it replaces one of the same name."""


@dataclass(frozen=True)
class InMemory(Kept):
    """Of a run without a folder."""

    data: Federation
    states: Mapping[ClientId, bytes]  # packed
    joined: dict[ClientId, Newcomer] = field(default_factory=dict)

    @property
    def participants(self) -> tuple[ClientId, ...]:
        return self.data.participants

    @property
    def held_out(self) -> tuple[ClientId, ...]:
        return self.data.held_out

    def state(self, id: ClientId) -> Tree | None:
        return tree.unpack(self.states[id]) if id in self.states else None

    def federation(self) -> Federation:
        return self.data

    def newcomer(self, id: ClientId) -> Newcomer | None:
        return self.joined.get(id)

    def newcomers(self) -> list[ClientId]:
        return sorted(self.joined)

    def keep(self, newcomer: Newcomer) -> None:
        self.joined[newcomer.answer["client"]] = newcomer


@dataclass(frozen=True)
class InFolder(Kept):
    """Of a run in a folder, whose data are read again when they are needed."""

    path: Path  # of the folder, after a look that it holds no links
    settings: Config
    identity: Mapping[str, str]  # of its settings and data
    parameters_sha256: str  # of the server's last state
    clients: tuple[ClientFacts, ...]  # as federation.json has them

    @property
    def participants(self) -> tuple[ClientId, ...]:
        return self._ids(held_out=False)

    @property
    def held_out(self) -> tuple[ClientId, ...]:
        return self._ids(held_out=True)

    def _ids(self, *, held_out: bool) -> tuple[ClientId, ...]:
        return tuple(client["id"] for client in self.clients if client["held_out"] is held_out)

    def state(self, id: ClientId) -> Tree | None:
        return RunFolder(self.path).read_client_state(id)

    def federation(self) -> Federation:
        return self._federation

    @cached_property
    def _federation(self) -> Federation:
        """Made anew from the run's data, which must be those that it had."""
        made = make_federation(self.settings)
        now = {**self.identity, "data": made.fingerprint()}
        check_identity(self.path, self.identity, now)
        return made

    # --- adapted/ ---------------------------------------------------------------------------------

    def newcomer(self, id: ClientId) -> Newcomer | None:
        file = answer_file(self.path, id)
        answer = ANSWER.read(file)
        if answer is None:
            return None
        with damage_in(file, ADVICE):
            if answer["client"] != id:
                raise FormatError(f"it must be of client {id!r}, got {answer['client']!r}")
        if answer["parameters_sha256"] != self.parameters_sha256:
            raise CheckpointError(f"{file} is of another run than its folder: {ADVICE}")
        held = self._read_predictor(id, answer["predictor_sha256"])
        return Newcomer(dict(answer), held["state"], held["message"])

    def _read_predictor(self, id: ClientId, sha256: str) -> dict[str, Tree]:
        file = _predictor_file(self.path, id)
        data = read_file(file)
        with damage_in(file, ADVICE):
            if hashlib.sha256(data).hexdigest() != sha256:
                raise FormatError("it must have the sha256 that its answer names, got another")
            verify_client_tree(id, data)
            held = tree.unpack(data)
            if not isinstance(held, dict) or held.keys() != {"state", "message"}:
                raise FormatError("it must hold a state and a message, got another tree")
            return held

    def newcomers(self) -> list[ClientId]:
        """A damaged answer is left out: whoever asks for that client is told."""
        found = []
        for file in self.path.glob("adapted/*.json"):
            with suppress(FormatError, CheckpointError):
                answer = ANSWER.read(file)
                found += [] if answer is None else [answer["client"]]
        return sorted(found)

    def keep(self, newcomer: Newcomer) -> None:
        with RunFolder(self.path, wait_seconds=MAX_SECONDS_TO_WAIT):
            self.write(newcomer)

    def write(self, newcomer: Newcomer) -> None:
        """The two files, which name each other: whoever writes them holds the folder's lock."""
        id = newcomer.answer["client"]
        held = {"state": newcomer.state, "message": newcomer.message}
        data = seal_client_tree(id, tree.pack(held))
        file = _predictor_file(self.path, id)
        make_folder(file.parent)
        write_atomically(file, data)
        sha256 = hashlib.sha256(data).hexdigest()
        answer = {**newcomer.answer, "predictor_sha256": sha256}
        ANSWER.write(answer_file(self.path, id), answer)


def answer_file(folder: Path, client: ClientId) -> Path:
    """Where the answer to a client that joined the run in `folder` is written."""
    return folder / "adapted" / file_name(client, ".json")


def _predictor_file(folder: Path, client: ClientId) -> Path:
    return folder / "adapted" / file_name(client, ".safetensors")
