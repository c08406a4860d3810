"""The real engine, played round by round without evaluation and files."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from .. import assemble
from ..config import Config
from ..data import Federation
from ..engine.checkpoint import Progress
from ..engine.choice import Choice
from ..engine.experiment import Experiment, Turn
from ..engine.roster import Roster


class EngineRounds(NamedTuple):
    """An experiment that has been started."""

    experiment: Experiment
    progress: Progress

    def play(self) -> None:
        """One more round."""
        self.experiment.play(self.next_turn, self.progress)

    @property
    def next_turn(self) -> Turn:
        return self.experiment.turns[self.progress.round]

    @property
    def is_over(self) -> bool:
        return self.progress.round == len(self.experiment.turns)


@contextmanager
def engine_rounds(
    settings: Config, federation: Federation, executor: str, workers: int = 2
) -> Iterator[EngineRounds]:
    """The rounds of a run; its worker processes end with it."""
    model = assemble.make_model(settings, federation)
    setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
    made = Choice(executor, workers, "timed").make(setup, federation, settings.run, None)
    try:
        roster = Roster.from_federation(federation, setup)
        experiment = Experiment(setup, roster, settings.run, made)
        yield EngineRounds(experiment, experiment.start())
    finally:
        made.close()
