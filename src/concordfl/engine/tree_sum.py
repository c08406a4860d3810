"""Sums that do not depend on who adds what when."""

from collections.abc import Callable
from typing import Any

from ..core import Tree, tree


class Nothing:
    """A leaf that is missing: its sibling takes its place."""


NOTHING = Nothing()


class TreeSum:
    """Adds `count` leaves along a fixed binary tree, in whatever order they arrive.

    Which additions are made depends on the number of leaves alone, so neither the number of workers
    nor the order of arrival changes a bit of the total. At most one partial sum per level and gap
    is held.
    """

    def __init__(self, count: int, add: Callable[[Tree, Tree], Tree] = tree.add) -> None:
        self._count, self._add = count, add
        self._waiting: dict[tuple[int, int], Any] = {}
        self.value: Any = NOTHING

    def put(self, index: int, value: Any, level: int = 0) -> None:
        """Add leaf `index`, or at a higher `level` the sum of the 2**level leaves of that node."""
        while (nodes := -(-self._count // 2**level)) > 1:
            sibling = index ^ 1
            if sibling < nodes:
                if (level, sibling) not in self._waiting:
                    self._waiting[level, index] = value
                    return
                other = self._waiting.pop((level, sibling))
                pair = (value, other) if index < sibling else (other, value)
                value = self._merge(*pair)
            level, index = level + 1, index // 2
        self.value = value

    def _merge(self, left: Any, right: Any) -> Any:
        if left is NOTHING or right is NOTHING:
            return right if left is NOTHING else left
        return self._add(left, right)
