"""Sums over a round's clients, where rounds do not ask all of them."""

from ..core import Cohort, Tree, tree


def with_absent(cohort: Cohort, new: Tree, old: Tree | None) -> Tree:
    """Older sums stand for who has not answered; they fade by the share of clients that have."""
    absent = 1 - len(cohort.ids) / cohort.population
    if old is None or absent <= 0:
        return new
    return tree.add(tree.scale(old, absent), new)
