"""One client after another in this process: what a debugger wants."""

from .job import Job, Outcome, States, outcome_of
from .workplace import Workplace


class Serial:
    name = "serial"

    def __init__(self, workplace: Workplace) -> None:
        self._workplace = workplace

    def perform(self, job: Job, states: States) -> Outcome:
        ids = job.present()
        before = (
            None if id is None else states.get(id) for id in ids
        )  # one at a time: they may lie on disk
        messages = (job.broadcast if job.each is None else job.each[id] for id in job.ids)
        value, visits = self._workplace.visit_all(
            job.task, ids, before, messages, job.additive, states.put
        )
        return outcome_of(
            value, {id: visit for id, visit in zip(ids, visits, strict=True) if id is not None}
        )

    def publish(self, name: str, data: bytes) -> None:
        self._workplace.publish(name, data)

    def close(self) -> None:
        pass
