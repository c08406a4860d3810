"""What executors share that hand out blocks of clients to workers."""

import traceback
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple, Never

from ...core import (
    ClientId,
    ClientStepError,
    FormatError,
    Missing,
    Order,
    Outcome,
    Tree,
    WorkerError,
    tree,
)
from ..node import Node
from ..setup import Setup
from ..tree_sum import NOTHING, TreeSum
from .pool import Block, Pool

MAX_DEATHS_PER_BLOCK = 3  # of the workers that were at it, before the run is given up


@tree.register
class BlockResult(NamedTuple):
    """What a worker sends back for a block, beside the new states' bytes."""

    outcome: Outcome
    state_sizes: dict[ClientId, int]
    remembered: list[ClientId]  # of whose examples the worker remembers something derived

    @classmethod
    def from_bytes(cls, data: bytes) -> "BlockResult":
        result = tree.unpack(data)
        if not isinstance(result, cls):
            raise FormatError(f"a worker must answer a result, got {type(result).__name__}")
        return result


class RemoteTraceback(Exception):  # noqa: N818 - it only carries a text
    """The traceback of a step that failed in a worker process, as text."""


class Failure(NamedTuple):
    """What a worker sends back where a step has failed: texts, as an exception may not travel."""

    message: bytes
    traceback: bytes

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        """Of the exception that is being handled."""
        texts = (str(error), traceback.format_exc())
        return cls(*(text.encode(errors="backslashreplace") for text in texts))

    def raise_here(self) -> Never:
        raise ClientStepError(self.message.decode()) from RemoteTraceback(self.traceback.decode())


class Work:
    """An order in the making: what is still to be done, and what has come of the rest."""

    def __init__(self, order: Order, setup: Setup, pool: Pool) -> None:
        self.order, self.pool = order, pool
        # What all workers need to know of the order; who does it for whom goes with the blocks.
        self.shared = order._replace(clients=(), dropped=(), each=None).to_bytes()
        self._deaths: Counter[Block] = Counter()
        self._total = TreeSum(len(order.clients), setup.aggregation.add)
        self._replies: dict[ClientId, Tree] = {}
        self._sent: dict[ClientId, int] = {}
        self._missing: dict[ClientId, Missing] = {}

    def add(self, block: Block, outcome: Outcome) -> None:
        self._sent |= outcome.sent
        self._missing |= outcome.missing
        if self.order.wanted == "replies":
            self._replies |= outcome.value
        else:
            value = outcome.value if outcome.sent else NOTHING
            try:
                self._total.put(block.number, value, block.level)
            except (KeyError, RuntimeError, TypeError, ValueError) as error:
                raise ClientStepError(f"{self.order.where}: replies must fit: {error}") from error

    def put_back(self, block: Block, worker: int, cause: str, question: str) -> None:
        """A worker has died at a block: it is done again, but not for ever."""
        self.pool.put_back(block, worker)
        self._deaths[block] += 1
        if self._deaths[block] == MAX_DEATHS_PER_BLOCK:
            raise WorkerError(
                f"a worker process died {MAX_DEATHS_PER_BLOCK} times at the same work (clients "
                f"{', '.join(block.ids)}; {cause}): {question}"
            )

    def outcome(self) -> Outcome:
        value: Tree = self._replies
        if self.order.wanted == "total":
            value = self._total.value if self._sent else None
        sent, missing = dict(sorted(self._sent.items())), dict(sorted(self._missing.items()))
        return Outcome(value, sent, missing)


# --- in the worker --------------------------------------------------------------------------------


class LentStates:
    """The states of a block's clients, which are kept elsewhere: what changes goes back there."""

    def __init__(self) -> None:
        self._states: dict[ClientId, bytes] = {}
        self.changed: dict[ClientId, bytes] = {}

    def lend(self, states: Mapping[ClientId, bytes]) -> None:
        self._states, self.changed = dict(states), {}

    def get(self, id: ClientId) -> bytes | None:
        return self._states.get(id)

    def put(self, id: ClientId, state: bytes) -> None:
        self.changed[id] = state

    def commit(self) -> None:
        pass

    def discard(self) -> None:
        pass


def do_block(
    node: Node, states: LentStates, order: Order, lent: Mapping[ClientId, bytes]
) -> BlockResult:
    """Perform an order for a block's clients; their new states are then in `states.changed`."""
    states.lend(lent)
    outcome = node.perform(order)
    changed = {id: len(state) for id, state in states.changed.items()}
    return BlockResult(outcome, changed, [id for id in order.clients if node.remembers(id)])
