"""A part of a run of many clients, timed from within: called as `python scale_task.py TASK SETTINGS
RESULT`, with settings as JSON; the figures go to the file RESULT as JSON.
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import concordfl as cf
from concordfl.engine.checkpoint import Progress
from concordfl.engine.experiment import Experiment, Turn


class TimedExperiment:
    """Seconds of every training round, of checkpoints and of restoring one, of the experiments
    that `concordfl.run` makes in this process.
    """

    def __init__(self) -> None:
        self.rounds: list[float] = []
        self.saves: list[float] = []
        self.restores: list[float] = []
        play, save, restore = Experiment.play, Experiment._save, Experiment.restore

        def timed_play(experiment: Experiment, turn: Turn, progress: Progress) -> None:
            began = time.perf_counter()
            play(experiment, turn, progress)
            if turn.stage.trains:
                self.rounds.append(time.perf_counter() - began)

        def timed_save(experiment: Experiment, progress: Progress) -> None:
            began = time.perf_counter()
            save(experiment, progress)
            self.saves.append(time.perf_counter() - began)

        def timed_restore(experiment: Experiment) -> Progress:
            began = time.perf_counter()
            progress = restore(experiment)
            self.restores.append(time.perf_counter() - began)
            return progress

        Experiment.play = timed_play  # type: ignore[assignment, method-assign]
        Experiment._save = timed_save  # type: ignore[assignment, method-assign]
        Experiment.restore = timed_restore  # type: ignore[assignment, method-assign]


def begin(settings: Mapping[str, Any]) -> dict[str, float]:
    """A run up to its last round but one."""
    began = time.perf_counter()
    timed, ends = TimedExperiment(), []
    cf.run(
        settings["sections"],
        out=settings["out"],
        until=settings["sections"]["run"]["rounds"] - 1,
        on_round=lambda _: ends.append(time.perf_counter() - began),
    )
    # The first round warms up, and the first checkpoints have everything to write.
    return {
        "first_round": ends[0],
        "round": statistics.median(timed.rounds[1:] or timed.rounds),
        "checkpoint": statistics.median(timed.saves[2:] or timed.saves),
    }


def resume(settings: Mapping[str, Any]) -> dict[str, float]:
    """Its last round, from its folder."""
    timed = TimedExperiment()
    cf.resume(settings["out"])
    return {"resume": timed.restores[0]}


def first_round(settings: Mapping[str, Any]) -> dict[str, float]:
    """A run of one round."""
    began = time.perf_counter()
    ends: list[float] = []
    cf.run(settings["sections"], on_round=lambda _: ends.append(time.perf_counter() - began))
    return {"first_round": ends[0]}


TASKS = {"begin": begin, "resume": resume, "first_round": first_round}


def main(task: str, settings: str, result: str) -> None:
    Path(result).write_text(json.dumps(TASKS[task](json.loads(settings))))


if __name__ == "__main__":
    main(*sys.argv[1:])
