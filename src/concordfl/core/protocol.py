"""What travels between a server and its clients: an order there, an outcome back. Data only.

An order names a step of the method that a client was configured with; nothing in it is code. The
same bytes go through a pipe to a worker process, over a socket, or inside another system's records.
"""

from typing import Any, Literal, NamedTuple, Self

from . import tree
from .client import ClientId
from .errors import FormatError
from .tree import Tree

Wanted = Literal["total", "replies"]

# Why a client that was asked is missing.
DROPPED_OUT = "dropped out"  # the simulation says that it does not answer
REFUSED = "refused"  # its reply or its new state was not finite
FAILED = "failed"  # its step raised an exception, or its answer was not an answer
TIMED_OUT = "timed out"  # it did not answer in time


class Message:
    """A NamedTuple that travels as bytes."""

    def to_bytes(self) -> bytes:
        return tree.pack(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        message = tree.unpack(data)
        if not isinstance(message, cls):
            kind = type(message).__name__
            raise FormatError(f"a message must be of kind {cls.__name__}, got {kind}")
        return message


class _Order(NamedTuple):
    step: str = ""
    stage: str = ""
    round: int = 1  # the run's, from 1: for people
    stage_round: int = 0  # the stage's own, from 0: for random keys and the learning rate
    training_round: int = 0  # training rounds so far with this one, on which drifting data depend
    clients: tuple[ClientId, ...] = ()
    dropped: tuple[ClientId, ...] = ()
    broadcast: Tree = None
    each: dict[ClientId, Tree] | None = None
    wanted: Wanted = "total"
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed; a tree's dict must be a dict


@tree.register
class Order(_Order, Message):
    """One step, asked of some clients.

    The position of a client in `clients` is its leaf of the tree along which replies are added.
    All clients receive `broadcast`, or, with `each`, a message of their own. `dropped` are those
    that a simulation lets drop out. `wanted` is the total of the replies, or all of them.
    """

    def message_to(self, id: ClientId) -> Tree:
        return self.broadcast if self.each is None else self.each[id]

    def only(self, clients: tuple[ClientId, ...]) -> "Order":
        """The same order for some of its clients."""
        kept = frozenset(clients)
        each = None if self.each is None else {id: self.each[id] for id in clients}
        dropped = tuple(id for id in self.dropped if id in kept)
        return self._replace(clients=clients, dropped=dropped, each=each)


@tree.register
class Missing(NamedTuple):
    """Why a client's reply does not count."""

    reason: str
    detail: str = ""


class _Outcome(NamedTuple):
    value: Tree = None
    sent: dict[ClientId, int] = {}  # noqa: RUF012 - as above
    missing: dict[ClientId, Missing] = {}  # noqa: RUF012 - as above


@tree.register
class Outcome(_Outcome, Message):
    """What came of an order.

    `value` is the total of the replies that count, or these replies by client; `sent` holds their
    sizes in bytes, so that nobody has answered where it is empty. Whoever else was asked is
    `missing`.
    """

    def because_of(self, reason: str) -> tuple[ClientId, ...]:
        """The clients that are missing for `reason`."""
        return tuple(sorted(id for id, why in self.missing.items() if why.reason == reason))
