"""What an executor is given and what it gives back."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ...core import Client, ClientId, Tree, tree
from ...data import Splits

# (client, its splits, its state or None before first contact, message) -> (state, reply)
Call = Callable[[Client, Splits, Tree, Tree], tuple[Tree, Tree]]


class Task(NamedTuple):
    """The part of a job that is the same for all its clients."""

    call: Call
    stage: str
    step: str
    round: int  # the run's round, from 1: for people
    stage_round: int  # the stage's own round, from 0: for random keys and the learning rate
    refuse_non_finite: bool


class Job(NamedTuple):
    """One task for some clients.

    The place of a client in `ids` is its leaf of the tree along which replies are added.
    """

    task: Task
    ids: tuple[ClientId, ...]
    broadcast: Tree
    each: Mapping[ClientId, Tree] | None
    additive: bool
    lost: frozenset[ClientId] = frozenset()  # asked, but will not answer

    def present(self) -> tuple[ClientId | None, ...]:
        """The clients at their leaves; None for one that will not answer."""
        return tuple(None if id in self.lost else id for id in self.ids)


class Visit(NamedTuple):
    """What came of one client's work.

    A refused reply counts as none, and leaves no trace in the client's state.
    """

    reply: Tree
    size: int  # bytes of the reply
    state: bytes | None  # packed; None where it has not changed
    refused: bool
    memo: bool  # whether this process now remembers something derived from the client's examples


NO_VISIT = Visit(None, 0, None, refused=False, memo=False)  # to a client that will not answer


class States(Protocol):
    """Where an executor gets clients' packed states, and puts changed ones as soon as they are
    there.
    """

    def get(self, id: ClientId) -> bytes | None: ...

    def put(self, id: ClientId, state: bytes) -> None: ...


class Outcome(NamedTuple):
    """The total of the replies, or the replies by client; their bytes; and the replies refused."""

    value: Any
    sent: dict[ClientId, int]
    refused: tuple[ClientId, ...]


def outcome_of(value: Any, visits: Mapping[ClientId, Visit]) -> Outcome:
    return Outcome(
        value,
        sent={id: visit.size for id, visit in sorted(visits.items()) if not visit.refused},
        refused=tuple(id for id, visit in sorted(visits.items()) if visit.refused),
    )


class Executor(Protocol):
    """Decides where client steps run. All executors give the same bits."""

    name: str

    def perform(self, job: Job, states: States) -> Outcome: ...

    def publish(self, name: str, data: bytes) -> None: ...

    def close(self) -> None: ...


class Nothing:
    """A leaf that is missing: its sibling takes its place."""


NOTHING = Nothing()


class TreeSum:
    """Adds `count` leaves along a fixed binary tree, in whatever order they arrive.

    Which additions are made depends on the number of leaves alone, so neither the number of workers
    nor the order of arrival changes a bit of the total. At most one partial sum per level and gap
    is held.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: dict[tuple[int, int], Any] = {}
        self.total: Any = NOTHING

    def put(self, index: int, value: Any, level: int = 0) -> None:
        """Add leaf `index`, or at a higher `level` the sum of the 2**level leaves of that node."""
        while (nodes := -(-self._count // 2**level)) > 1:
            sibling = index ^ 1
            if sibling < nodes:
                if (level, sibling) not in self._waiting:
                    self._waiting[level, index] = value
                    return
                other = self._waiting.pop((level, sibling))
                value = _merge(value, other) if index < sibling else _merge(other, value)
            level, index = level + 1, index // 2
        self.total = value


def _merge(left: Any, right: Any) -> Any:
    if left is NOTHING or right is NOTHING:
        return right if left is NOTHING else left
    return tree.add(left, right)
