"""Tables for the terminal, from the summaries of finished runs and from kept results.

Names are shown as they are: brackets are not markup, and what a terminal would obey is escaped.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ..metrics import METRICS, criterion_in

Summary = Mapping[str, Any]
ABSENT = "-"
SHOWN_METRICS = {
    "classification": ("accuracy", "auc", "f1"),
    "regression": ("rmse", "mae", "r2"),
    "multi-label": ("hamming_accuracy", "subset_accuracy", "macro_f1"),
}


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
    headline, *others = metrics_of(summary)
    rows = [
        (f"local {METRICS[headline].title}", headline, f"local_{headline}"),
        ("  worst tenth of clients", headline, "local_worst_tenth"),
        (f"global {METRICS[headline].title}", headline, f"global_{headline}"),
        *((f"local {METRICS[name].title}", name, f"local_{name}") for name in others),
    ]
    for title, name, key in rows:
        table.add_row(title, *(show_metric(name, one.get(key)) for one in chosen.values()))
    if "local_log_likelihood" in summary["final"]:
        table.add_row(
            "local log-likelihood",
            *(_decimal(figures.get("local_log_likelihood")) for figures in chosen.values()),
        )
    return table


def metrics_of(summary: Summary) -> tuple[str, ...]:
    """The metrics of a run that tables show, the headline first."""
    return SHOWN_METRICS[summary.get("task", {}).get("objective", "classification")]


def _decimal(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.3f}"


def comparison_table(title: str, runs: Mapping[str, Sequence[Summary]]) -> Table:
    """Several methods, each over one or more seeds: mean ± standard deviation over seeds."""
    table = _titled_table(title)
    table.add_column("method", no_wrap=True)
    grouped = any(summary.get("clusters") for summaries in runs.values() for summary in summaries)
    agreement = ["ARI"] if grouped else []  # of the groups a method finds with the true ones
    for name in ("local", "worst tenth", "global", *agreement, "down", "up", "time"):
        table.add_column(name, justify="right", overflow="fold")
    for method, summaries in runs.items():
        table.add_row(
            plain(method),
            spread(summary["final"].get("local_accuracy") for summary in summaries),
            spread(summary["final"].get("local_worst_tenth") for summary in summaries),
            spread(summary["final"].get("global_accuracy") for summary in summaries),
            *(
                [spread((summary.get("clusters") or {}).get("ari") for summary in summaries)]
                if grouped
                else []
            ),
            size(statistics.mean(summary["bytes"]["down"] for summary in summaries)),
            size(statistics.mean(summary["bytes"]["up"] for summary in summaries)),
            f"{statistics.mean(summary['seconds']['total'] for summary in summaries):.1f} s",
        )
    return table


def over_clients_table(title: str, runs: Mapping[str, Sequence[Summary]]) -> Table:
    """Several methods: accuracy, AUC and F1 of participants and of held-out clients, mean ±
    standard deviation over clients.
    """
    table = _titled_table(title)
    table.add_column("clients", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for name in ("accuracy", "AUC", "F1"):
        table.add_column(name, justify="right", no_wrap=True)
    for scope, clients in (("local", "participants"), ("global", "held out")):
        for method, summaries in runs.items():
            finals = [summary["final"] for summary in summaries]
            table.add_row(
                clients,
                plain(method),
                *(
                    _over_clients(finals, f"{scope}_{metric}")
                    for metric in ("accuracy", "auc", "f1")
                ),
            )
        table.add_section()
    return table


def _over_clients(finals: Sequence[Summary], name: str) -> str:
    """The mean over seeds of the mean and of the standard deviation over clients."""
    means = [final[name] for final in finals if final.get(name) is not None]
    if not means:
        return ABSENT
    deviations = [value for final in finals if (value := final.get(f"{name}_std")) is not None]
    deviation = percent(statistics.mean(deviations)) if deviations else ABSENT
    return f"{percent(statistics.mean(means))} ± {deviation}"


def _titled_table(title: str) -> Table:
    return Table(title=plain(title, "table.title"), title_justify="left")


def plain(text: str, style: str = "") -> Text:
    """Text as it is, with characters that cannot be printed written as escapes."""
    printable = (
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
    return Text("".join(printable), style)


def criterion(figures: Mapping[str, Any]) -> str:
    """The headline metric among some figures, as tables show it."""
    name = criterion_in(figures)
    return ABSENT if name is None else show_metric(name, figures[name])


def headline(figures: Mapping[str, Any]) -> str:
    """The same with its name; nothing where there is none."""
    name = criterion_in(figures)
    return "" if name is None else f"{METRICS[name].title} {show_metric(name, figures[name])}"


def show_metric(name: str, value: float | None) -> str:
    """A share in percent, anything else in its own unit with four digits."""
    if value is None or METRICS[name].is_share:
        return percent(value)
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    return ABSENT if value is None else f"{100 * value:.1f}"


def spread(values: Iterable[float | None]) -> str:
    """Mean in percent, with ± standard deviation where there are several."""
    known = [value for value in values if value is not None]
    if not known:
        return ABSENT
    mean = percent(statistics.mean(known))
    return mean if len(known) == 1 else f"{mean} ± {100 * statistics.stdev(known):.1f}"


def size(count: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
