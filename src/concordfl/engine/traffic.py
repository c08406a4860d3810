"""Bytes between server and clients, counted on the trees themselves; evaluation apart."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ..core import ClientId, Order, Outcome, tree


@dataclass
class Traffic:
    down: int = 0
    up: int = 0
    evaluation_down: int = 0
    evaluation_up: int = 0

    def count(self, order: Order, outcome: Outcome, *, evaluation: bool = False) -> None:
        """A message to every client asked, a reply from every client that answered."""
        if order.each is None:
            down = tree.num_bytes(order.broadcast) * len(order.clients)
        else:
            down = sum(tree.num_bytes(order.each[id]) for id in order.clients)
        self.add(down, sum(outcome.sent.values()), evaluation=evaluation)

    def add(self, down: int, up: int, *, evaluation: bool = False) -> None:
        if evaluation:
            self.evaluation_down += down
            self.evaluation_up += up
        else:
            self.down += down
            self.up += up

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


class Publications:
    """What the server has published: each thing is charged once to every client that comes to need
    it.
    """

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.size: dict[str, int] = {}
        self.delivered: dict[str, frozenset[ClientId]] = {}

    def copy(self) -> "Publications":
        other = Publications()
        other.data, other.size = dict(self.data), dict(self.size)
        other.delivered = dict(self.delivered)
        return other

    def publish(self, name: str, data: bytes, size: int) -> bool:
        """Take `data`; False where the very same is out already, which costs nothing again."""
        if self.data.get(name) == data:
            return False
        self.data[name], self.size[name], self.delivered[name] = data, size, frozenset()
        return True

    def deliver(self, ids: Iterable[ClientId]) -> int:
        """Bytes that go down to `ids` for what they have not yet received."""
        total = 0
        for name, received in self.delivered.items():
            new = frozenset(ids) - received
            if new:
                self.delivered[name] = received | new
            total += self.size[name] * len(new)
        return total
