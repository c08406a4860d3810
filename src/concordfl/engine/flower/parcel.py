"""What travels between the server and a node elsewhere: a request there, an answer back.

A node may be a new process for every request, so each request says all that the node must know: the
run's settings, which version of the client's state to begin with, and what has been published.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core import FormatError, Order, Outcome, Tree, tree
from ...core.protocol import Message
from ..files import canonical_json

RUN_ID = re.compile("[0-9a-f]{32}")
SHA256 = re.compile("[0-9a-f]{64}")


@tree.register
class Farewell(NamedTuple):
    """What a client is given of a run that is over."""

    summary: str  # as JSON, without what concerns other clients
    own: Tree  # what it predicts with; None where that is what a new client is given
    new: Tree  # None where the method has nothing for new clients
    took_part: bool  # whether it was in training


class _Request(NamedTuple):
    run_id: str = ""
    config: str = ""  # the run file
    objective: tuple[str, dict[str, Any]] | None = None  # its kind and settings, once it is known
    evaluation: Order | None = None  # to be performed before the order
    order: Order | None = None
    farewell: Farewell | None = None
    base: int = 0  # the version of the client's state to begin with; 0 where it has none yet
    version: int = 0  # the name of the state that comes of it; 0 where an order leaves none
    keep: tuple[int, ...] = ()  # older versions that may be asked for again
    published: dict[str, str] = {}  # noqa: RUF012 - never changed: sha256 by name
    enclosed: dict[str, Tensor] = {}  # noqa: RUF012 - as above: bytes by sha256
    question: str = ""  # of the stage in which clients agree how examples are read
    agreed: dict[str, Any] = {}  # noqa: RUF012 - as above: what they have agreed on so far


@tree.register
class Request(_Request, Message):
    """What a server asks of a node: to introduce itself, to answer a `question`, to perform an
    `evaluation`, an `order` or one after the other, or to keep what came of the run.
    """

    def check(self) -> "Request":
        """The request itself, if it is one: a peer may send anything."""
        versions = self.keep if isinstance(self.keep, tuple) else (None,)
        published = self.published.items() if isinstance(self.published, dict) else ((0, 0),)
        enclosed = self.enclosed.items() if isinstance(self.enclosed, dict) else ((0, 0),)
        if not (
            _matches(RUN_ID, self.run_id)
            and isinstance(self.config, str)
            and (self.objective is None or _is_objective(self.objective))
            and all(each is None or isinstance(each, Order) for each in self._orders)
            and (self.farewell is None or _is_farewell(self.farewell))
            and all(type(number) is int and number >= 0 for number in versions)
            and all(type(number) is int and number >= 0 for number in (self.base, self.version))
            and all(isinstance(name, str) and _matches(SHA256, sha) for name, sha in published)
            and all(_matches(SHA256, sha) and is_bytes(data) for sha, data in enclosed)
            and isinstance(self.question, str)
            and isinstance(self.agreed, dict)
        ):
            raise FormatError("a request must have the types of its fields, got others")
        for each in self.orders:
            each.check()
        return self

    @property
    def _orders(self) -> tuple[Order | None, Order | None]:
        return self.evaluation, self.order

    @property
    def orders(self) -> list[Order]:
        """What is to be performed, in order."""
        return [each for each in self._orders if each is not None]


def _is_farewell(value: Any) -> bool:
    return (
        isinstance(value, Farewell)
        and isinstance(value.summary, str)
        and isinstance(value.took_part, bool)
    )


def _is_objective(value: Any) -> bool:
    match value:
        case (str(), dict()):
            return True
    return False


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


@tree.register
class Card(NamedTuple):
    """How a client introduces itself: what the server must know, and what it is allowed to."""

    name: str
    sizes: dict[str, int]  # of its splits
    preprocessing: dict[str, Any]  # how examples are read, see Preprocessing.to_record
    labels: list[int] | None = None  # of the training examples, where the client shares them
    look: dict[str, Any] | None = None  # how its own file looks, see data/agreement.py

    def is_same(self, other: "Card") -> bool:
        """Also where one of them was kept in a file."""
        return canonical_json(self) == canonical_json(other)


class _Answer(NamedTuple):
    card: Card | None = None
    evaluated: Outcome | None = None  # of the evaluation
    outcome: Outcome | None = None  # of the order
    has_kept: bool = False  # what came of the run
    lacks: tuple[str, ...] = ()  # sha256 of publications that must be enclosed
    state_sha256: str | None = None  # of the new state, "" for none, where the client shares it
    refusal: str = ""  # why nothing was done
    told: dict[str, Any] | None = None  # the answer to a question


@tree.register
class Answer(_Answer, Message):
    """What came of a request: one of a card, what was asked for, an outcome, that the run's result
    was kept, what is lacking, or a refusal.
    """

    def check(self) -> "Answer":
        """The answer itself, if it is one: a peer may send anything."""
        lacks = self.lacks if isinstance(self.lacks, tuple) else (None,)
        if not (
            (self.card is None or _is_card(self.card))
            and (self.evaluated is None or isinstance(self.evaluated, Outcome))
            and (self.outcome is None or isinstance(self.outcome, Outcome))
            and isinstance(self.has_kept, bool)
            and all(_matches(SHA256, sha) for sha in lacks)
            and (self.state_sha256 in (None, "") or _matches(SHA256, self.state_sha256))
            and isinstance(self.refusal, str)
            and (self.told is None or isinstance(self.told, dict))
        ):
            raise FormatError("an answer must have the types of its fields, got others")
        return self


def _is_card(card: Any) -> bool:
    return (
        isinstance(card, Card)
        and isinstance(card.name, str)
        and isinstance(card.sizes, dict)
        and set(card.sizes) == {"train", "validation", "test"}
        and all(_is_count(size) for size in card.sizes.values())
        and isinstance(card.preprocessing, dict)
        and (card.labels is None or is_counts(card.labels))
        and (card.look is None or isinstance(card.look, dict))
    )


def is_counts(values: Any) -> bool:
    return isinstance(values, list) and all(_is_count(value) for value in values)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


# --- bytes inside a tree --------------------------------------------------------------------------


def enclose(publications: Mapping[str, bytes], wanted: Iterable[str]) -> dict[str, Tensor]:
    """The publications of `wanted`, under their names, as a tree holds them."""
    return {
        name: torch.frombuffer(bytearray(publications[name]), dtype=torch.uint8) for name in wanted
    }


def is_bytes(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1
