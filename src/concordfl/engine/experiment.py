"""Experiment: the loop over rounds. Everything that a method does not do itself is done here."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..core import (
    Algorithm,
    Client,
    ClientId,
    ClientStepError,
    Cohort,
    Key,
    Model,
    NoReplies,
    Stage,
    Task,
    Training,
    Tree,
    tree,
)
from ..core.algorithm import Step
from ..core.cohort import Answer, Request
from ..data import Federation, Splits
from . import checkpoint, evaluate, executors, sampling
from .checkpoint import Progress, Selected
from .client_states import ClientStates, DiskStates, MemoryStates
from .plan import Plan
from .records import RunFolder
from .traffic import Publications

ATTEMPTS = 20  # to reach anybody in a stage that training builds on
MANY = 1000  # more requests than a round makes


class Turn(NamedTuple):
    """One round of the schedule: its stage, and the stage's own count of rounds."""

    round: int  # from 1
    stage: Stage
    stage_round: int


class Event(NamedTuple):
    """What an observer is told after every round; `record` where the round was evaluated."""

    turn: Turn
    rounds: int
    seconds: float
    record: Mapping[str, Any] | None


def ignore(event: Event) -> None:
    """The observer of a run that nobody watches."""


@dataclass(frozen=True)
class StepCall:
    """The call that performs an algorithm's step; a client's state is made at first contact."""

    algorithm: Algorithm
    step: Step

    def __call__(
        self, client: Client, splits: Splits, state: Tree, message: Tree
    ) -> tuple[Tree, Tree]:
        return self.step(
            client, self.algorithm.init_client(client, message) if state is None else state, message
        )


