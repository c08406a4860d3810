import csv

import numpy as np
import pytest
from rich.console import Console

from concordfl.core import SettingError
from concordfl.report import export_table
from concordfl.report.tables import (
    comparison_parts,
    comparison_table,
    for_whom_table,
    last_ten_table,
    over_clients_table,
    percent,
    plain,
    run_table,
    selected_table,
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
        "validation_accuracy": 0.375,
        "local_worst_tenth": 0.25,
        "global_accuracy": 0.75,
    },
    "selected": {"round": 2, "local_accuracy": 0.625},
    "bytes": {"down": 2500, "up": 0},
    "seconds": {"total": 1.25},
}


def text(table, width=120):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table)
    console.file.close()
    return console.export_text()


def rows_of(printed):
    """The cells of a printed table, row by row."""
    return [
        [cell.strip() for cell in line.replace("┃", "│").split("│")[1:-1]]
        for line in printed.splitlines()
        if line[:1] in "┃│"
    ]


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
    assert "title, accuracy after the last round in percent" in compared
    assert rows_of(compared) == [
        ["method", "test", "validation", "worst tenth", "newcomers", "sent", "time"],
        ["fedavg", "50.0 ± 0.0", "37.5 ± 0.0", "25.0 ± 0.0", "75.0 ± 0.0", "2.5 kB", "1.2 s"],
        ["local", "50.0", "37.5", "25.0", "75.0", "2.5 kB", "1.2 s"],
    ]


def test_the_selected_round_is_shown_beside_the_last():
    averaged = {"round": 3, "local_accuracy": 0.7, "global_averaged_accuracy": 0.125}
    runs = {
        "fedavg": [SUMMARY, {**SUMMARY, "selected": {**SUMMARY["final"], "local_accuracy": 0.375}}],
        "local": [{**SUMMARY, "selected": averaged}, {**SUMMARY, "selected": None}],
    }
    shown = text(selected_table(runs))
    assert "At the round that was best on validation data, accuracy in percent" in shown
    assert rows_of(shown) == [
        ["method", "round", "test", "newcomers", "newcomers, models averaged"],
        ["fedavg", "2, 4", "50.0 ± 17.7", "75.0", "-"],
        ["local", "3", "70.0", "-", "12.5"],
    ]
    on_training = {**SUMMARY, "selected_on": "training"}
    titled = selected_table({"a method with a long name, seed by seed": [on_training]})
    assert "best on training data" in text(titled)
    last = {**SUMMARY, "selected": SUMMARY["final"]}
    assert selected_table({"fedavg": [last, {**SUMMARY, "selected": None}]}) is None
    parts = list(comparison_parts("title", runs))
    assert rows_of(text(parts[1])) == rows_of(shown)


def test_newcomers_with_averaged_models_are_a_line_where_a_method_has_such_models():
    runs = {"fedavg": [SUMMARY], "local": [SUMMARY]}
    assert not any("participants' own models" in str(part) for part in comparison_parts("", runs))
    final = {**SUMMARY["final"], "global_averaged_accuracy": 0.125}
    runs["local"] = [{**SUMMARY, "final": final}]
    line = "Newcomers' accuracy with the mean of the participants' own models: local 12.5"
    assert line in list(comparison_parts("title", runs))
    assert ["  with participants' models averaged".strip(), "12.5", "-"] in rows_of(
        text(run_table(runs["local"][0]))
    )


def test_other_figures_are_shown_in_their_own_unit():
    final = {"round": 4, "local_rmse": 12.3456, "local_mae": 9.5, "global_rmse": 20.0}
    summary = {**SUMMARY, "final": final, "selected": None}
    compared = text(comparison_table("title", {"fedavg": [summary]}))
    assert "title, RMSE after the last round " in compared
    assert rows_of(compared)[1] == ["fedavg", "12.35", "-", "-", "20", "2.5 kB", "1.2 s"]
    shown = dict(row for row in rows_of(text(run_table(summary))) if row[0])
    assert shown["participants: RMSE"] == "12.35"
    assert shown["participants: MAE"] == "9.5"


# --- for whom -------------------------------------------------------------------------------------


OLDER = {key: value for key, value in SUMMARY.items() if key != "algorithm"}


def of_clients(*scores, **more):
    named = {str(place): score for place, score in enumerate(scores)}
    return {**OLDER, "client_scores": named, **more}


