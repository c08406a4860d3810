"""What a reader who reads nothing else should know: a headline and three sentences."""

import statistics

from ..metrics import METRICS
from . import verdict
from .runs import Runs
from .sections.gains import gain_by_client
from .sections.parts import SAME, agreements, listed, mean, percent_or_unit
from .tables import size


def headline(runs: Runs) -> str:
    """Who is best, if that is more than chance."""
    if runs.criterion is None:
        return f"{listed(list(runs.by_row))} on {_clients(runs)}"
    ahead = verdict.lead(runs.figures)
    if ahead is None:
        row = runs.firsts[0].row
        scope = "local" if mean(runs, row, f"local_{runs.criterion}") is not None else "global"
        reached = mean(runs, row, f"{scope}_{runs.criterion}")
        title = METRICS[runs.criterion].title
        return f"{row} reaches {percent_or_unit(reached, runs)} {title} on {_clients(runs)}"
    if ahead.found.is_significant:
        best = mean(runs, ahead.first, f"local_{runs.criterion}")
        by = verdict.amount(ahead.found.mean, ahead.criterion)
        if ahead.first == runs.row_of("local"):
            how_good = f"{percent_or_unit(best, runs)}, {by} ahead of {ahead.second}"
            return f"These {_clients(runs)} do best alone: {how_good}"
        return (
            f"{ahead.first} serves these {_clients(runs)} best: {percent_or_unit(best, runs)}, "
            f"{by} ahead of {ahead.second}"
        )
    return f"No method is clearly best for these {_clients(runs)}"


def sentences(runs: Runs) -> list[str]:
    """Who gains or loses, who is like whom, and what it costs: those of them that can be told."""
    if runs.criterion is None:
        return []
    ranked = verdict.ranking(runs.figures, runs.criterion)
    best = ranked[0] if ranked else runs.firsts[0].row
    found = (_for_whom(runs, best), _groups(runs), _cost(runs, best))
    return [sentence for sentence in found if sentence is not None]


def _clients(runs: Runs) -> str:
    count = runs.all[0].figures["clients"]
    return f"{count} client{'s' * (count != 1)}"


def _for_whom(runs: Runs, best: str) -> str | None:
    alone = runs.row_of("local")
    if alone is None:
        return None
    if best == alone:
        return "No method that learns together is better than every client training alone."
    found = list(gain_by_client(runs, best, alone).values())
    if not found:
        return None
    better, worse = (sum(sign * value > verdict.ROUNDING for value in found) for sign in (1, -1))
    harmed = f"harms {worse}" if worse else "harms none"
    average = statistics.mean(found)
    unit = "points" if runs.unit == 100 else METRICS[runs.criterion or "accuracy"].title
    return (
        f"Beside training alone, {best} helps {better} of {len(found)} clients and {harmed}; the "
        f"mean change is {average:+.3g} {unit}."
    )


def _groups(runs: Runs) -> str | None:
    found = agreements(runs)
    if not found:
        return None
    truth = next((run.true_groups for run in runs.all if run.true_groups), {})
    count = len(set(truth.values()))
    groups = f"the {count} true groups" if count else "the true groups"
    exact = [row for row, ari in found.items() if ari > SAME]
    if exact:
        every = " with every seed" if len(runs.seeds) > 1 else ""
        return f"Without being told, {listed(exact)} found {groups} exactly{every}."
    best = max(found, key=lambda row: found[row])
    return f"No method found {groups} exactly; {best} came closest (ARI {found[best]:.2f})."


def _cost(runs: Runs, best: str) -> str:
    figures = runs.figures[best]
    sent = statistics.mean(one["bytes"]["down"] + one["bytes"]["up"] for one in figures)
    took = statistics.mean(one["seconds"]["total"] for one in figures)
    rounds = figures[0]["rounds"]
    reference = runs.row_of("fedavg")
    beside = ""
    if reference is not None and reference != best:
        other = statistics.mean(
            one["bytes"]["down"] + one["bytes"]["up"] for one in runs.figures[reference]
        )
        beside = f", {sent / other:.2g} times what {reference} sends" if other else ""
    if not sent:
        return f"{best} sends nothing, and took {took:.3g} seconds."
    return f"{best} sent {size(sent)} in {rounds} rounds{beside}, and took {took:.3g} seconds."
