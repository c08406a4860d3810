"""Who takes part in a round, and who drops out of it."""

from collections.abc import Sequence

from ..core import ClientId, Key


def sample(ids: Sequence[ClientId], size: int, key: Key) -> tuple[ClientId, ...]:
    """`size` of the clients, drawn without replacement; a pure function of the sorted ids and the
    key.
    """
    ordered = sorted(ids)
    if size >= len(ordered):
        return tuple(ordered)
    return tuple(sorted(ordered[index] for index in key.permutation(len(ordered))[:size].tolist()))


def dropouts(ids: Sequence[ClientId], chance: float, key: Key) -> frozenset[ClientId]:
    """The clients that will not answer, each by a draw of its own."""
    if chance == 0:
        return frozenset()
    return frozenset(id for id in ids if key.child(id).uniform((1,)).item() < chance)
