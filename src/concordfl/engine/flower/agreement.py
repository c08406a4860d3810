"""The stage before training in which clients with folders of their own agree how examples are read:
the server's side. It asks all clients twice; whoever does not fit is refused by name.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...config import Config
from ...core import ClientId, ConcordError, DataError, FormatError, SettingError
from ...data.agreement import (
    LOOK,
    VALUES,
    agree_on_reading,
    agree_on_values,
    from_record,
    moments_shape,
    to_record,
)
from ...data.preprocessing import Preprocessing
from ...data.row_splits import SPLIT_NAMES, require_both
from ...data.standardise import Moments
from ..node import MAX_DETAIL_CHARACTERS
from . import own_folder
from .meeting import Carrier, Clock, Lost, Meeting, NodeId, Ticket
from .members import Members
from .parcel import Answer, Card, Request, is_counts

SECONDS_TO_TELL = 60.0  # clients that somebody did not fit

Told = dict[ClientId, dict[str, Any]]


@dataclass
class Inquiry:
    """Brings a question to all clients of a run that is about to begin."""

    carrier: Carrier
    meeting: Meeting
    cards: Mapping[ClientId, Card]
    clock: Clock

    def ask(self, question: str, agreed: dict[str, Any], seconds: float) -> Told:
        """All answers; one that is lacking is an error that names the client."""
        run = self.meeting.run
        request = Request(run.id, run.config, question=question, agreed=agreed).to_bytes()
        end, told = self.clock.now() + seconds, Told()
        waiting: dict[Ticket, tuple[ClientId, NodeId]] = {}
        while True:
            self.meeting.look()
            self._send(request, waiting, told, end - self.clock.now())
            for ticket, data in self.carrier.collect(list(waiting)).items():
                id, _ = waiting.pop(ticket)
                if not isinstance(data, Lost) or not data.is_gone:  # else it is asked again
                    told[id] = _read(id, data)
            if len(told) == len(self.cards):
                return told
            if self.clock.now() >= end:
                late = next(id for id in self.cards if id not in told)
                raise SettingError(
                    f"client {late!r} must answer within {seconds:g} s while clients agree how "
                    "examples are read, got no answer"
                )
            self.clock.sleep(self.clock.poll_seconds)

    def _send(
        self,
        request: bytes,
        waiting: dict[Ticket, tuple[ClientId, NodeId]],
        told: Told,
        seconds: float,
    ) -> None:
        """Ask who has not been asked, or has vanished and come back."""
        there = self.meeting.there
        asked = {id for id, node in waiting.values() if node in there}
        for id, card in self.cards.items():
            node = self.meeting.node_of(id)
            if id in told or id in asked or node is None or seconds <= 0:
                continue
            if self.meeting.cards[node].is_same(card):
                ticket = self.carrier.send(node, request, seconds)
                if ticket is not None:
                    waiting[ticket] = id, node


def _read(id: ClientId, data: bytes | Lost) -> dict[str, Any]:
    if isinstance(data, Lost):
        raise DataError(f"client {id!r} must answer, got {data.why}")
    with _naming(id):
        answer = Answer.from_bytes(data).check()
    if answer.told is None:
        refusal = " ".join(answer.refusal.split())[:MAX_DETAIL_CHARACTERS]
        raise DataError(f"client {id!r} must answer, got {refusal or 'nothing'}")
    return answer.told


@contextlib.contextmanager
def _naming(id: ClientId) -> Iterator[None]:
    """What is wrong with a client's description is said of this client."""
    try:
        yield
    except FormatError as error:
        raise DataError(f"client {id!r}: {error}") from None


def agree(inquiry: Inquiry, settings: Config, seconds: float) -> Members:
    """The members of a run whose clients read their own folders; an answer may take `seconds`."""
    try:
        return _agree(inquiry, settings, seconds)
    except ConcordError as error:
        # The clients' logs say it too; that one of them does not answer changes nothing any more.
        with contextlib.suppress(ConcordError):
            inquiry.ask(own_folder.REFUSED, {"why": str(error)}, min(seconds, SECONDS_TO_TELL))
        raise


def _agree(inquiry: Inquiry, settings: Config, seconds: float) -> Members:
    cards, kind = inquiry.cards, settings.objective.kind
    source = own_folder.require_own_folders(settings)
    _require_count(settings, len(cards))
    _require_looks(cards)
    looks = {}
    for id, card in cards.items():
        with _naming(id):
            looks[id] = from_record(LOOK, card.look)
    if source.split is not None:
        counts = {name: sum(card.sizes[name] for card in cards.values()) for name in SPLIT_NAMES}
        require_both(counts, source.split, "the data")
    reading = agree_on_reading(looks, source, kind)
    values = {}
    for id, told in inquiry.ask(own_folder.VALUES, to_record(reading), seconds).items():
        with _naming(id):
            values[id] = from_record(VALUES, told)
    read = agree_on_values(looks, values, reading, source, kind)
    record = Preprocessing.from_record(read.to_record()).to_record()  # a peer may tell anything
    sums = inquiry.ask(own_folder.SUMS, record, seconds)
    # In the order of names, in which a simulation adds them.
    inputs = _moments(sums, "x", moments_shape(read)) if source.standardise else []
    targets = _moments(sums, "y", (len(read.targets),)) if read.kind == "regression" else []
    labels = {id: _labels(id, sums[id].get("labels")) for id in cards}
    complete = read.with_standards(inputs, targets)
    return Members.of(inquiry.meeting.run.id, cards, complete, labels, settings)


def _require_looks(cards: Mapping[ClientId, Card]) -> None:
    for id, card in cards.items():
        if card.look is None:
            raise SettingError(
                "all clients must have folders of their own where one has, got client "
                f"{id!r} with simulated data"
            )


def _require_count(settings: Config, count: int) -> None:
    if settings.scenario.clients not in (None, count):
        raise SettingError(
            f"scenario.clients must be left out or {count}, the clients that are there, got "
            f"{settings.scenario.clients}"
        )


def _moments(sums: Told, name: str, shape: tuple[int, ...]) -> list[Moments]:
    """Of all clients; a peer may send anything."""
    found = []
    for id in sorted(sums):
        match sums[id].get(name):
            case {
                "present": torch.Tensor() as present,
                "total": torch.Tensor() as total,
                "squares": torch.Tensor() as squares,
            } if _are_sums(present, total, squares, shape):
                found.append(Moments(present.numpy(), total.numpy(), squares.numpy()))
            case _:
                raise DataError(
                    f"client {id!r}: sums must be finite numbers of shape {list(shape)}, got others"
                )
    return found


def _are_sums(
    present: torch.Tensor, total: torch.Tensor, squares: torch.Tensor, shape: tuple[int, ...]
) -> bool:
    return (
        present.dtype == torch.int64
        and bool((present >= 0).all())
        and all(part.dtype == torch.float64 for part in (total, squares))
        and all(tuple(part.shape) == shape for part in (present, total, squares))
        and all(bool(part.isfinite().all()) for part in (total, squares))
    )


def _labels(id: ClientId, counts: Any) -> list[int] | None:
    if counts is None or is_counts(counts):
        found: list[int] | None = counts
        return found
    raise DataError(f"client {id!r}: labels must be counts, got others")
