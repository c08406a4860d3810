"""Experiment: the loop over rounds. Everything that a method does not do itself is done here.

It is the server's side: it knows a roster of clients and an executor that brings orders to them,
and sees neither their data nor their states.
"""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..core import (
    Algorithm,
    ClientId,
    ClientStepError,
    Cohort,
    Key,
    Model,
    NoReplies,
    Order,
    Outcome,
    ServerStep,
    SettingError,
    Stage,
    Tree,
    tree,
)
from ..core.protocol import FAILED, REFUSED, TIMED_OUT
from ..metrics import criterion_in, is_better, last_ten
from . import checkpoint, evaluate, sampling
from .checkpoint import Progress, Selected
from .executors import Executor, FarExecutor
from .files import make_folder
from .plan import Plan
from .records import RecordsSeal, RunFolder
from .roster import Roster
from .setup import Setup
from .threads import one_thread
from .traffic import Publications

MAX_ATTEMPTS = 20  # to reach anybody in a stage that training builds on
MAX_ORDERS_PER_ROUND = 1000  # orders of a repeated round are numbered from here on
MAX_FAILURES_RECORDED = 100
SECONDS_BETWEEN_PROGRESS = 1.0  # that is written for whoever watches

ClientRows = dict[ClientId, dict[str, Any]]


class Turn(NamedTuple):
    """One round of the schedule."""

    round: int  # the run's, from 1
    stage: Stage
    stage_round: int  # the stage's own
    training_round: int  # training rounds so far, with this one if it is one


class Event(NamedTuple):
    """What an observer is told after every round; `record` where the round was evaluated."""

    turn: Turn
    rounds: int
    seconds: float
    record: Mapping[str, Any] | None
    is_saved: bool = False  # whether a checkpoint holds it: a run that is killed now keeps it


class Stop(Exception):  # noqa: N818 - a wish, not a fault
    """Raised by an observer to end the run with the round that it was told of."""


def ignore(event: Event) -> None:
    """The observer of a run that nobody watches."""


