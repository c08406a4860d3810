"""One client after another in this process: what a debugger wants."""

from pathlib import Path
from typing import ClassVar

from ...core import Order, Outcome
from ...data import Federation
from ..client_states import ClientStates, SavedClients
from ..node import Node
from ..setup import Setup
from .base import Simulation


class Serial(Simulation):
    name = "serial"
    node_type: ClassVar[type[Node]] = Node

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        states: ClientStates,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(states, noise_seed)
        self._node = self.node_type(setup, federation, states, self.secret)

    def perform(self, order: Order) -> Outcome:
        return self._node.perform(order)

    def load(self, folder: Path, saved: SavedClients) -> None:
        super().load(folder, saved)
        self._node.secret = self.secret

    def publish(self, name: str, data: bytes) -> None:
        self._node.publish(name, data)

    def close(self) -> None:
        pass
