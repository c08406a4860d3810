"""Lockstep: functions that run side by side, one at a time, and wait for each other's questions.

A client's step is a plain function that calls `fit`, waits, and goes on. To answer many clients
with one computation, each step runs as a greenlet: where it asks something it is parked, and once
all are parked or done, all questions are answered together. Never do two of them run at once, and
all are of one thread, so nothing in a step has to know of this.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from greenlet import GreenletExit, getcurrent, greenlet

Ask = Callable[[Any], Any]
Job = Callable[[Ask], Any]


def run_in_lockstep(
    jobs: Sequence[Job], serve: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """What each of the jobs returns; the first exception of one is raised, and ends all.

    A job is given a function that asks; `serve` answers all that are asked at a time.
    """
    fibers = [Fiber(job) for job in jobs]
    try:
        for fiber in fibers:
            fiber.begin()
        while parked := [fiber for fiber in fibers if fiber.is_parked]:
            answers = serve([fiber.question for fiber in parked])
            for fiber, answer in zip(parked, answers, strict=True):
                fiber.answer(answer)
        return [fiber.result for fiber in fibers]
    finally:
        for fiber in fibers:
            fiber.cancel()


class Fiber:
    """A job that only runs while its owner waits for it."""

    def __init__(self, job: Job) -> None:
        self._owner, self._greenlet = getcurrent(), greenlet(job)
        self.is_parked, self.question, self.result = False, None, None

    # --- the owner's side -------------------------------------------------------------------------

    def begin(self) -> None:
        """Run the job until it asks something or is done; its exception is raised here."""
        self._hand_over(self._ask)

    def answer(self, answer: Any) -> None:
        """Let the parked job go on until it asks again or is done."""
        self._hand_over(answer)

    def cancel(self) -> None:
        """End a job that is parked."""
        if self.is_parked:
            self.is_parked = False
            with _gradient_mode_kept():
                self._greenlet.throw(GreenletExit)

    def _hand_over(self, value: Any) -> None:
        self.is_parked = False
        with _gradient_mode_kept():
            found = self._greenlet.switch(value)
        self.is_parked = not self._greenlet.dead
        if self.is_parked:
            self.question = found
        else:
            self.result = found

    # --- the job's side ---------------------------------------------------------------------------

    def _ask(self, question: Any) -> Any:
        with _gradient_mode_kept():
            return self._owner.switch(question)


def _gradient_mode_kept() -> AbstractContextManager[Any]:
    """Whether gradients are recorded is a matter of the thread: whoever goes on finds it as it
    was.
    """
    return torch.set_grad_enabled(torch.is_grad_enabled())
