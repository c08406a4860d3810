"""Nodes elsewhere that are here after all: a federation's parts without any services."""

import itertools
from functools import partial

from concordfl.engine.experiment import Experiment
from concordfl.engine.flower import host
from concordfl.engine.flower.executor import RemoteNodes
from concordfl.engine.flower.host import Hosted
from concordfl.engine.flower.meeting import Clock, Lost, Meeting, Run
from concordfl.engine.roster import Roster

RUN_ID = "0123456789abcdef" * 2
EVERYTHING = frozenset(host.SHARES)


class FakeTime(Clock):
    """Time passes only where somebody sleeps; `at` is called then."""

    def __init__(self, at=lambda seconds: None):
        self.seconds, self.at = 0.0, at
        super().__init__(lambda: self.seconds, self._sleep, 1.0)

    def _sleep(self, seconds):
        self.seconds += seconds
        self.at(self.seconds)


class FakeCarrier:
    """`respond[node](data)` gives an answer, or None where the node hangs."""

    def __init__(self):
        self.respond, self.there = {}, set()
        self.seen = []  # every message, both ways
        self._numbers, self._waiting = itertools.count(1), {}

    def nodes(self):
        return frozenset(self.there)

    def send(self, node, data, seconds):
        ticket = f"ticket-{next(self._numbers)}"
        self._waiting[ticket] = (node, data)
        self.seen.append(data)
        return ticket

    def collect(self, tickets):
        found = {}
        for ticket in tickets:
            node, data = self._waiting[ticket]
            gone = Lost("its node is gone", is_gone=True)
            answer = self.respond[node](data) if node in self.there else gone
            if answer is not None:
                found[ticket] = answer
                del self._waiting[ticket]
        self.seen += [answer for answer in found.values() if isinstance(answer, bytes)]
        return found


def respond_as(name, setup, data, folder, shares=EVERYTHING, secret=0):
    """What the node of a toy client does with a request."""

    def load(request):
        known = setup if request.objective else None
        return Hosted(name, data.only(name), known, folder / name, shares, secret)

    return partial(host.respond, load=load)


def nodes(folder, setup, data, **how):
    carrier = FakeCarrier()
    for number, name in enumerate(data.participants, 1):
        carrier.respond[number] = respond_as(name, setup, data, folder, **how)
        carrier.there.add(number)
    return carrier


def federate(carrier, setup, data, plan, folder=None, time=None, timeout=10.0):
    """An experiment whose clients are the nodes of the carrier."""
    time, objective = time or FakeTime(), setup.objective
    meeting = Meeting(carrier, Run(RUN_ID, "toy"), timeout)
    count = len(data.participants)
    cards = meeting.wait_for(lambda present: len(present) == count, 5.0, time)
    run = Run(RUN_ID, "toy", (objective.kind, objective.to_table()))
    executor = RemoteNodes(
        carrier, setup, run, meeting, timeout, plan.keep_checkpoints, cards, time
    )
    roster = Roster.from_federation(data, setup)._replace(held_out=())
    return Experiment(setup, roster, plan, executor, folder)