@dataclass
class Experiment:
    """A run: a method on a federation, according to a plan."""

    algorithm: Algorithm
    model: Model
    federation: Federation
    training: Training
    plan: Plan
    executor: executors.Executor
    folder: RunFolder | None = None
    observe: Callable[[Event], None] = ignore
    records: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.task = Task(
            self.model,
            self.federation.num_classes,
            self.federation.input_shape,
            self.federation.scale,
        )
        pooled = self.federation.pooled_id
        self.population = self.federation.participants if pooled is None else (pooled,)
        self.turns = list(schedule(self.algorithm, self.plan.rounds))
        self.cohort_size = (
            1 if self.algorithm.pools_data else self.plan.cohort_size(len(self.population))
        )

    # --- the loop ---------------------------------------------------------------------------------

    def start(self) -> Progress:
        """The state of affairs before the first round."""
        return Progress(
            tree.normal(self.algorithm.init_server(self.task, self.plan.seed)), self._new_states()
        )

    def restore(self) -> Progress:
        """The state of affairs at the newest checkpoint; before the first round if there is none
        yet.
        """
        if self.folder is None or not list(self.folder.checkpoints.glob("manifest-*.json")):
            if self.folder is not None:
                self.folder.cut_records(0)
            return self.start()
        progress = checkpoint.load(self.folder.checkpoints, self._new_states())
        self.folder.cut_records(progress.records_length)
        self.records = self.folder.read_records()
        for name, data in progress.publications.data.items():
            self.executor.publish(name, data)
        return progress

    def run(self, progress: Progress) -> Progress:
        """Play the rounds that are left."""
        before = torch.get_num_threads()
        torch.set_num_threads(
            1
        )  # the number of threads changes the order of additions, and so the bits
        try:
            self._play_all(progress)
        finally:
            torch.set_num_threads(before)
        return progress

    def _play_all(self, progress: Progress) -> None:
        saved = time.monotonic()
        for turn in self.turns[progress.round :]:
            began = time.monotonic()
            self.play(turn, progress)
            spent = progress.step_seconds.get(turn.stage.name, 0.0)
            progress.step_seconds[turn.stage.name] = spent + time.monotonic() - began
            last = turn.round == len(self.turns)
            record = None
            ready = self.algorithm.ready(progress.server)
            if last and not ready:
                raise self._unanswered(turn)
            if ready and (last or self._is_evaluated(turn)):
                record = self._evaluate(turn, progress)
            progress.seconds += time.monotonic() - began
            if record is not None:
                self._record(record, progress)
            if last or time.monotonic() - saved >= self.plan.checkpoint_seconds:
                self._save(progress)
                saved = time.monotonic()
            self.observe(Event(turn, len(self.turns), progress.seconds, record))

    def _is_evaluated(self, turn: Turn) -> bool:
        return not turn.stage.prepares and (turn.stage_round + 1) % self.plan.evaluate_every == 0

    def play(self, turn: Turn, progress: Progress) -> None:
        """One round. A stage that training builds on is asked again if nobody answered."""
        needed = turn.stage.everyone and turn.stage.required
        counts = any(
            self._play_once(turn, progress, attempt) for attempt in range(ATTEMPTS if needed else 1)
        )
        if needed and not counts:
            raise self._unanswered(turn)
        progress.round = turn.round

    def _play_once(self, turn: Turn, progress: Progress, attempt: int) -> bool:
        """Whether the round counts: server state and client states do together, or, if nobody
        answered, not at all.
        """
        cohort = self._assemble(turn, progress, attempt)
        asked, published = set(cohort.ids), progress.publications.copy()
        try:
            server = turn.stage.play(progress.server, cohort)
        except NoReplies:
            counts = False
            progress.states.discard()
            self._take_back(progress, published)
        else:
            counts = True
            progress.server = tree.normal(server)
            progress.states.commit()
        if turn.stage.everyone:
            answered = set(cohort.ids)
            progress.absent = (progress.absent - answered) | (
                asked - answered if turn.stage.required else set()
            )
        return counts

    def _unanswered(self, turn: Turn) -> ClientStepError:
        rule = "clients must answer once before training, got no answer"
        return ClientStepError(f"stage {turn.stage.name!r}, round {turn.round}: {rule}")

    def _take_back(self, progress: Progress, before: Publications) -> None:
        """What a void round has published does not count."""
        for name, data in before.data.items():
            if progress.publications.data[name] != data:
                self.executor.publish(name, data)
        progress.publications = before

    def _assemble(self, turn: Turn, progress: Progress, attempt: int = 0) -> Cohort:
        key = Key(self.plan.seed, "server", turn.stage.name, turn.stage_round)
        if turn.stage.everyone:
            ids = self.population
        else:
            present = [id for id in self.population if id not in progress.absent] or self.population
            ids = sampling.sample(
                present, self.cohort_size, Key(self.plan.seed, "cohort", turn.stage_round)
            )
        requests = itertools.count(attempt * MANY)

        def ask(request: Request) -> Answer:
            return self._ask(request, turn, next(requests), progress)

        def publish(name: str, published: Tree) -> None:
            data = tree.pack(published)
            if progress.publications.publish(name, data, tree.num_bytes(published)):
                self.executor.publish(name, data)

        return Cohort(
            ids,
            round=turn.stage_round,
            task=self.task,
            training=self.training,
            population=len(self.population),
            key=key,
            ask=ask,
            publish=publish,
        )

    def _ask(self, request: Request, turn: Turn, number: int, progress: Progress) -> Answer:
        step = getattr(request.step, "__name__", "step")
        # Stages before training draw for themselves, so that nobody is lost in all of them by one
        # draw.
        key = Key(
            self.plan.seed,
            "dropout",
            *([turn.stage.name] if turn.stage.everyone else []),
            turn.stage_round,
            number,
        )
        lost = sampling.dropouts(request.ids, self.plan.dropout, key)
        task = executors.Task(
            StepCall(self.algorithm, request.step),
            turn.stage.name,
            step,
            turn.round,
            turn.stage_round,
            True,
        )
        broadcast, each = (
            tree.normal(request.broadcast),
            request.each and tree.normal(dict(request.each)),
        )
        job = executors.Job(task, request.ids, broadcast, each, request.additive, lost)
        outcome = self.executor.perform(job, progress.states)
        if outcome.refused and len(outcome.refused) + len(lost) == len(request.ids):
            raise ClientStepError(
                f"stage {turn.stage.name!r}, step {step!r}, round {turn.round}: every reply and "
                "state must be finite, "
                f"got NaN or infinity from all of {len(outcome.refused)} clients: is the learning "
                "rate too high?"
            )
        progress.refused += len(outcome.refused)
        progress.traffic.count(job, outcome)
        progress.traffic.add(progress.publications.deliver(request.ids), 0)
        return Answer(outcome.value, tuple(sorted({*lost, *outcome.refused})))

    # --- evaluation, records, checkpoints ---------------------------------------------------------

    def _evaluate(self, turn: Turn, progress: Progress) -> dict[str, Any]:
        local = self._examine(self.federation.participants, turn, progress, new=False)
        record: dict[str, Any] = {
            "round": turn.round,
            "stage": turn.stage.name,
            "local": evaluate.summarise(local, "test"),
        }
        for name, split in (("validation", "validation"), ("training", "train")):
            record[name] = {
                key: value
                for key, value in evaluate.summarise(local, split).items()
                if key != "clients"
            }
        held_out: dict[ClientId, Tree] = {}
        if self.federation.held_out and self.algorithm.accepts_new_clients:
            held_out = self._examine(self.federation.held_out, turn, progress, new=True)
            record["global"] = evaluate.summarise(held_out, "test")
        record["clusters"] = evaluate.grouping(local, self.federation.groups)
        record["inspect"] = {
            id: reply["inspect"] for id, reply in (local | held_out).items() if reply["inspect"]
        }
        record["thresholds"] = evaluate.thresholds(local)
        record["server"] = self.algorithm.describe(progress.server)
        record["bytes"] = progress.traffic.to_dict()
        record["refused_replies"] = progress.refused
        return {key: value for key, value in record.items() if value not in (None, {})}

    def _examine(
        self, ids: tuple[ClientId, ...], turn: Turn, progress: Progress, *, new: bool
    ) -> dict[ClientId, Tree]:
        wanted = ("test",) if new else self._examined_splits()
        call = evaluate.Examination(self.algorithm, new, wanted, self.plan.tune_new if new else 0)
        task = executors.Task(
            call, turn.stage.name, "evaluate", turn.round, turn.stage_round, False
        )
        messages = {id: self.algorithm.message(progress.server, None if new else id) for id in ids}
        same = all(_identical(message, messages[ids[0]]) for message in messages.values())
        broadcast, each = (
            (tree.normal(messages[ids[0]]), None) if same else (None, tree.normal(messages))
        )
        job = executors.Job(task, tuple(sorted(ids)), broadcast, each, additive=False)
        outcome = self.executor.perform(job, NoStates() if new else progress.states)
        progress.traffic.count(job, outcome, evaluation=True)
        replies: dict[ClientId, Tree] = outcome.value
        return replies

    def _examined_splits(self) -> tuple[str, ...]:
        """Validation costs little and is always wanted; training accuracy only where it selects the
        round.
        """
        return (
            ("test", "validation")
            if self.plan.select_on == "validation"
            else ("test", "validation", "train")
        )

    def _record(self, record: dict[str, Any], progress: Progress) -> None:
        record["seconds"] = progress.seconds
        self.records.append(record)
        figures = record.get(self.plan.select_on, {})
        criterion = figures.get("accuracy", figures.get("log_likelihood"))
        if criterion is not None and (
            progress.selected is None or criterion > progress.selected.criterion
        ):
            progress.selected = Selected(record["round"], criterion, progress.server)
        if self.folder is not None:
            progress.records_length = self.folder.append_record(record)

    def _save(self, progress: Progress) -> None:
        if self.folder is not None:
            checkpoint.save(self.folder.checkpoints, progress, self.plan.keep_checkpoints)

    def _new_states(self) -> ClientStates:
        if self.plan.client_states == "memory" or self.folder is None:
            return MemoryStates()
        self.folder.checkpoints.mkdir(parents=True, exist_ok=True)
        return DiskStates(Path(self.folder.checkpoints))

    # --- the result -------------------------------------------------------------------------------

    def summary(self, progress: Progress) -> dict[str, Any]:
        """What `summary.json` says of the run itself."""
        final = self.records[-1]
        selected = progress.selected and next(
            r for r in self.records if r["round"] == progress.selected.round
        )
        return {
            "rounds": progress.round,
            "seed": self.plan.seed,
            "executor": self.executor.name,
            "clients": len(self.federation.participants),
            "parameters": self.model.num_parameters,
            "final": figures(final),
            "selected": None if selected is None else figures(selected),
            "selected_on": self.plan.select_on,
            "clusters": final.get("clusters"),
            "server": final.get("server"),
            "thresholds": final.get("thresholds"),
            "bytes": progress.traffic.to_dict(),
            "refused_replies": progress.refused,
            "seconds": {
                "total": progress.seconds,
                "per_round": progress.seconds / progress.round,
                "steps_per_round": sum(progress.step_seconds.values()) / progress.round,
                "stages": self._stage_seconds(progress),
            },
            "parameters_sha256": tree.digest(progress.server),
            "states_sha256": progress.states.digest(),
        }

    def _stage_seconds(self, progress: Progress) -> dict[str, dict[str, float]]:
        """Rounds of every stage and their mean seconds, without evaluation and checkpoints."""
        rounds = Counter(turn.stage.name for turn in self.turns)
        return {
            name: {"rounds": rounds[name], "steps_per_round": spent / rounds[name]}
            for name, spent in progress.step_seconds.items()
        }


def _identical(left: Tree, right: Tree) -> bool:
    """Whether two trees are made of the very same tensors."""
    return left is right or all(
        a is b for a, b in itertools.zip_longest(tree.leaves(left), tree.leaves(right))
    )


class NoStates:
    """Of clients that were not in training: they have none, and nothing of them is kept."""

    def get(self, id: ClientId) -> None:
        return None

    def put(self, id: ClientId, state: bytes) -> None:
        return None


def schedule(algorithm: Algorithm, rounds: int) -> Iterator[Turn]:
    """The rounds of all stages, one after another."""
    number = 0
    for stage in algorithm.stages():
        for place in range(rounds if stage.rounds is None else stage.rounds):
            number += 1
            yield Turn(number, stage, stage.first_round + place)


def figures(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the summary shows it: local and global figures under one roof, values per client
    below.
    """
    shown: dict[str, Any] = {"round": record["round"]}
    for place in ("local", "global"):
        for name, value in record.get(place, {}).items():
            if name != "clients":
                shown[f"{place}_{name}"] = value
    shown["clients"] = {
        place: record[place]["clients"] for place in ("local", "global") if place in record
    }
    return shown
