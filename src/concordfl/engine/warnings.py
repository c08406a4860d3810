"""What would mislead a reader of a run's figures: a sentence each, found once when the run ends.

docs/warnings.md says of each kind what it means and what to do. What only a comparison shows is
found in report/verdict.py.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ..core import Algorithm, ClientId, Objective
from ..data import Federation
from ..metrics import METRICS, criterion_in, is_better
from .checkpoint import Progress
from .experiment import Experiment
from .records import WarningFacts

DATA = "data"  # the kind of what was noticed in the data
MIN_EVALUATIONS = 3  # to see a trend
MIN_GAIN = 0.01  # of a share, or of the figure itself: what counts as a clear gain
ONE_GROUP = 0.9  # of the clients on one model count as all
DIVERGED = 0.5  # lost of what was once gained over a guess
UNLEARNT_LOSS = 3.0  # in units of the loss of a uniform guess: a network that has gone astray


class Facts(NamedTuple):
    """A finished run, as far as its warnings depend on it."""

    name: str  # of the method
    experiment: Experiment
    progress: Progress
    rows: Mapping[ClientId, Mapping[str, Any]]  # of the participants, in the last round
    guess: Mapping[str, float]  # the figures of one and the same answer for all, see `guess_of`
    # whether a group is expected: clients that were made alike, or of whose differences is known
    groups: Mapping[ClientId, str]

    @property
    def algorithm(self) -> Algorithm:
        return self.experiment.algorithm

    @property
    def records(self) -> list[dict[str, Any]]:
        return self.experiment.records


def of_data(federation: Federation) -> list[WarningFacts]:
    """What was noticed when the data were read."""
    return [WarningFacts(kind=DATA, text=text) for text in federation.notices]


def find(facts: Facts) -> list[WarningFacts]:
    """All warnings of a run; the gravest first."""
    found = [
        *_void(facts),
        *_diverged(facts),
        *_one_client(facts),
        *_degenerate(facts),
        *_left_out(facts),
        *_still_improving(facts),
        *_rounds(facts),
        *_without_effect(facts),
        *_new_unserved(facts),
        *_never_asked(facts),
    ]
    return [WarningFacts(kind=kind, text=text) for kind, text in found]


Findings = Iterator[tuple[str, str]]


# --- figures that say nothing ---------------------------------------------------------------------


def _void(facts: Facts) -> Findings:
    """Rounds in which nothing was learnt."""
    void, played = facts.progress.void_training_rounds, facts.progress.round
    rounds = sum(turn.stage.trains for turn in facts.experiment.turns[:played])
    if not void:
        return
    if void >= rounds:
        yield (
            "void",
            f"nothing was trained: in all {rounds} rounds fewer clients answered than "
            "run.min_replies asks, and the figures are those of the untrained model",
        )
    elif 2 * void >= rounds:
        text = f"{void} of {rounds} rounds were void: the model was trained in the others only"
        yield "void", text


def _diverged(facts: Facts) -> Findings:
    history = _history(facts.records)
    if not history:
        return
    name, last, final = history.name, history.values[-1], facts.records[-1]["local"]
    if "loss" in final and (final["loss"] is None or not math.isfinite(final["loss"])):
        yield "diverged", "the loss is no number at the last round: is the learning rate too high?"
        return
    guess = facts.guess.get(name)
    if guess is None:
        return
    best = max(history.values) if history.rising_is_better else min(history.values)
    better_than_guess = _beyond(name, guess, facts)
    learnt = is_better(name, best, better_than_guess)
    fell = abs(best - last) > DIVERGED * abs(best - guess) and is_better(name, best, last)
    uniform = math.log(max(facts.experiment.task.num_classes, 2))
    astray = name == "accuracy" and final["loss"] > UNLEARNT_LOSS * uniform
    shown = _shown(name, last)
    if learnt and fell:
        yield (
            "diverged",
            f"{METRICS[name].title} went from {_shown(name, best)} to {shown} at the last round: "
            "is the learning rate too high?",
        )
    elif not is_better(name, last, better_than_guess):
        unlearnt = "diverged" if astray else "at-chance"
        yield (
            unlearnt,
            f"{METRICS[name].title} is {shown} at the last round, and one and the same answer for "
            f"all examples has {_shown(name, guess)}: no more than chance would make, so nothing "
            "useful was learnt",
        )


def _beyond(name: str, guess: float, facts: Facts) -> float:
    """What is better than a guess by more than its error."""
    if not METRICS[name].is_share:
        return guess * (1 - MIN_GAIN if not METRICS[name].higher_is_better else 1 + MIN_GAIN)
    return guess + math.sqrt(guess * (1 - guess) / max(_num_examples(facts), 1))


def guess_of(
    federation: Federation, ids: Sequence[ClientId], objective: Objective
) -> dict[str, float]:
    """The mean figures over clients' test splits of one and the same answer for all examples: the
    mean of the training targets, which for classes is the most frequent one.
    """
    train = torch.cat([federation.splits(id).train.y for id in ids])
    classes = objective.num_classes
    one_hot = F.one_hot(train, classes) if classes else train
    answer = one_hot.double().mean(0)
    scores = []
    for test in (federation.splits(id).test.y for id in ids):
        if len(test):
            answers = answer.expand(len(test), *answer.shape)
            own_unit = (objective.in_own_unit(values) for values in (answers, test))
            scores.append(objective.scores(*own_unit))
    known = [one[objective.criterion] for one in scores if math.isfinite(one[objective.criterion])]
    return {objective.criterion: math.fsum(known) / len(known)} if known else {}


# --- a method that does not do what it is for -----------------------------------------------------


def _degenerate(facts: Facts) -> Findings:
    experiment = facts.experiment
    found = facts.algorithm.degenerate(experiment.task.model, facts.progress.server, facts.rows)
    if found is not None:
        yield f"identical-to-{found.into}", f"in effect this is {found.into}: {found.because}"
    else:
        yield from _one_group(facts)


def _left_out(facts: Facts) -> Findings:
    reason = facts.algorithm.left_out(facts.experiment.task, facts.progress.server)
    if reason:
        yield "left-out", reason


def _one_client(facts: Facts) -> Findings:
    alone = len(facts.experiment.roster.participants) == 1 and not facts.algorithm.pools_data
    if alone:
        yield "one-client", "there is one client: whatever the method, it learns from itself alone"


def _one_group(facts: Facts) -> Findings:
    # CFL is asked for none, and says how many there are.
    described = facts.algorithm.describe(facts.progress.server)
    asked = getattr(facts.algorithm, "num_models", described.get("clusters", 1))
    members = Counter(str(row["group"]) for row in facts.rows.values() if "group" in row)
    total = sum(members.values())
    if asked == 1 or total < 2:
        return
    largest = max(members.values())
    truth = Counter(facts.groups.get(id) for id in facts.rows)
    expected = facts.groups and max(truth.values()) >= ONE_GROUP * total
    if largest >= ONE_GROUP * total and not expected:
        count = "all" if largest == total else f"{largest} of"
        yield (
            "one-group",
            f"{count} {total} clients are on one model of {asked}: no groups were found",
        )


def true_groups(
    groups: Mapping[ClientId, Mapping[str, str]], ids: Sequence[ClientId], *, simulated: bool
) -> dict[ClientId, str]:
    """The true group of every client, by concept or else by the partition; nothing where it is not
    known. Where we divided the data ourselves, clients without any such difference are one group.
    """
    for kind in ("concept", "partition"):
        found = {id: groups[id][kind] for id in ids if kind in groups.get(id, {})}
        if len(set(found.values())) > 1:
            return found
    return dict.fromkeys(ids, "one") if simulated else {}


# --- rounds ---------------------------------------------------------------------------------------


class History(NamedTuple):
    """The criterion of the evaluated rounds."""

    name: str
    rounds: list[int]
    values: list[float]

    @property
    def rising_is_better(self) -> bool:
        return METRICS[self.name].higher_is_better


def _history(records: Sequence[Mapping[str, Any]]) -> History | None:
    """Of the participants' test examples; None of a method that predicts nothing."""
    name = criterion_in(records[-1].get("local", {}))
    if name is None:
        return None
    known = [
        (record["round"], record["local"][name])
        for record in records
        if record.get("local", {}).get(name) is not None
    ]
    return History(name, [round for round, _ in known], [value for _, value in known])


