"""How the clients of an order are divided among workers."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ...core import ClientId, Order


class Block(NamedTuple):
    """The clients below one node of the tree along which replies are added."""

    level: int
    number: int  # among the nodes of that level
    ids: tuple[ClientId, ...]

    def halves(self) -> Iterator["Block"]:
        """The blocks of the nodes below; the second may be empty, and is left out then."""
        half = 2 ** (self.level - 1)
        for side, ids in enumerate((self.ids[:half], self.ids[half:])):
            if ids:
                yield Block(self.level - 1, 2 * self.number + side, ids)


class Pool:
    """The blocks that are still to be done.

    The heaviest is taken first, after being split until it is at most a worker's equal share of
    what is left: few and large blocks at the start spare the parent, which takes a core from a
    worker whenever it is asked, small ones at the end keep all workers busy to the last. Clients of
    which a worker remembers something go to that worker alone.
    """

    def __init__(
        self, order: Order, size: Callable[[ClientId], int], home: dict[ClientId, int], workers: int
    ) -> None:
        dropped = frozenset(order.dropped)
        # A client that drops out costs nothing and may be anybody's.
        self._weight = {id: 1 + size(id) for id in order.clients if id not in dropped}
        self._home = {id: worker for id, worker in home.items() if id in self._weight}
        self._workers = workers
        level = (len(order.clients) - 1).bit_length()
        self._blocks = [Block(level, 0, order.clients)]

    def take(self, worker: int) -> Block | None:
        """The next block for a worker; None where nothing is left that it may do."""
        while open_blocks := [block for block in self._blocks if self._may_do(worker, block)]:
            block = max(open_blocks, key=self._weigh)
            self._blocks.remove(block)
            if block.level == 0 or self._is_due(worker, block):
                return block
            self._blocks.extend(block.halves())
        return None

    @property
    def is_empty(self) -> bool:
        return not self._blocks

    def put_back(self, block: Block, worker: int) -> None:
        """A block whose worker has died, and with it all that it remembered."""
        self._home = {id: home for id, home in self._home.items() if home != worker}
        self._blocks.append(block)

    def _may_do(self, worker: int, block: Block) -> bool:
        """Whether there is something for the worker in a block."""
        return any(self._home.get(id, worker) == worker for id in block.ids)

    def _is_due(self, worker: int, block: Block) -> bool:
        """Whether a block need not be split.

        It is the worker's alone, or it is anybody's and at most an equal share of what is left.
        """
        homes = {self._home.get(id) for id in block.ids if id in self._weight}
        left = self._weigh(block) + sum(self._weigh(other) for other in self._blocks)
        anybodys = homes <= {None} and self._weigh(block) * self._workers <= left
        return homes == {worker} or anybodys

    def _weigh(self, block: Block) -> int:
        return sum(self._weight.get(id, 0) for id in block.ids)
