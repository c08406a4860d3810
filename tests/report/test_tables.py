import pytest
from rich.console import Console

from concordfl.report.tables import (
    comparison_table,
    over_clients_table,
    percent,
    plain,
    run_table,
    size,
    spread,
)

SUMMARY = {
    "algorithm": "fedavg",
    "seed": 0,
    "selected_on": "validation",
    "final": {
        "round": 4,
        "local_accuracy": 0.5,
        "local_worst_tenth": 0.25,
        "global_accuracy": 0.75,
    },
    "selected": {"round": 2, "local_accuracy": 0.625},
    "bytes": {"down": 2500, "up": 0},
    "seconds": {"total": 1.25},
}


def text(table):
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


def test_numbers_for_people():
    assert [size(value) for value in (0, 999, 1000, 2.5e6, 3e9, 4e12, 5e15)] == [
        "0 B", "999 B", "1.0 kB", "2.5 MB", "3.0 GB", "4.0 TB", "5000.0 TB",
    ]  # fmt: skip
    assert (percent(0.1234), percent(None)) == ("12.3", "-")
    assert spread([0.5]) == "50.0"
    assert spread([0.4, 0.6, None]) == "50.0 ± 14.1"
    assert spread([None]) == "-"


def test_tables_show_what_the_summaries_say():
    one_run = text(run_table(SUMMARY))
    assert "best on validation" in one_run
    assert "62.5" in one_run
    assert "best" not in text(run_table({**SUMMARY, "selected": None}))
    compared = text(comparison_table("title", {"fedavg": [SUMMARY, SUMMARY], "local": [SUMMARY]}))
    assert "50.0 ± 0.0" in compared
    assert "2.5 kB" in compared


def test_spread_over_clients():
    final = {
        "local_accuracy": 0.5,
        "local_accuracy_std": 0.1,
        "local_auc": 0.75,
        "local_auc_std": 0.02,
        "local_f1": None,
    }
    other = {**final, "local_accuracy": 0.6, "local_accuracy_std": 0.2}
    printed = text(over_clients_table("title", {"fedvc": [{"final": final}, {"final": other}]}))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in printed.splitlines()
        if "fedvc" in line
    ]
    assert rows == [
        ["participants", "fedvc", "55.0 ± 15.0", "75.0 ± 2.0", "-"],
        ["held out", "fedvc", "-", "-", "-"],
    ]


def test_a_spread_that_was_not_recorded_is_left_open():
    """Older results have accuracy and AUC, but a deviation of the accuracy alone."""
    final = {"local_accuracy": 0.5, "local_accuracy_std": 0.1, "local_auc": 0.75}
    printed = text(over_clients_table("title", {"fedem": [{"final": final}]}))
    assert "50.0 ± 10.0" in printed
    assert "75.0 ± -" in printed


@pytest.mark.parametrize("name", ["a[b]", "[/x]", "[red]x", "[bold", "x\\", "a $x$"])
def test_names_are_shown_as_they_are(name):
    summary = {**SUMMARY, "algorithm": name, "selected_on": name}
    runs = {name: [summary]}
    for table in (
        run_table(summary),
        comparison_table(name, runs),
        over_clients_table(name, runs),
    ):
        assert text(table).count(name) >= 2  # in the title, and in a column or row


def test_a_name_gives_the_terminal_no_orders():
    assert plain("a\x1b[31mb\n").plain == r"a\x1b[31mb\n"
    assert plain("größer ±").plain == "größer ±"