def _still_improving(facts: Facts) -> Findings:
    """A line through the last third of the evaluations, of three at least, that gains clearly and
    by more than twice the deviation of the points from it.
    """
    history = _history(facts.records)
    if history is None:
        return
    if len(history.values) < MIN_EVALUATIONS:
        if len(history.values) < min(MIN_EVALUATIONS, facts.experiment.plan.rounds):
            yield from _too_few_evaluations(facts, len(history.values))
        return
    count = max(MIN_EVALUATIONS, math.ceil(len(history.values) / 3))
    rounds, values = np.array(history.rounds[-count:]), np.array(history.values[-count:])
    slope, start = np.polyfit(rounds, values, 1)
    noise = float(np.std(values - (slope * rounds + start)))
    gain = float(slope * (rounds[-1] - rounds[0])) * (1 if history.rising_is_better else -1)
    if gain > max(_clear_gain(history, facts), 2 * noise):
        first, last = (_shown(history.name, float(value)) for value in (values[0], values[-1]))
        yield (
            "still-improving",
            f"{METRICS[history.name].title} went from {first} to {last} over the last "
            f"{rounds[-1] - rounds[0]} rounds: more rounds may change the order of methods",
        )


def _clear_gain(history: History, facts: Facts) -> float:
    """More than a reader would overlook, and more than two examples make."""
    if not METRICS[history.name].is_share:
        return MIN_GAIN * abs(history.values[-1])
    return max(MIN_GAIN, 2 / max(_num_examples(facts), 1))


