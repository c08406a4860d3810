"""Tables for the terminal, from the summaries of finished runs and from kept results.

Names are shown as they are: brackets are not markup, and what a terminal would obey is escaped.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..metrics import METRICS, criterion_in, last_ten
from . import verdict

Summary = Mapping[str, Any]
ABSENT = "-"
UNKNOWN = "?"


def run_table(summary: Summary) -> Table:
    """One run: the last round, and beside it the selected one."""
    table = _titled_table(f"{summary['algorithm']}, seed {summary['seed']}")
    table.add_column("")
    chosen = {"last round": summary["final"]}
    if summary["selected"] is not None:
        chosen[f"best on {summary['selected_on']}"] = summary["selected"]
    for name in chosen:
        table.add_column(plain(name), justify="right")
    table.add_row("round", *(str(figures["round"]) for figures in chosen.values()))
    criterion = verdict.criterion_of({"": [summary]}) or "accuracy"
    title = METRICS[criterion].title
    rows = {
        f"participants: {title}": f"local_{criterion}",
        "  of the worst tenth": "local_worst_tenth",
        "  on validation": f"validation_{criterion}",
        f"newcomers: {title}": f"global_{criterion}",
    }
    averaged = f"global_averaged_{criterion}"
    if averaged in summary["final"]:
        rows["  with participants' models averaged"] = averaged
    for name, key in rows.items():
        shown = (figure(criterion, figures.get(key)) for figures in chosen.values())
        table.add_row(name, *shown)
    for metric in METRICS:
        key = f"local_{metric}"
        if metric in (criterion, "loss") or summary["final"].get(key) is None:
            continue
        shown = (figure(metric, figures.get(key)) for figures in chosen.values())
        table.add_row(f"participants: {METRICS[metric].title}", *shown)
    return table


def comparison_parts(
    title: str,
    runs: Mapping[str, Sequence[Summary]],
    *,
    over_clients: bool = False,
    over_last_ten: bool = False,
) -> Iterator[Table | str]:
    """All that a comparison shows: tables, and then lines of text; the last one is the verdict."""
    yield over_clients_table(title, runs) if over_clients else comparison_table(title, runs)
    if over_last_ten:
        yield last_ten_table(runs)
    for table in (selected_table(runs), for_whom_table(runs)):
        if table is not None:
            yield table
    yield from _averaged_lines(runs)
    yield from _early_lines(runs)
    yield from warning_lines(verdict.warnings(runs))
    conclusion = verdict.verdict(runs)
    if conclusion is not None:
        yield conclusion


def _averaged_lines(runs: Mapping[str, Sequence[Summary]]) -> Iterator[str]:
    """What the mean of the participants' own models does for newcomers, where there are any."""
    criterion = verdict.criterion_of(runs) or "accuracy"
    name = f"global_averaged_{criterion}"
    shown = {
        row: spread((one["final"].get(name) for one in each), criterion)
        for row, each in runs.items()
    }
    parts = [f"{row} {text}" for row, text in shown.items() if text != ABSENT]
    if parts:
        whose = (
            f"Newcomers' {METRICS[criterion].title} with the mean of the participants' own models"
        )
        yield f"{whose}: {', '.join(parts)}"


def _early_lines(runs: Mapping[str, Sequence[Summary]]) -> Iterator[str]:
    """After which rounds runs have stopped early, seed by seed."""
    parts = [
        f"{row} after {', '.join(str(figures['rounds']) for figures in early)}"
        for row, each in runs.items()
        if (early := [figures for figures in each if figures.get("stopped_early")])
    ]
    if parts:
        yield f"Stopped early: {'; '.join(parts)} rounds"


def warning_lines(warnings: Iterable[Mapping[str, str]]) -> Iterator[str]:
    """What would mislead, a line each."""
    for each in warnings:
        yield f"Warning ({each['kind']}): {each['text']}"


