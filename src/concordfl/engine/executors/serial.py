"""One client after another in this process: what a debugger wants."""

from collections.abc import Callable

from ...core import ClientId
from .job import NOTHING, Job, Outcome, TreeSum
from .workplace import Workplace


class Serial:
    name = "serial"

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    def perform(self, job: Job, state_of: Callable[[ClientId], bytes | None]) -> Outcome:
        total = TreeSum(len(job.ids))
        outcome = Outcome({}, {}, {}, ())
        refused = []
        for place, id in enumerate(job.ids):
            if id in job.lost:
                total.put(place, NOTHING)
                continue
            visit = self._workplace.visit(job.task, id, state_of(id), job.broadcast if job.each is None else job.each[id])
            if visit.state is not None:
                outcome.states[id] = visit.state
            if visit.refused:
                refused.append(id)
                total.put(place, NOTHING)
                continue
            outcome.sent[id] = visit.size
            if job.additive:
                total.put(place, visit.reply)
            else:
                outcome.value[id] = visit.reply
        return outcome._replace(value=total.total if job.additive else outcome.value, refused=tuple(refused))

    def publish(self, name: str, data: bytes) -> None:
        self._workplace.publish(name, data)

    def close(self) -> None:
        pass
