"""`concordfl bench methods`: what a round of every method costs, beside what it claims."""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import assemble
from ..algorithms import ALGORITHMS
from ..core import SettingError
from ..engine.threads import one_thread
from ..papers.estimate import times_fedavg_by_stage
from ..report.pictures import Panel
from .engine_rounds import EngineRounds, engine_rounds
from .findings import Cell, Findings, FindingsTable, bars, rounded
from .turns import NUM_WARM_UPS, Report, silent
from .workload import Workload, images, make_config

WORKLOAD = Workload("10 x 300", clients=10, examples=300, cohort=10, batch_size=64)
REFERENCE = "fedavg"
COLUMNS = (
    "method",
    "stage",
    "processor ms a round",
    "times FedAvg's",
    "lowest",
    "highest",
    "claimed",
    "bytes, times FedAvg's",
    "remark",
)
# Measured and claimed may differ by this factor, and a round that is claimed to cost nothing may
# cost that much of FedAvg's.
TOLERANCE = 1.35
NEXT_TO_NOTHING = 0.25
FAR = "far from the claim"


class Round(NamedTuple):
    """What a round cost, and FedAvg's of the same turn."""

    seconds: float
    reference_seconds: float
    sent: int  # bytes, down and up
    reference_sent: int


@dataclass
class Course:
    """A method that is played round by round; what its training rounds cost, by stage."""

    name: str
    rounds: EngineRounds
    costs: dict[str, list[Round]] = field(default_factory=dict)

    @property
    def is_preparing(self) -> bool:
        stage = self.rounds.next_turn.stage
        return stage.prepares and not stage.trains

    def is_measured(self, enough: int) -> bool:
        """Whether the last stage has been played often enough."""
        last = self.rounds.experiment.turns[-1].stage.name
        return self.rounds.is_over or len(self.costs.get(last, ())) >= enough

    def play(self) -> tuple[float, int]:
        """Seconds and bytes of one more round. The seconds are those of the processor, as all is
        done in this process: other work on the machine changes them less.
        """
        traffic = self.rounds.progress.traffic
        before, began = traffic.down + traffic.up, time.process_time()
        self.rounds.play()
        return time.process_time() - began, traffic.down + traffic.up - before


def measure_methods(
    repeats: int,
    *,
    quick: bool = False,
    report: Report = silent,
    names: Sequence[str] = tuple(ALGORITHMS),
) -> Findings:
    """The methods take turns, and FedAvg plays a round in each of them."""
    workload = WORKLOAD.quick() if quick else WORKLOAD
    enough = repeats + NUM_WARM_UPS
    notes = [images(workload.clients * workload.examples).source]
    with one_thread(), ExitStack() as stack:
        courses: dict[str, Course] = {}
        for name in sorted(set(names)):
            try:
                courses[name] = _start(name, workload, 2 * enough, stack)
            except SettingError as reason:  # a method that this network does not suit
                notes.append(f"{name} is skipped: {reason}")
            report(name)
        _take_turns(courses, enough, report, _start(REFERENCE, workload, 1000, stack))
    rows = [row for course in courses.values() for row in _rows(course)]
    flagged = [f"{row[0]} ({row[1]})" for row in rows if row[-1] == FAR]
    if flagged:
        notes.append(f"Far from the claim: {', '.join(flagged)}.")
    table = FindingsTable(
        f"Rounds of methods, {workload.description}, in one process", COLUMNS, tuple(rows), labels=2
    )
    return Findings("methods", (table,), tuple(notes), _panels(rows), repeats)


def count_steps(repeats: int, names: Sequence[str] = tuple(ALGORITHMS)) -> int:
    """About how often `report` is called."""
    return len(set(names)) * (1 + repeats + NUM_WARM_UPS)


def _start(name: str, workload: Workload, rounds: int, stack: ExitStack) -> Course:
    """A method up to its first training round."""
    settings = make_config(workload, rounds, name)
    federation = assemble.make_federation(settings)
    played = stack.enter_context(engine_rounds(settings, federation, "serial"))
    course = Course(name, played)
    while course.is_preparing:
        course.play()
    return course


def _take_turns(courses: dict[str, Course], enough: int, report: Report, reference: Course) -> None:
    while left := [each for each in courses.values() if not each.is_measured(enough)]:
        theirs = reference.play()
        for course in left:
            is_preparing, stage = course.is_preparing, course.rounds.next_turn.stage.name
            seconds, sent = course.play()
            if not is_preparing:
                cost = Round(seconds, theirs[0], sent, theirs[1])
                course.costs.setdefault(stage, []).append(cost)
            report(course.name)


# --- claims ---------------------------------------------------------------------------------------


def remark(measured: float, claimed: float) -> str:
    """FAR where they do not fit."""
    if claimed == 0:
        return FAR if measured > NEXT_TO_NOTHING else ""
    return FAR if max(measured / claimed, claimed / measured) > TOLERANCE else ""


# --- what is shown --------------------------------------------------------------------------------


def _rows(course: Course) -> list[tuple[Cell, ...]]:
    """A row for every stage of more than one round."""
    algorithm = course.rounds.experiment.algorithm
    stages = {name: costs for name, costs in course.costs.items() if len(costs) > 1}
    claimed = times_fedavg_by_stage(algorithm)
    rows = []
    for number, (stage, costs) in enumerate(stages.items()):
        claim = claimed[max(number - len(stages), -len(claimed))]  # the last is the last stage's
        rows.append(_row(course.name, stage, costs, claim))
    return rows


def _row(name: str, stage: str, costs: Sequence[Round], claim: float) -> tuple[Cell, ...]:
    timed = costs[min(NUM_WARM_UPS, len(costs) - 1) :]
    seconds = [each.seconds / each.reference_seconds for each in timed]
    sent = statistics.median(each.sent / each.reference_sent for each in timed)
    measured = statistics.median(seconds)
    spent = 1000 * statistics.median(each.seconds for each in timed)
    figures = (round(spent, 1), measured, min(seconds), max(seconds), claim, sent)
    return rounded((name, stage, *figures, remark(measured, claim)), 2)


def _panels(rows: Sequence[tuple[Cell, ...]]) -> tuple[Panel, ...]:
    def column(name: str) -> dict[str, float]:
        found = {}
        for row in rows:
            value = row[COLUMNS.index(name)]
            if isinstance(value, (int, float)):
                found[f"{row[0]} {row[1]}"] = float(value)
        return found

    seconds = {"measured": column("times FedAvg's"), "claimed": column("claimed")}
    sent = {"": column("bytes, times FedAvg's")}
    return (
        bars("seconds of a round", "times FedAvg's", seconds),
        bars("bytes of a round", "times FedAvg's", sent),
    )