@dataclass
class Experiment:
    """A run: a method and the clients of a roster, according to a plan."""

    setup: Setup
    roster: Roster
    plan: Plan
    executor: Executor
    folder: RunFolder | None = None
    observe: Callable[[Event], None] = ignore
    identity: Mapping[str, str] = field(default_factory=dict)  # of the run, sealed by checkpoints
    records: list[dict[str, Any]] = field(default_factory=list)
    # figures by client of evaluated rounds, where there is no folder to write them to
    client_rows: dict[int, ClientRows] = field(default_factory=dict)
    is_stopped: bool = False  # whether an observer ended it
    problems: tuple[str, ...] = ()  # checkpoints that were damaged, where a run was taken up again

    def __post_init__(self) -> None:
        self.algorithm, self.task = self.setup.algorithm, self.roster.task
        self._due: Turn | None = None  # whose evaluation goes with the next order
        self._late: list[tuple[Turn, dict[str, Any]]] = []  # records that came of such evaluations
        population = len(self.roster.participants)
        self.turns = list(schedule(self.algorithm, self.plan, self.task.model, population))
        self.cohort_size = min(self.plan.cohort_size(population), len(self.roster.population))
        self.evaluated = sampling.sample(
            self.roster.participants,
            self.plan.evaluation_size(population),
            Key(self.plan.seed, "evaluated clients"),
        )

    # --- the loop ---------------------------------------------------------------------------------

    def start(self) -> Progress:
        """The state of affairs before the first round."""
        return Progress(tree.normal(self.algorithm.init_server(self.task, self.plan.seed)))

    def restore(self) -> Progress:
        """The state of affairs at the newest checkpoint; before the first round if there is none
        yet.
        """
        if self.folder is None:
            return self.start()
        if not list(self.folder.checkpoints.glob("manifest-*.json")):
            self.folder.cut_records()
            self.folder.cut_clients(0)
            return self.start()
        progress, self.problems = checkpoint.load(
            self.folder.checkpoints, self.executor.load, self.identity, self.folder.records_file
        )
        self.folder.cut_records(progress.records)
        self.folder.cut_clients(progress.round)
        self.records = self.folder.read_records()
        for name, data in progress.publications.data.items():
            self.executor.publish(name, data)
        turn = self.turns[progress.round - 1]
        is_recorded = bool(self.records) and self.records[-1]["round"] == turn.round
        if self._can_wait(turn) and not is_recorded and self._is_evaluated(turn, progress):
            self._due = turn
        return progress

    def run(self, progress: Progress, until: int | None = None) -> Progress:
        """Play the rounds that are left; or those up to the round `until`, and on to the first that
        is evaluated, so that there is something to report.
        """
        with one_thread():
            self._play_all(progress, len(self.turns) if until is None else until)
        return progress

    def is_over(self, progress: Progress) -> bool:
        """Whether nothing is left to play."""
        is_played = progress.round == len(self.turns)
        return is_played or self.is_stopped or self._is_stalled(progress, self.records)

    def _is_stalled(self, progress: Progress, records: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the last stage that trains, which others may follow, has been evaluated
        `run.patience` times since the selected round.

        It follows from what was recorded: a resumed run ends where a straight one does.
        """
        if self.plan.patience is None or progress.selected is None:
            return False
        best = progress.selected.round
        training = [turn.stage.name for turn in self.turns if turn.stage.trains]
        last_stage = training[-1] if training else self.turns[-1].stage.name
        later = [
            record for record in records if record["stage"] == last_stage and record["round"] > best
        ]
        return len(later) >= self.plan.patience

    def _play_all(self, progress: Progress, end: int) -> None:
        saved = told = time.monotonic()
        self._tell(progress)
        while (progress.round < end or not self.records) and not self.is_over(progress):
            turn = self.turns[progress.round]
            began = time.monotonic()
            self.play(turn, progress)
            spent = progress.step_seconds.get(turn.stage.name, 0.0)
            progress.step_seconds[turn.stage.name] = spent + time.monotonic() - began
            record = None
            if self._is_evaluated(turn, progress):
                if turn.round < end and self._can_wait(turn):
                    self._due = turn
                else:
                    record = self._evaluate(turn, progress)
            progress.seconds += time.monotonic() - began
            before = progress.records
            if record is not None:
                self._record(record, progress)
            ends = bool(progress.round >= end and self.records) or self.is_over(progress)
            is_saved = ends or time.monotonic() - saved >= self.plan.checkpoint_seconds
            if is_saved:
                self._save(progress)
                saved = time.monotonic()
            if ends or time.monotonic() - told >= SECONDS_BETWEEN_PROGRESS:
                self._tell(progress)
                told = time.monotonic()
            late, self._late = self._late, []
            try:
                for earlier, found in late:
                    self._show(earlier, found, progress, is_saved=is_saved)
                self._show(turn, record, progress, is_saved=is_saved)
            except Stop:
                if not self.is_over(progress):
                    self._end_with(turn, progress, record, before)
                return

    def _show(
        self, turn: Turn, record: Mapping[str, Any] | None, progress: Progress, *, is_saved: bool
    ) -> None:
        self.observe(Event(turn, len(self.turns), progress.seconds, record, is_saved))

    def _end_with(
        self,
        turn: Turn,
        progress: Progress,
        record: Mapping[str, Any] | None,
        before: RecordsSeal,
    ) -> None:
        """Make a round the last one: it is evaluated as such, in the place of its own `record`."""
        if not self.algorithm.ready(progress.server):
            raise SettingError(
                "a run must not be stopped before there is something to predict with, got Stop in "
                f"round {turn.round}"
            )
        self._due = None
        if record is None or self.algorithm.scores_samples:
            if record is not None:
                self.records.pop()
                progress.records = before
                if self.folder is not None:
                    self.folder.cut_records(before)
            self._record(self._evaluate(turn, progress, last=True), progress)
        self._save(progress)
        self.is_stopped = True

    def _can_wait(self, turn: Turn) -> bool:
        """Whether an evaluation may go with the next order: nothing must depend on it before."""
        is_far = isinstance(self.executor, FarExecutor) and not self.roster.held_out
        return is_far and self.plan.patience is None and not self._is_last(turn)

    def _is_last(self, turn: Turn) -> bool:
        return turn.round == len(self.turns)

    def _is_evaluated(self, turn: Turn, progress: Progress) -> bool:
        """The last round always is, if there is something to predict with, as there must be."""
        ready = self.algorithm.ready(progress.server)
        if self._is_last(turn):
            if not ready:
                raise self._unanswered(turn)
            return True
        return ready and is_due(turn, self.plan)

    def play(self, turn: Turn, progress: Progress) -> None:
        """One round. A stage that training builds on is asked again if nobody answered."""
        needed = turn.stage.everyone and turn.stage.required
        attempts = range(MAX_ATTEMPTS if needed else 1)
        counts = any(self._play_once(turn, progress, attempt) for attempt in attempts)
        if needed and not counts:
            raise self._unanswered(turn)
        progress.void_training_rounds += turn.stage.trains and not counts
        progress.round = turn.round

    def _play_once(self, turn: Turn, progress: Progress, attempt: int) -> bool:
        """Whether the round counts: server state and client states do together, or not at all."""
        self.executor.discard()  # what an earlier attempt that was broken off has left
        cohort = self._assemble(turn, progress, attempt)
        asked, published = set(cohort.ids), progress.publications.copy()
        try:
            server = turn.stage.play(progress.server, cohort)
        except NoReplies:
            self._settle(progress)
            counts = False
            progress.void_rounds += 1
            self.executor.discard()
            self._take_back(progress, published)
        else:
            self._settle(progress)
            counts = True
            self._check_step(turn, progress.server, cohort.server_step)
            progress.server, progress.momentum = tree.normal(server), cohort.server_step.memory
            self.executor.commit(turn.round)
        if counts and turn.stage.everyone:
            answered = set(cohort.ids)
            newly_absent = asked - answered if turn.stage.required else set()
            progress.absent = (progress.absent - answered) | newly_absent
        return counts

    def _check_step(self, turn: Turn, before: Tree, server_step: ServerStep) -> None:
        """An option that would be ignored is refused.

        Not in a round that prepares, be it late because nobody had answered, nor in one that does
        not train.
        """
        trains = turn.stage.trains and not turn.stage.prepares and self.algorithm.ready(before)
        if self.setup.aggregation.steps and not server_step.count and trains:
            raise SettingError(
                "aggregation.server_lr and server_momentum need a method whose new models are "
                f"means of the clients', got {type(self.algorithm).__name__}"
            )

    def _unanswered(self, turn: Turn) -> ClientStepError:
        least = self.plan.min_replies
        clients = "1 client" if least == 1 else f"{least} clients"
        rule = f"at least {clients} must answer once before training, got fewer"
        return ClientStepError(f"stage {turn.stage.name!r}, round {turn.round}: {rule}")

    def _take_back(self, progress: Progress, before: Publications) -> None:
        """What a void round has published does not count."""
        for name, data in before.data.items():
            if progress.publications.data[name] != data:
                self.executor.publish(name, data)
        progress.publications = before

    def _assemble(self, turn: Turn, progress: Progress, attempt: int = 0) -> Cohort:
        numbers = itertools.count(attempt * MAX_ORDERS_PER_ROUND)

        def ask(order: Order) -> Outcome:
            return self._ask(order, turn, next(numbers), progress)

        def publish(name: str, published: Tree) -> None:
            data = tree.pack(published)
            if progress.publications.publish(name, data, tree.num_bytes(published)):
                self.executor.publish(name, data)

        return Cohort(
            self.sample(turn, progress),
            algorithm=self.algorithm,
            order=_order_of(turn),
            task=self.task,
            training=self.setup.training,
            population=len(self.roster.population),
            key=Key(self.plan.seed, "server", turn.stage.name, turn.stage_round),
            ask=ask,
            publish=publish,
            server_step=ServerStep(
                self.setup.aggregation, progress.momentum, self.task.model.buffer_names
            ),
            min_replies=self.plan.min_replies,
        )

    def sample(self, turn: Turn, progress: Progress) -> tuple[ClientId, ...]:
        """The clients of a round: who has missed a stage that training builds on is left out."""
        present = self.roster.population
        if turn.stage.everyone:
            return present
        if progress.absent:
            present = tuple(id for id in present if id not in progress.absent) or present
        key = Key(self.plan.seed, "cohort", turn.stage_round)
        return sampling.sample(present, self.cohort_size, key)

    def _ask(self, order: Order, turn: Turn, number: int, progress: Progress) -> Outcome:
        # Stages before training draw for themselves, so that nobody is lost in all of them by one
        # draw.
        stage = [turn.stage.name] if turn.stage.everyone else []
        key = Key(self.plan.seed, "dropout", *stage, turn.stage_round, number)
        dropped = sampling.dropouts(order.clients, self.plan.dropout, key)
        outcome = self._perform(order._replace(dropped=tuple(sorted(dropped))), progress)
        self._require_any(order, outcome)
        progress.traffic.add(progress.publications.deliver(order.clients), 0)
        return outcome

    def _require_any(self, order: Order, outcome: Outcome) -> None:
        """Where all replies are refused or have failed, going on would change nothing."""
        refused, failed = outcome.because_of(REFUSED), outcome.because_of(FAILED)
        if not (refused or failed) or outcome.sent or outcome.because_of(TIMED_OUT):
            return
        if failed:
            detail = outcome.missing[failed[0]].detail
            raise ClientStepError(
                f"{order.where}: at least one client must succeed, got failures from all of "
                f"{len(refused) + len(failed)} clients, the first: {failed[0]!r}: {detail}"
            )
        raise ClientStepError(
            f"{order.where}: every reply and state must be finite, got NaN or infinity from all of "
            f"{len(refused)} clients: is the learning rate too high?"
        )

    def _perform(self, order: Order, progress: Progress, *, evaluation: bool = False) -> Outcome:
        """Bring an order to its clients, and take down what it cost and who is missing."""
        order = _normal(order)
        if self._due is None or evaluation:
            outcome = self.executor.perform(order)
        else:
            outcome = self._perform_with_evaluation(order, self._due, progress)
        self._take_down(order, outcome.check(order), progress, evaluation=evaluation)
        return outcome

    def _perform_with_evaluation(self, order: Order, turn: Turn, progress: Progress) -> Outcome:
        """Evaluate the round before with the first order of a round, while its server state still
        stands.
        """
        executor, self._due = self.executor, None
        if not isinstance(executor, FarExecutor):
            raise TypeError(f"{executor.name} must perform an evaluation by itself")
        evaluation = self._evaluation_of(self.evaluated, turn, progress, new=False)
        replies, outcome = executor.perform_both(evaluation, order)
        self._take_down(evaluation, replies.check(evaluation), progress, evaluation=True)
        self._record_late(turn, self._evaluate(turn, progress, local=replies.value), progress)
        return outcome

    def _settle(self, progress: Progress) -> None:
        """Evaluate the round before by itself, if its evaluation was due and no order was sent."""
        if self._due is not None:
            turn, self._due = self._due, None
            self._record_late(turn, self._evaluate(turn, progress), progress)

    def _record_late(self, turn: Turn, record: dict[str, Any], progress: Progress) -> None:
        self._record(record, progress)
        self._late.append((turn, record))

    def _take_down(
        self, order: Order, outcome: Outcome, progress: Progress, *, evaluation: bool
    ) -> None:
        """What an order cost and who is missing; a failure may end the run."""
        progress.traffic.count(order, outcome, evaluation=evaluation)
        for id in sorted(outcome.missing):
            missing = outcome.missing[id]
            reason = f"{missing.reason} in evaluation" if evaluation else missing.reason
            progress.missing[reason] = progress.missing.get(reason, 0) + 1
            if missing.detail and len(progress.failures) < MAX_FAILURES_RECORDED:
                where = {"client": id, "stage": order.stage, "step": order.step}
                progress.failures.append({**where, "round": order.round, **missing._asdict()})
        failed = outcome.because_of(FAILED)
        if failed and self.setup.on_error == "stop":
            detail = outcome.missing[failed[0]].detail
            raise ClientStepError(f"client {failed[0]!r}, {order.where}: {detail}")

    # --- evaluation, records, checkpoints ---------------------------------------------------------

    def _evaluate(
        self,
        turn: Turn,
        progress: Progress,
        *,
        last: bool = False,
        local: dict[ClientId, Tree] | None = None,
    ) -> dict[str, Any]:
        """The record of a round; `local` are the participants' replies where they are there."""
        if local is None:
            local = self._examine(self.evaluated, turn, progress, new=False)
        if not local:
            raise ClientStepError(
                f"round {turn.round}: at least one client must be evaluated, got none that answered"
            )
        held_out: dict[ClientId, Tree] = {}
        if self.roster.held_out and self.algorithm.accepts_new_clients:
            held_out = self._examine(self.roster.held_out, turn, progress, new=True)
        rows = evaluate.client_rows(local, new=False) | evaluate.client_rows(held_out, new=True)
        self._keep_rows(turn, rows)
        found = {
            "round": turn.round,
            "stage": turn.stage.name,
            "local": evaluate.summarise(local, "test"),
            "validation": evaluate.summarise(local, "validation"),
            "training": evaluate.summarise(local, "train"),
            "global": evaluate.summarise(held_out, "test"),
            "global_averaged": evaluate.summarise(self._examine_averaged(turn, progress), "test"),
            "clusters": evaluate.grouping(local, self.roster.groups),
        }
        self._select(found, progress)
        stalled = self._is_stalled(progress, [*self.records, found])
        ends = last or stalled or self._is_last(turn)
        record = found | {
            "thresholds": self._thresholds(turn, progress) if ends else None,
            "server": self.algorithm.describe(progress.server),
            "bytes": progress.traffic.to_dict(),
            "missing": dict(progress.missing),
            "failures": self._new_failures(progress),
            "void_rounds": progress.void_rounds,
        }
        return {key: value for key, value in record.items() if value not in (None, {}, [])}

    def _examine(
        self, ids: tuple[ClientId, ...], turn: Turn, progress: Progress, *, new: bool
    ) -> dict[ClientId, Tree]:
        order = self._evaluation_of(ids, turn, progress, new=new)
        replies: dict[ClientId, Tree] = self._perform(order, progress, evaluation=True).value
        return replies

    def _evaluation_of(
        self, ids: tuple[ClientId, ...], turn: Turn, progress: Progress, *, new: bool
    ) -> Order:
        messages = {id: self.algorithm.message(progress.server, None if new else id) for id in ids}
        first = messages[ids[0]]
        same = all(is_identical(message, first) for message in messages.values())
        evaluation = _order_of(turn)._replace(
            step="evaluate",
            clients=tuple(sorted(ids)),
            broadcast=first if same else None,
            each=None if same else messages,
            wanted="replies",
            options={
                "new": new,
                "splits": ["test"] if new else self._evaluated_splits(),
                "tune_epochs": self.plan.tune_new if new else 0,
            },
        )
        return _normal(evaluation)

    def _examine_averaged(self, turn: Turn, progress: Progress) -> dict[ClientId, Tree]:
        """Held-out clients with the mean of the evaluated participants' own models."""
        if not self.roster.held_out or not self.algorithm.has_personal_models:
            return {}
        ask = _order_of(turn)._replace(
            step="add_personal_model", clients=tuple(sorted(self.evaluated))
        )
        total = self._perform(ask, progress, evaluation=True).value or {}
        if "own" not in total:
            return {}
        score = _order_of(turn)._replace(
            step="score_model",
            clients=tuple(sorted(self.roster.held_out)),
            broadcast=total["own"].mean(),
            wanted="replies",
        )
        replies: dict[ClientId, Tree] = self._perform(score, progress, evaluation=True).value
        return replies

    def _evaluated_splits(self) -> list[str]:
        """Validation costs little and is always wanted; training accuracy only where it selects the
        round.
        """
        always = ["test", "validation"]
        return always if self.plan.select_on == "validation" else [*always, "train"]

    def _thresholds(self, turn: Turn, progress: Progress) -> dict[str, list[float]] | None:
        """Quantiles of held-out likelihoods after the last round, from what clients add up."""
        if not self.algorithm.scores_samples:
            return None
        sums = self._sum_evaluation("sum_likelihoods", {}, turn, progress)
        ranges: dict[str, evaluate.Range] | None = evaluate.first_ranges(sums or {})
        found = None
        for _ in range(evaluate.MAX_NARROWINGS):
            if not ranges:
                break
            options = {"ranges": {name: list(bounds) for name, bounds in ranges.items()}}
            counts = self._sum_evaluation("count_likelihoods", options, turn, progress)
            if counts is None:
                break
            found = evaluate.thresholds(counts, ranges)
            ranges = evaluate.narrower_ranges(counts, ranges)
        return found

    def _sum_evaluation(
        self, step: str, options: dict[str, Any], turn: Turn, progress: Progress
    ) -> Tree:
        """The total of an evaluation over the participants; None if nobody answered."""
        order = _order_of(turn)._replace(
            step=step,
            clients=tuple(sorted(self.evaluated)),
            broadcast=self.algorithm.message(progress.server, None),
            wanted="total",
            options=options,
        )
        return self._perform(order, progress, evaluation=True).value

    def _new_failures(self, progress: Progress) -> list[dict[str, Any]]:
        """Since the last record."""
        last = self.records[-1]["round"] if self.records else 0
        return [failure for failure in progress.failures if failure["round"] > last]

    def _keep_rows(self, turn: Turn, rows: ClientRows) -> None:
        if self.folder is None:
            self.client_rows[turn.round] = rows
        else:
            self.folder.write_clients(turn.round, rows)

    def last_rows(self) -> ClientRows:
        """The figures of the participants in the last evaluated round."""
        round = self.records[-1]["round"]
        rows = self.client_rows.get(round, {})
        if self.folder is not None and self.folder.has_clients(round):
            rows = self.folder.read_client_rows(round)
        return {id: row for id, row in rows.items() if not row["new"]}

    def _select(self, record: Mapping[str, Any], progress: Progress) -> None:
        """Take the round as the one reported beside the last, if it is the best so far."""
        figures = record.get(self.plan.select_on) or {}
        name, best = criterion_in(figures), progress.selected
        if name is not None and (best is None or is_better(name, figures[name], best.criterion)):
            progress.selected = Selected(record["round"], figures[name], progress.server)

    def _record(self, record: dict[str, Any], progress: Progress) -> None:
        record["seconds"] = progress.seconds
        self.records.append(record)
        if self.folder is not None:
            progress.records = self.folder.append_record(record)

    def _save(self, progress: Progress) -> None:
        if self.folder is not None:
            folder, keep = self.folder.checkpoints, self.plan.keep_checkpoints
            make_folder(folder)
            clients = self.executor.save(folder, progress.round)
            checkpoint.save(folder, progress, keep, clients, self.identity)

    def _tell(self, progress: Progress) -> None:
        """Let whoever watches the folder know how far the run is."""
        if self.folder is not None:
            next_turn = self.turns[min(progress.round, len(self.turns) - 1)]
            self.folder.write_progress(
                {
                    "round": progress.round,
                    "rounds": len(self.turns),
                    "stage": next_turn.stage.name,
                    "seconds": progress.seconds,
                }
            )

    # --- the result -------------------------------------------------------------------------------

    def summary(self, progress: Progress) -> dict[str, Any]:
        """What `summary.json` says of the run itself."""
        final, selected, turn = self.records[-1], None, self.turns[progress.round - 1]
        if progress.selected is not None:
            by_round = {record["round"]: record for record in self.records}
            selected = figures(by_round[progress.selected.round])
        return {
            "rounds": progress.round,
            "training_rounds": turn.training_round,
            "stopped_early": self.is_over(progress) and not self._is_last(turn),
            "seed": self.plan.seed,
            "noise_seed": self.plan.noise_seed,
            "executor": self.executor.name,
            "clients": len(self.roster.participants),
            "parameters": self.task.model.num_parameters,
            "final": figures(final),
            "selected": selected,
            "selected_on": self.plan.select_on,
            "last_ten": last_ten([figures(record) for record in self.records]),
            "clusters": final.get("clusters"),
            "group_sizes": group_sizes(self.last_rows()),
            "server": final.get("server"),
            "thresholds": final.get("thresholds"),
            "bytes": progress.traffic.to_dict(),
            "missing": dict(progress.missing),
            "failures": list(progress.failures),
            "void_rounds": progress.void_rounds,
            "seconds": {
                "total": progress.seconds,
                "per_round": progress.seconds / progress.round,
                "steps_per_round": sum(progress.step_seconds.values()) / progress.round,
                "stages": self._stage_seconds(progress),
            },
            "parameters_sha256": tree.digest(progress.server),
            "states_sha256": self.executor.states_digest(),
        }

    def _stage_seconds(self, progress: Progress) -> dict[str, dict[str, float]]:
        """Rounds of every stage and their mean seconds, without evaluation and checkpoints."""
        rounds = Counter(turn.stage.name for turn in self.turns[: progress.round])
        return {
            name: {"rounds": rounds[name], "steps_per_round": spent / rounds[name]}
            for name, spent in progress.step_seconds.items()
        }


def _order_of(turn: Turn) -> Order:
    """What all orders of a round have in common."""
    return Order(
        stage=turn.stage.name,
        round=turn.round,
        stage_round=turn.stage_round,
        training_round=turn.training_round,
    )


def _normal(order: Order) -> Order:
    """With messages as they arrive."""
    each = None if order.each is None else tree.normal(order.each)
    return order._replace(broadcast=tree.normal(order.broadcast), each=each)


def is_identical(left: Tree, right: Tree) -> bool:
    """Whether two trees are made of the very same tensors under the same names."""
    if left is right:
        return True
    ours, theirs = tree.flatten(left), tree.flatten(right)
    return ours.keys() == theirs.keys() and all(ours[name] is theirs[name] for name in ours)


def schedule(algorithm: Algorithm, plan: Plan, model: Model, population: int) -> Iterator[Turn]:
    """The rounds of all stages, one after another."""
    number = trained = 0
    is_sampled = plan.cohort_size(population) < population
    for stage in algorithm.stages(plan.rounds, model):
        if stage.when_sampled and not is_sampled:
            continue
        for index in range(plan.rounds if stage.rounds is None else stage.rounds):
            number += 1
            trained += stage.trains
            yield Turn(number, stage, stage.first_round + index, trained)


def group_sizes(rows: ClientRows) -> list[int] | None:
    """How many clients are in each group that was found, the largest first."""
    found = Counter(str(row["group"]) for row in rows.values() if "group" in row)
    return [count for _, count in found.most_common()] or None


def is_due(turn: Turn, plan: Plan) -> bool:
    """Whether a round is evaluated, if there is something to predict with; the last one always
    is.
    """
    return (turn.stage_round + 1) % plan.evaluate_every == 0 and not turn.stage.prepares


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the summary shows it: local and global figures under one roof."""
    found: dict[str, Any] = {"round": record["round"]}
    for scope in ("local", "global", "global_averaged"):
        found |= {f"{scope}_{name}": value for name, value in record.get(scope, {}).items()}
    validation = record.get("validation", {})
    criterion = criterion_in(validation)
    if criterion is not None:
        found[f"validation_{criterion}"] = validation[criterion]
    return found
