"""What an executor is, and what the executors of a simulation have in common."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

from ...core import CheckpointError, ClientId, Order, Outcome
from ...core.client import Secret
from ..client_states import ClientStates, SavedClients


class Executor(Protocol):
    """Decides where nodes are and brings orders to them. All give the same bits, but for
    `vectorized`, whose results are theirs within a tolerance.

    Clients' states are theirs: what a round has made of them is pending until `commit`.
    """

    name: str

    def perform(self, order: Order) -> Outcome: ...

    def publish(self, name: str, data: bytes) -> None: ...

    def commit(self, round: int) -> None:
        """The round counts, and so do its states."""

    def discard(self) -> None:
        """The round is void, and its states are forgotten."""

    def save(self, folder: Path, round: int) -> SavedClients:
        """Bring committed states to disk; what `load` needs to find them."""

    def load(self, folder: Path, saved: SavedClients) -> None:
        """Take up the states that were saved, after making sure that none is damaged."""

    def states_digest(self) -> str:
        """sha256 over all committed states, in the order of client ids."""

    def personal_parts(self) -> Iterator[tuple[ClientId, bytes]]:
        """The committed states of the clients that have one."""

    def close(self) -> None: ...


@runtime_checkable
class FarExecutor(Executor, Protocol):
    """One whose trips take long: an evaluation goes with the order that follows it."""

    def perform_both(self, evaluation: Order, order: Order) -> tuple[Outcome, Outcome]:
        """As if `evaluation` had been performed before `order`."""


class Simulation:
    """The clients' side of an executor whose clients all live on this machine."""

    def __init__(self, states: ClientStates, noise_seed: int | None) -> None:
        self.states = states
        # One secret serves all clients of a simulation: what is drawn is keyed by the client too.
        self._noise_seed = noise_seed
        self.secret: Secret = secrets.token_hex(16) if noise_seed is None else noise_seed

    def commit(self, round: int) -> None:
        self.states.commit()

    def discard(self) -> None:
        self.states.discard()

    def save(self, folder: Path, round: int) -> SavedClients:
        return SavedClients(secret=self.secret, states=self.states.save(folder, round))

    def load(self, folder: Path, saved: SavedClients) -> None:
        secret, states = saved["secret"], saved["states"]
        if secret is None or states is None:
            raise CheckpointError(f"{folder} must hold the states of simulated clients, got none")
        self.states.load(folder, states)
        self.secret = secret if self._noise_seed is None else self._noise_seed

    def states_digest(self) -> str:
        return self.states.digest()

    def personal_parts(self) -> Iterator[tuple[ClientId, bytes]]:
        for id in self.states.ids():
            state = self.states.get(id)
            if state is not None:
                yield id, state
