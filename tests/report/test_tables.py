from rich.console import Console

from concordfl.report.tables import (
    comparison_table,
    over_clients_table,
    percent,
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
    shown = text(run_table(SUMMARY))
    assert "best on validation" in shown
    assert "62.5" in shown
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
    shown = text(over_clients_table("title", {"fedvc": [{"final": final}, {"final": other}]}))
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]]
        for line in shown.splitlines()
        if "fedvc" in line
    ]
    assert rows == [
        ["participants", "fedvc", "55.0 ± 15.0", "75.0 ± 2.0", "-"],
        ["held out", "fedvc", "-", "-", "-"],
    ]
