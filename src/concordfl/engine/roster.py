"""Roster: what a server knows of its clients. Their data are not part of it."""

from collections.abc import Mapping
from typing import NamedTuple

from ..core import ClientId, Task
from ..data import Federation
from .setup import Setup


class Roster(NamedTuple):
    """Who is there, and for what task."""

    participants: tuple[ClientId, ...]
    held_out: tuple[ClientId, ...]  # take no part in training and stand for new clients
    population: tuple[ClientId, ...]  # who is asked in training: the participants, or all as one
    task: Task
    # the true group of a client by the kind of difference, where it is known
    groups: Mapping[ClientId, Mapping[str, str]]
    sizes: Mapping[ClientId, int]  # numbers of training examples

    @classmethod
    def from_federation(cls, federation: Federation, setup: Setup) -> "Roster":
        """The roster of a simulation."""
        task = Task(setup.model, setup.objective, federation.input_shape, federation.scale)
        sizes = {id: federation.size(id) for id in federation.participants}
        return cls(
            federation.participants,
            federation.held_out,
            federation.population,
            task,
            federation.groups,
            sizes,
        )
