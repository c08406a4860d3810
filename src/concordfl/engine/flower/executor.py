"""An executor whose nodes are elsewhere: one client each, reached through a carrier.

Nodes come and go, and which client a node is only the node knows: each is asked once. An order
waits for its clients' answers until its time is up, for those whose node is not there too; whoever
has not answered then is missing. A client whose node stays away is not waited for a second time.

Clients keep their states themselves. The executor only says with which version a client is to
begin: committing a round makes the versions of its counted replies the ones to begin with,
discarding forgets them, and a checkpoint keeps the numbers. So nothing but orders must be sent.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ...core import (
    CheckpointError,
    ClientId,
    FormatError,
    Missing,
    Order,
    Outcome,
    Tree,
    tree,
)
from ...core.protocol import DROPPED_OUT, FAILED, REFUSED, TIMED_OUT
from ..client_states import SavedClients, SavedVersion
from ..evaluate import EVALUATION_STEPS
from ..node import MAX_DETAIL_CHARACTERS
from ..setup import Setup
from ..tree_sum import NOTHING, TreeSum
from .meeting import Carrier, Clock, Lost, Meeting, NodeId, Run, Ticket
from .parcel import Answer, Card, Farewell, Request, enclose


class Version(NamedTuple):
    """A state that a client keeps."""

    number: int
    sha256: str | None  # "" for no state; None where the client does not share it


NO_VERSION = Version(0, "")


class Counted(NamedTuple):
    """A reply that counts, and the state that its client has after it."""

    value: Tree
    version: Version


Versions = dict[ClientId, Version]


@dataclass
class Errand:
    """A request on its way to one client."""

    client: ClientId
    request: Request
    node: NodeId | None = None
    ticket: Ticket | None = None
    result: Answer | Missing | None = None


@dataclass
class RemoteNodes:
    """The executor."""

    carrier: Carrier
    setup: Setup
    run: Run
    meeting: Meeting
    timeout: float  # seconds for an order
    keep_checkpoints: int
    # the card of every client of the run: one that comes back with another is not the same
    roster: Mapping[ClientId, Card]
    clock: Clock = field(default_factory=Clock)

    name = "flower"

    def __post_init__(self) -> None:
        self._committed: Versions = {}
        self._pending: Versions = {}
        self._saved: list[Versions] = []  # of the checkpoints that are kept, the newest first
        self._published: dict[str, str] = {}  # sha256 by name
        self._publications: dict[str, bytes] = {}  # by sha256
        self._delivered: dict[ClientId, set[str]] = {id: set() for id in self.roster}
        self._left_out: set[ClientId] = set()  # whose nodes stayed away for a whole order
        self._last_number = 0

    # --- the executor's methods -------------------------------------------------------------------

    def perform(self, order: Order) -> Outcome:
        is_evaluation = order.step in EVALUATION_STEPS
        evaluation, after = (order, None) if is_evaluation else (None, order)
        errands = self._errands(evaluation, after)
        self._bring(errands)
        return self._outcome(order, errands)

    def perform_both(self, evaluation: Order, order: Order) -> tuple[Outcome, Outcome]:
        errands = self._errands(evaluation, order)
        self._bring(errands)
        return self._outcome(evaluation, errands), self._outcome(order, errands)

    def _errands(self, evaluation: Order | None, order: Order | None) -> list[Errand]:
        """One for every client that is asked for one of them or both."""
        first, then = _part_by_client(evaluation), _part_by_client(order)
        ids = dict.fromkeys([*first, *then])
        return [Errand(id, self._request(id, first.get(id), then.get(id))) for id in ids]

    def _outcome(self, order: Order, errands: Sequence[Errand]) -> Outcome:
        results = {errand.client: self._read(errand, order) for errand in errands}
        missing = Missing(DROPPED_OUT)
        dropped = frozenset(order.dropped)
        return self._join(
            order, {id: missing if id in dropped else results[id] for id in order.clients}
        )

    def publish(self, name: str, data: bytes) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        self._published[name], self._publications[sha256] = sha256, data

    def commit(self, round: int) -> None:
        self._committed |= self._pending
        self._pending = {}

    def discard(self) -> None:
        self._pending = {}

    def save(self, folder: Path, round: int) -> SavedClients:
        self._saved = [dict(self._committed), *self._saved][: self.keep_checkpoints]
        versions = [
            {id: SavedVersion(number=number, sha256=sha) for id, (number, sha) in each.items()}
            for each in self._saved
        ]
        return SavedClients(secret=None, states=None, versions=versions)

    def load(self, folder: Path, saved: SavedClients) -> None:
        versions = saved.get("versions")
        if not versions:
            raise CheckpointError(f"{folder} must hold versions of clients' states, got none")
        self._saved = [
            {id: Version(**version) for id, version in each.items()} for each in versions
        ]
        self._committed, self._pending = dict(self._saved[0]), {}
        numbers = (version.number for each in self._saved for version in each.values())
        self._last_number = max(numbers, default=0)

    def states_digest(self) -> str:
        """As of a simulation; "" where a client does not share what it is made of."""
        total = hashlib.sha256()
        for id, version in sorted(self._committed.items()):
            if version.sha256 is None:
                return ""
            if version.sha256:
                total.update(f"{id}\0{version.sha256}\n".encode(errors="surrogatepass"))
        return total.hexdigest()

    def personal_parts(self) -> Iterator[tuple[ClientId, bytes]]:
        """None: they stay with the clients."""
        yield from ()

    def close(self) -> None:
        pass

    # --- the end ----------------------------------------------------------------------------------

    def deliver(self, farewells: Mapping[ClientId, Farewell]) -> dict[ClientId, Missing]:
        """Give clients what came of the run, also those that were not in training; who has not
        kept it, and why.
        """
        errands = [
            Errand(id, self._request(id)._replace(farewell=each)) for id, each in farewells.items()
        ]
        self._bring(errands)
        found = {errand.client: errand.result for errand in errands}
        return {id: result for id, result in found.items() if isinstance(result, Missing)}

    # --- requests ---------------------------------------------------------------------------------

    def _request(
        self, id: ClientId, evaluation: Order | None = None, order: Order | None = None
    ) -> Request:
        wanted = set(self._published.values()) - self._delivered.setdefault(id, set())
        versions = [each.get(id, NO_VERSION).number for each in (*self._saved, self._committed)]
        base = self._pending.get(id, self._committed.get(id, NO_VERSION)).number
        return Request(
            self.run.id,
            self.run.config,
            self.run.objective,
            evaluation=evaluation,
            order=order,
            base=base,
            version=0 if order is None else self._next_number(),
            keep=tuple(sorted({base, *versions})),
            published=dict(self._published),
            enclosed=enclose(self._publications, sorted(wanted)),
            agreed=self.run.agreed,
        )

    def _next_number(self) -> int:
        """Greater than any before, also where a server was killed before it could save the last."""
        self._last_number = max(self._last_number + 1, time.time_ns() // 1000)
        return self._last_number

    def _bring(self, errands: Sequence[Errand]) -> None:
        """Let every errand have a result: an answer, or why there is none."""
        end = self.clock.now() + self.timeout
        while True:
            self.meeting.look()
            self._send(errands, end - self.clock.now())
            self._collect(errands)
            if not self._is_worth_waiting(errands):
                break
            if self.clock.now() >= end:
                break
            self.clock.sleep(self.clock.poll_seconds)
        for errand in errands:
            if errand.result is None:
                errand.result = self._leave_out(errand)

    def _send(self, errands: Sequence[Errand], seconds: float) -> None:
        """Send what has no ticket yet, or whose node has vanished and come back."""
        for errand in errands:
            if errand.result is not None or seconds <= 0:
                continue
            if errand.node not in self.meeting.there:
                errand.ticket = None
            node = self._node_of(errand.client)
            if errand.ticket is None and node is not None:
                errand.node = node
                errand.ticket = self.carrier.send(node, errand.request.to_bytes(), seconds)

    def _node_of(self, id: ClientId) -> NodeId | None:
        """A client's node, if it is there with the data that the run began with; of a newcomer the
        run knows none.
        """
        node = self.meeting.node_of(id)
        if node is None or id not in self.roster:
            return node
        return node if self.meeting.cards[node].is_same(self.roster[id]) else None

    def _collect(self, errands: Sequence[Errand]) -> None:
        by_ticket = {
            errand.ticket: errand
            for errand in errands
            if errand.ticket is not None and errand.result is None
        }
        for ticket, data in self.carrier.collect(list(by_ticket)).items():
            self._take(by_ticket[ticket], data)

    def _take(self, errand: Errand, data: bytes | Lost) -> None:
        errand.ticket = None
        if isinstance(data, Lost):
            if not data.is_gone:
                errand.result = Missing(FAILED, data.why)
            return
        try:
            answer = Answer.from_bytes(data).check()
        except FormatError as error:
            errand.result = Missing(FAILED, str(error))
            return
        published = errand.request.published.values()
        if answer.lacks and not set(answer.lacks) <= set(errand.request.enclosed):
            self._delivered[errand.client] -= set(answer.lacks)
            known = set(published) & set(answer.lacks)
            enclosed = enclose(self._publications, sorted(known))
            errand.request = errand.request._replace(enclosed=enclosed)
            return
        self._left_out.discard(errand.client)
        if not _answers(answer, errand.request):
            errand.result = Missing(FAILED, answer.refusal[:MAX_DETAIL_CHARACTERS] or "no outcome")
            return
        self._delivered[errand.client] |= set(published)
        errand.result = answer

    def _is_worth_waiting(self, errands: Sequence[Errand]) -> bool:
        """Whether an answer may come: a client that stayed away before is waited for only where
        nobody else is asked.
        """
        absent = {errand.client for errand in errands} & self._left_out
        hopeless = {id for id in absent if self._node_of(id) is None}
        if len(hopeless) == len(errands):
            hopeless = set()
        return any(errand.result is None and errand.client not in hopeless for errand in errands)

    def _leave_out(self, errand: Errand) -> Missing:
        if self._node_of(errand.client) is None:
            self._left_out.add(errand.client)
            return Missing(TIMED_OUT, "its node is not there")
        return Missing(TIMED_OUT, f"no answer within {self.timeout:g} s")

    # --- answers ----------------------------------------------------------------------------------

    def _read(self, errand: Errand, order: Order) -> Counted | Missing:
        """A client's reply, or why it does not count."""
        if isinstance(errand.result, Missing) or errand.result is None:
            return errand.result or Missing(FAILED)
        is_evaluation = order.step in EVALUATION_STEPS
        answer, part = errand.result, order.only((errand.client,))
        given = answer.evaluated if is_evaluation else answer.outcome
        try:
            outcome = (given or Outcome()).check(part)
        except FormatError as error:
            return Missing(FAILED, str(error))
        if outcome.missing:
            reason, detail = outcome.missing[errand.client]
            return Missing(reason, detail[:MAX_DETAIL_CHARACTERS])
        value = outcome.value[errand.client] if order.wanted == "replies" else outcome.value
        if is_evaluation:
            return Counted(value, NO_VERSION)
        if not tree.is_finite(value):
            return Missing(REFUSED, "NaN or infinity")
        return Counted(value, Version(errand.request.version, answer.state_sha256))

    def _join(self, order: Order, results: Mapping[ClientId, Counted | Missing]) -> Outcome:
        """One outcome of all clients' replies, added along the tree of the order."""
        total = TreeSum(len(order.clients), self.setup.aggregation.add)
        replies: dict[ClientId, Tree] = {}
        sent: dict[ClientId, int] = {}
        missing: dict[ClientId, Missing] = {}
        first: Tree = None
        for index, id in enumerate(order.clients):
            result = results[id]
            if isinstance(result, Counted) and sent and order.wanted == "total":
                result = self._fitting(result, first)
            if isinstance(result, Missing):
                missing[id] = result
                total.put(index, NOTHING)
                continue
            first = result.value if not sent else first
            sent[id] = tree.num_bytes(result.value)
            if result.version.number:
                self._pending[id] = result.version
            if order.wanted == "total":
                total.put(index, result.value)
            else:
                replies[id] = result.value
        value = replies if order.wanted == "replies" else total.value if sent else None
        return Outcome(value, sent, missing)

    def _fitting(self, result: Counted, first: Tree) -> Counted | Missing:
        """A reply that can be added to the `first` one: it comes from elsewhere."""
        try:
            self.setup.aggregation.add(first, result.value)
        except (LookupError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            return Missing(FAILED, f"replies must fit: {error}")
        return result


def _part_by_client(order: Order | None) -> dict[ClientId, Order]:
    """The order as each of its clients is given it; who drops out is not asked."""
    if order is None:
        return {}
    dropped = frozenset(order.dropped)
    return {id: order.only((id,)) for id in order.clients if id not in dropped}


def _answers(answer: Answer, request: Request) -> bool:
    """Whether all that was asked for has an answer."""
    if request.farewell is not None:
        return answer.has_kept
    is_evaluated = request.evaluation is None or answer.evaluated is not None
    return is_evaluated and (request.order is None or answer.outcome is not None)