def _num_examples(facts: Facts) -> int:
    return sum(row.get("examples", 0) for row in facts.rows.values())


def _too_few_evaluations(facts: Facts, count: int) -> Findings:
    plan = facts.experiment.plan
    times = "once" if count == 1 else f"{count} times"
    yield (
        "few-evaluations",
        f"the run was evaluated {times} (run.evaluate_every = {plan.evaluate_every}, run.rounds = "
        f"{plan.rounds}): whether it was still improving is not known",
    )


def _rounds(facts: Facts) -> Findings:
    """Rounds of training that are not those that were asked for."""
    turns, asked = facts.experiment.turns, facts.experiment.plan.rounds
    training = [turn.stage.name for turn in turns if turn.stage.trains]
    if len(training) != asked or len(set(training)) > 1:
        stages = Counter(turn.stage.name for turn in turns)
        parts = ", ".join(f"{name} {count}" for name, count in stages.items())
        rule = facts.algorithm.rounds_rule()
        yield (
            "rounds",
            f"{facts.name} plays {len(turns)} rounds in stages ({parts}) for the {asked} asked for"
            + (f": {rule}" if rule else ""),
        )


# --- settings without effect ----------------------------------------------------------------------


def _without_effect(facts: Facts) -> Findings:
    plan, algorithm = facts.experiment.plan, facts.algorithm
    if not plan.tune_new:
        return
    reason = None
    if not facts.experiment.roster.held_out:
        reason = "no clients are held out"
    elif not algorithm.accepts_new_clients:
        reason = f"{facts.name} has nothing for clients that were not in training"
    elif not algorithm.tunes_new:
        reason = f"{facts.name} has a rule of its own for new clients"
    if reason is not None:
        yield "no-effect", f"run.tune_new = {plan.tune_new} changes nothing: {reason}"


def _new_unserved(facts: Facts) -> Findings:
    """Held-out clients that no figure is about, although the method serves new clients."""
    expected = facts.experiment.roster.held_out and facts.algorithm.accepts_new_clients
    if expected and facts.records and not facts.records[-1].get("global"):
        yield (
            "new-clients",
            f"there are no figures of new clients: {facts.name} needs examples of theirs to adapt "
            "to (scenario.adapt_share, the training share of scenario.hold_out_split), and others "
            "to be tested on",
        )


def _never_asked(facts: Facts) -> Findings:
    experiment = facts.experiment
    left = set(experiment.roster.population)
    for turn in experiment.turns[: facts.progress.round]:
        if turn.stage.trains and left:
            left -= set(experiment.sample(turn, facts.progress))
    never = len(left)
    if never:
        yield (
            "never-asked",
            f"{never} of {len(experiment.roster.population)} clients were never asked to train: "
            "more rounds or a larger run.cohort would reach them",
        )


def _shown(name: str, value: float) -> str:
    return f"{100 * value:.1f}" if METRICS[name].is_share else f"{value:.3g}"
