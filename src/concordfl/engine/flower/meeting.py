"""Who is there: nodes come and go, and which client a node is only the node knows."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...core import ClientId, FormatError, SettingError
from .parcel import Answer, Card, Request

NodeId = int
Ticket = str

log = logging.getLogger(__name__)


class Lost(NamedTuple):
    """Why no answer will come for a ticket."""

    why: str
    is_gone: bool  # the node is no longer there, and may come back


class Carrier(Protocol):
    """Brings bytes to nodes elsewhere, and their answers back."""

    def nodes(self) -> frozenset[NodeId]:
        """Those that are there now."""

    def send(self, node: NodeId, data: bytes, seconds: float) -> Ticket | None:
        """Bring `data` to a node, which has `seconds` to answer; None where that failed."""

    def collect(self, tickets: Sequence[Ticket]) -> Mapping[Ticket, bytes | Lost]:
        """What has come of some of the tickets since."""


class Run(NamedTuple):
    """What every request says of its run."""

    id: str
    config: str
    objective: tuple[str, dict[str, Any]] | None = None
    agreed: dict[str, Any] = {}  # noqa: RUF012 - never changed: how clients read their own files


@dataclass
class Clock:
    """Time, as an executor needs it."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    poll_seconds: float = 0.5


class Meeting:
    """Which node is which client: every node is asked once."""

    def __init__(self, carrier: Carrier, run: Run, seconds: float) -> None:
        self.run, self._carrier, self._seconds = run, carrier, seconds
        self._question = Request(run.id, run.config).to_bytes()
        self._tickets: dict[Ticket, NodeId] = {}
        self._asked: set[NodeId] = set()
        self.cards: dict[NodeId, Card] = {}  # in the order of introduction
        self.refusals: dict[NodeId, str] = {}
        self.there: frozenset[NodeId] = frozenset()

    @property
    def is_settled(self) -> bool:
        """Whether nobody who is there has still to answer."""
        return not self._tickets

    def look(self) -> None:
        """See who is there, ask those who are new, and take their answers."""
        self.there = self._carrier.nodes()
        for node in sorted(self.there - self._asked):
            ticket = self._carrier.send(node, self._question, self._seconds)
            if ticket is not None:
                self._tickets[ticket] = node
                self._asked.add(node)
        for ticket, data in self._carrier.collect(list(self._tickets)).items():
            self._take(self._tickets.pop(ticket), data)

    def _take(self, node: NodeId, data: bytes | Lost) -> None:
        if isinstance(data, Lost):
            if data.is_gone:
                self._asked.discard(node)  # it may come back
                return
            self._refuse(node, data.why)
            return
        try:
            answer = Answer.from_bytes(data).check()
        except FormatError as error:
            self._refuse(node, str(error))
            return
        if answer.card is None:
            self._refuse(node, answer.refusal or "it did not introduce itself")
        else:
            self.cards[node] = answer.card

    def _refuse(self, node: NodeId, why: str) -> None:
        log.warning("node %s takes no part: %s", node, why)
        self.refusals[node] = why

    def node_of(self, client: ClientId) -> NodeId | None:
        """The node of a client, if it is there. Of two that say they are the same client the first
        counts for as long as it is there.
        """
        nodes = (node for node, card in self.cards.items() if card.name == client)
        return next((node for node in nodes if node in self.there), None)

    def present(self) -> dict[ClientId, Card]:
        """The clients that are there, by name; of two of one name the first, as in `node_of`."""
        found: dict[ClientId, Card] = {}
        for node, card in self.cards.items():
            if node in self.there:
                found.setdefault(card.name, card)
        return dict(sorted(found.items()))

    def require_different_names(self) -> None:
        """Of two clients with one name, one would be left out."""
        names = Counter(card.name for node, card in self.cards.items() if node in self.there)
        for name, count in names.items():
            if count > 1:
                raise SettingError(
                    f"every client must have another name, got two nodes called {name!r}"
                )

    def wait_for(
        self,
        is_enough: Callable[[Mapping[ClientId, Card]], bool],
        seconds: float,
        clock: Clock,
        *,
        is_start: bool = True,
    ) -> dict[ClientId, Card]:
        """The clients that are there as soon as they are enough, or when the time is up.

        At the start of a run all must have different names; later a client may have come back as
        another node while its last one still seems to be there.
        """
        end = clock.now() + seconds
        while True:
            self.look()
            if is_start:
                self.require_different_names()
            if is_enough(self.present()) or clock.now() >= end:
                return self.present()
            clock.sleep(clock.poll_seconds)