def test_who_gains_and_who_loses_is_shown():
    runs = {
        "local": [of_clients(0.5, 0.5, 0.5)],
        "fedavg": [of_clients(0.7, 0.5, 0.25)],
        "ifca": [of_clients(0.7, 0.6, 0.6, group_sizes=[2, 1], clusters={"ari": 0.5})],
    }
    assert rows_of(text(for_whom_table(runs))) == [
        ["method", "better than local", "worse", "mean gain", "worst loss", "groups", "ARI"],
        ["fedavg", "1 of 3", "1", "-1.7", "-25.0", "-", "-"],
        ["ifca", "3 of 3", "0", "+13.3", "-", "2+1", "50.0"],
    ]


def test_groups_are_shown_seed_by_seed_without_a_baseline_too():
    runs = {"ifca": [of_clients(0.5, group_sizes=[2, 1]), of_clients(0.5, group_sizes=[3])]}
    assert rows_of(text(for_whom_table(runs))) == [["method", "groups"], ["ifca", "2+1, 3"]]
    assert for_whom_table({"fedavg": [SUMMARY]}) is None


def test_clients_that_were_not_kept_are_not_known():
    shown = text(for_whom_table({"local": [OLDER], "fedavg": [OLDER]}))
    assert rows_of(shown)[1] == ["fedavg", "?", "?", "?", "?"]
    assert "?: clients' own figures were not kept; --fresh computes them" in shown


@pytest.mark.parametrize("seeds", [1, 3])
def test_tables_fit_into_100_columns(seeds):
    runs = {
        name: [of_clients(0.5, 1.0, group_sizes=[20, 10, 6], clusters={"ari": 0.875})] * seeds
        for name in ("local", "fedconceptem")
    }
    for table in (comparison_table("title", runs), selected_table(runs), for_whom_table(runs)):
        lines = text(table, width=100).splitlines()
        assert max(map(len, lines)) <= 100
        assert not any("fedconcep " in line for line in lines)


# --- files ----------------------------------------------------------------------------------------


def test_the_exported_table_has_a_row_per_method_and_seed():
    warned = {**SUMMARY, "warnings": [{"kind": "void", "text": "x"}], "group_sizes": [2, 1]}
    exported = export_table.to_csv(
        {"fedavg, lr = 1": [SUMMARY, warned], "b": [SUMMARY] * 2}, [3, 4]
    )
    rows = list(csv.DictReader(exported.splitlines()))
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("fedavg, lr = 1", "3"), ("fedavg, lr = 1", "4"), ("b", "3"), ("b", "4")
    ]  # fmt: skip
    assert float(rows[0]["final.local_accuracy"]) == 0.5
    assert float(rows[0]["selected.local_accuracy"]) == 0.625
    assert rows[0]["selected_on"] == "validation"
    assert rows[0]["bytes.down"] == "2500"
    assert (rows[1]["warnings"], rows[1]["groups"]) == ("void", "2+1")


def test_an_export_that_could_not_be_written_is_refused(tmp_path):
    export_table.check(tmp_path / "table.csv")
    with pytest.raises(SettingError, match=r"--export must be a .csv file, got .*table.txt"):
        export_table.check(tmp_path / "table.txt")
    with pytest.raises(SettingError, match="--export must be in a folder that exists, got"):
        export_table.check(tmp_path / "nowhere" / "table.csv")


def evaluated(values):
    """A run's history: rounds 5, 10, ... with these accuracies of newcomers."""
    history = [
        {"round": 5 * number, "global_accuracy": value} for number, value in enumerate(values, 1)
    ]
    return {**SUMMARY, "history": history}


def test_the_last_ten_evaluated_rounds():
    swinging = evaluated([0.9, *[0.4, 0.6] * 5])  # of the last ten, not of the first
    runs = {"fedavg": [swinging, evaluated([0.7] * 10)], "fedem": [evaluated([0.5] * 9)]}
    deviation = np.std([0.4, 0.6] * 5, ddof=1)
    printed = text(last_ten_table(runs))
    assert "accuracy in percent, ± over the last ten evaluated rounds" in " ".join(printed.split())
    assert rows_of(printed)[1:] == [
        ["fedavg", "-", f"60.0 ± {50 * deviation:.1f}", "10 to 55, 5 to 50"],
        ["fedem", "-", "-", "fewer than ten"],
    ]
    first, second, third, _ = csv.DictReader(
        export_table.to_csv(
            {"fedavg": runs["fedavg"]} | {"fedem": runs["fedem"] * 2}, (0, 1)
        ).splitlines()
    )
    assert float(first["last_ten.global_accuracy"]) == pytest.approx(0.5)
    assert float(first["last_ten.global_accuracy_std"]) == pytest.approx(deviation)
    assert (second["last_ten.first_round"], second["last_ten.last_round"]) == ("5", "50")
    assert third["last_ten.global_accuracy"] == ""


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
        ["newcomers", "fedvc", "-", "-", "-"],
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
