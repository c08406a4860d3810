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
REASONS = (DROPPED_OUT, REFUSED, FAILED, TIMED_OUT)


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

    @property
    def where(self) -> str:
        """For messages: what was asked for when."""
        return f"stage {self.stage!r}, step {self.step!r}, round {self.round}"

    def check(self) -> "Order":
        """The order itself, if it is one: a peer may send anything."""
        texts = (self.step, self.stage)
        numbers = (self.round, self.stage_round, self.training_round)
        ids = self.clients if isinstance(self.clients, tuple) else (None,)
        dropped = self.dropped if isinstance(self.dropped, tuple) else (None,)
        if not (
            all(isinstance(text, str) for text in (*texts, *ids, *dropped))
            and all(type(number) is int and number >= 0 for number in numbers)
            and (self.each is None or (isinstance(self.each, dict) and set(ids) <= set(self.each)))
            and self.wanted in ("total", "replies")
            and isinstance(self.options, dict)
        ):
            raise FormatError("an order must have the types of its fields, got others")
        return self

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

    def check(self, order: Order) -> "Outcome":
        """The outcome itself, if it is one of `order`: a peer may send anything.

        It speaks of every client that was asked, and of no other.
        """
        if not isinstance(self.sent, dict) or not isinstance(self.missing, dict):
            raise FormatError("an outcome must say who has answered and who is missing")
        asked, named = set(order.clients), [*self.sent, *self.missing]
        if set(named) != asked or len(named) != len(asked):
            raise FormatError(
                f"an outcome must speak of {len(asked)} clients once each, got {len(named)} entries"
            )
        if not all(type(size) is int and size >= 0 for size in self.sent.values()):
            raise FormatError("the sizes of replies must be whole numbers >= 0")
        for missing in self.missing.values():
            whole = isinstance(missing, Missing) and isinstance(missing.detail, str)
            if not whole or missing.reason not in REASONS:
                raise FormatError(f"a reason must be one of {', '.join(REASONS)}")
        if order.wanted == "replies" and (
            not isinstance(self.value, dict) or set(self.value) != set(self.sent)
        ):
            raise FormatError("the replies must be those of the clients that have answered")
        return self

    def because_of(self, reason: str) -> tuple[ClientId, ...]:
        """The clients that are missing for `reason`."""
        return tuple(sorted(id for id, why in self.missing.items() if why.reason == reason))