def comparison_table(title: str, runs: Mapping[str, Sequence[Summary]]) -> Table:
    """Several methods, each over one or more seeds: mean ± standard deviation over seeds.

    Test, validation and the worst tenth are of the participants; newcomers were held out.
    """
    criterion = verdict.criterion_of(runs) or "accuracy"
    unit = " in percent" * METRICS[criterion].is_share
    table = _titled_table(f"{title}, {METRICS[criterion].title} after the last round{unit}")
    table.add_column("method", no_wrap=True)
    columns = {
        "test": f"local_{criterion}",
        "validation": f"validation_{criterion}",
        "worst tenth": "local_worst_tenth",
        "newcomers": f"global_{criterion}",
    }
    for name in (*columns, "sent", "time"):
        table.add_column(name, justify="right", overflow="fold")
    for method, summaries in runs.items():
        sent = [summary["bytes"]["down"] + summary["bytes"]["up"] for summary in summaries]
        seconds = [summary["seconds"]["total"] for summary in summaries]
        table.add_row(
            plain(method),
            *(
                spread((summary["final"].get(key) for summary in summaries), criterion)
                for key in columns.values()
            ),
            size(statistics.mean(sent)),
            f"{statistics.mean(seconds):.1f} s",
        )
    return table


def selected_table(runs: Mapping[str, Sequence[Summary]]) -> Table | None:
    """The figures of the rounds that were best on validation or training data, as `run.select_on`
    says; None where every run's was its last, which the comparison shows already.
    """
    summaries = [summary for row in runs.values() for summary in row]
    chosen = [summary for summary in summaries if summary["selected"] is not None]
    if all(summary["selected"]["round"] == summary["final"]["round"] for summary in chosen):
        return None
    criterion = verdict.criterion_of(runs) or "accuracy"
    selected_on = " or ".join(sorted({summary["selected_on"] for summary in chosen}))
    unit = " in percent" * METRICS[criterion].is_share
    title = f"At the round that was best on {selected_on} data, {METRICS[criterion].title}{unit}"
    table = _titled_table(title)
    table.add_column("method", no_wrap=True)
    columns = {"test": f"local_{criterion}", "newcomers": f"global_{criterion}"}
    averaged = f"global_averaged_{criterion}"
    if any(summary["selected"].get(averaged) is not None for summary in chosen):
        columns["newcomers, models averaged"] = averaged
    for name in ("round", *columns):
        table.add_column(name, justify="right", overflow="fold")
    for method, row in runs.items():
        rounds = [summary["selected"] for summary in row if summary["selected"] is not None]
        table.add_row(
            plain(method),
            ", ".join(str(figures["round"]) for figures in rounds) or ABSENT,
            *(
                spread((figures.get(key) for figures in rounds), criterion)
                for key in columns.values()
            ),
        )
    return table


def for_whom_table(runs: Mapping[str, Sequence[Summary]]) -> Table | None:
    """Who gains and loses beside training alone, and which groups were found; None where there is
    neither.
    """
    criterion = verdict.criterion_of(runs) or "accuracy"
    alone = verdict.baseline(runs, criterion)
    grouped = any(summary.get("group_sizes") for row in runs.values() for summary in row)
    known = any(summary.get("clusters") for row in runs.values() for summary in row)
    if alone is None and not grouped and not known:
        return None
    several = any(len(row) > 1 for row in runs.values())
    gained = f"clients{' of all seeds' * several} beside training alone"
    shown = [gained] * (alone is not None) + ["groups found"] * grouped
    table = _titled_table(f"For whom: {', and '.join(shown)}")
    table.caption_justify = "left"
    table.add_column("method", no_wrap=True)
    gains = [] if alone is None else ["better than local", "worse", "mean gain", "worst loss"]
    found = ["groups"] * grouped + ["ARI"] * known
    for name in (*gains, *found):
        table.add_column(name, justify="right", overflow="fold")
    for row, summaries in runs.items():
        if row == alone:
            continue
        cells = [] if alone is None else _gain_cells(verdict.gain(runs, row, criterion), criterion)
        if grouped:
            cells.append(_groups(summaries))
        if known:
            values = ((summary.get("clusters") or {}).get("ari") for summary in summaries)
            cells.append(spread(values))
        if UNKNOWN in cells:
            table.caption = f"{UNKNOWN}: clients' own figures were not kept; --fresh computes them"
        table.add_row(plain(row), *cells)
    return table


def _gain_cells(gain: verdict.Gain | None, criterion: str) -> list[str]:
    if gain is None:
        return [UNKNOWN] * 4

    def signed(value: float) -> str:
        return f"{100 * value:+.1f}" if METRICS[criterion].is_share else f"{value:+.3g}"

    worst = signed(gain.worst) if gain.worse else ABSENT
    return [f"{gain.better} of {gain.clients}", str(gain.worse), signed(gain.mean), worst]


def _groups(summaries: Sequence[Summary]) -> str:
    """The sizes of the groups found, seed by seed."""
    sizes = ["+".join(map(str, summary.get("group_sizes") or [])) for summary in summaries]
    return ", ".join(text or ABSENT for text in sizes) if any(sizes) else ABSENT


def over_clients_table(title: str, runs: Mapping[str, Sequence[Summary]]) -> Table:
    """Several methods: accuracy, AUC and F1, or other figures, of participants and of newcomers,
    mean ± standard deviation over clients.
    """
    metrics = _spread_metrics(runs)
    unit = " in percent" * all(METRICS[name].is_share for name in metrics)
    table = _titled_table(f"{title}, last round{unit}, ± over clients")
    table.add_column("clients", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in metrics:
        table.add_column(METRICS[name].title, justify="right", no_wrap=True)
    for scope, clients in (("local", "participants"), ("global", "newcomers")):
        for method, summaries in runs.items():
            finals = [summary["final"] for summary in summaries]
            table.add_row(
                clients,
                plain(method),
                *(_with_deviation(finals, f"{scope}_{name}", name) for name in metrics),
            )
        table.add_section()
    return table


def _spread_metrics(runs: Mapping[str, Sequence[Summary]]) -> list[str]:
    """The metrics of the runs whose spread over clients is known."""
    finals = [summary["final"] for summaries in runs.values() for summary in summaries]
    return [
        name
        for name, metric in METRICS.items()
        if metric.has_spread and any(f"local_{name}" in final for final in finals)
    ]


def _with_deviation(runs: Sequence[Mapping[str, Any]], name: str, metric: str) -> str:
    """The means over seeds of a figure and of its standard deviation."""
    means = [run[name] for run in runs if run.get(name) is not None]
    if not means:
        return ABSENT
    deviations = [value for run in runs if (value := run.get(f"{name}_std")) is not None]
    deviation = figure(metric, statistics.mean(deviations)) if deviations else ABSENT
    return f"{figure(metric, statistics.mean(means))} ± {deviation}"


def last_ten_table(runs: Mapping[str, Sequence[Summary]]) -> Table:
    """Several methods: the criterion of participants and of newcomers, mean ± standard deviation
    over the last ten evaluated rounds; of several seeds, the means of both.
    """
    criterion = verdict.criterion_of(runs) or "accuracy"
    unit = " in percent" * METRICS[criterion].is_share
    table = _titled_table(f"{METRICS[criterion].title}{unit}, ± over the last ten evaluated rounds")
    for name in ("method", "test", "newcomers", "rounds"):
        table.add_column(name, no_wrap=True, justify="left" if name == "method" else "right")
    for method, summaries in runs.items():
        found = [last for summary in summaries if (last := last_ten_of(summary)) is not None]
        rounds = {f"{last['first_round']} to {last['last_round']}": None for last in found}
        table.add_row(
            plain(method),
            _with_deviation(found, f"local_{criterion}", criterion),
            _with_deviation(found, f"global_{criterion}", criterion),
            ", ".join(rounds) or "fewer than ten",
        )
    return table


def last_ten_of(summary: Summary) -> dict[str, float] | None:
    """Of a run in a comparison; from its history where it was kept without. None where that is
    short, or was not kept.
    """
    if "last_ten" in summary:
        found: dict[str, float] | None = summary["last_ten"]
        return found
    return last_ten(summary.get("history") or [])


def _titled_table(title: str) -> Table:
    return Table(title=plain(title, "table.title"), title_justify="left")


def plain(text: str, style: str = "") -> Text:
    """Text as it is, with characters that cannot be printed written as escapes."""
    printable = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    return Text("".join(printable), style)


def headline(figures: Mapping[str, Any]) -> str:
    """The headline metric among some figures with its name; nothing where there is none."""
    name = criterion_in(figures)
    return "" if name is None else f"{METRICS[name].title} {figure(name, figures[name])}"


def percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f}"


def figure(metric: str, value: float | None) -> str:
    """Shares in percent, other figures in their own unit."""
    if METRICS[metric].is_share:
        return percent(value)
    return ABSENT if value is None else f"{value:.4g}"


def spread(values: Iterable[float | None], metric: str = "accuracy") -> str:
    """The mean, with ± standard deviation where there are several; shares in percent."""
    known = [value for value in values if value is not None]
    if not known:
        return ABSENT
    mean = figure(metric, statistics.mean(known))
    if len(known) == 1:
        return mean
    return f"{mean} ± {figure(metric, statistics.stdev(known))}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
