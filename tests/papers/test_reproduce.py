"""A paper of a made-up table: what is computed, what is kept, and what is said of it."""

import csv
import json
import math
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from command import concordfl
from concordfl import papers
from concordfl.algorithms import ALGORITHMS, FedAvg, FedEM
from concordfl.cli import reproduce as cli_reproduce
from concordfl.cli import terminal
from concordfl.core import SettingError
from concordfl.papers import entries, measures
from concordfl.papers.entries import FILE_NAME, Part, merge
from concordfl.papers.estimate import times_fedavg
from concordfl.report import pictures
from concordfl.report.side_by_side import Cell, SideBySide

RUN_FILE = """
[run]
rounds = 3
evaluate_every = 1

[data]
name = "digits"
limit = 200

[scenario]
clients = 3

[algorithm]
name = "fedprox"
mu = 0.5
"""

ENTRIES = """
title = "A paper"

[scale.tiny]
run.rounds = 1

[scale.small]
run.rounds = 2

[setting.digits]
file = "digits.toml"
instead = ["digits of 8 x 8"]

[setting.skewed]
file = "digits.toml"
set.scenario.partition = { kind = "dirichlet-by-client", alpha = 0.5 }
tiny.data.limit = 150

[setting.unknown]
file = "digits.toml"
set.data = { name = "tiny-imagenet" }

[setting.many]
set.scenario.clients = 8
set.scenario.partition.alpha = 0.1
tiny.scenario.clients = 4

[item.table-1]
about = "three methods"
figure = "local_accuracy"
seeds = { tiny = 2 }
rows."FedAvg" = { method = "fedavg" }
rows."FedProx" = { method = "fedprox" }
rows."FedProx, strong" = { method = "fedprox", set.algorithm.mu = 5.0 }
columns."IID" = { setting = "digits" }
columns."skewed" = { setting = "skewed" }
paper."FedAvg" = ["70.1 ± 2", "60%"]
paper."FedProx" = ["71.0", "61"]

[item.table-2]
about = "of data that nobody has here"
figure = "local_accuracy"
setting = "unknown"
rows."FedAvg" = { method = "fedavg" }
paper."FedAvg" = ["9.0"]

[item.figure-3]
about = "over rounds"
kind = "curves"
figure = "local_accuracy"
setting = "digits"
rows."FedAvg" = { method = "fedavg" }

[item.figure-4b]
about = "a measured picture"
kind = "pictures"
measure = "sizes"
setting = "digits"
method = "fedavg"
rows."FedAvg" = {}
"""


TEN_ROUNDS = {"run": {"rounds": 10}}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "experiments" / "fedconcat"
    place.mkdir(parents=True)
    (place / "digits.toml").write_text(RUN_FILE)
    (place / FILE_NAME).write_text(ENTRIES)
    monkeypatch.delenv("CONCORDFL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "experiments"


@pytest.fixture
def paper(folder):
    return papers.read_paper("fedconcat", folder)


def compute(paper, name, scale="tiny", **options):
    return papers.reproduce(paper, name, scale, display=papers.no_display, **options)


def test_a_cell_is_what_item_column_and_row_say(paper):
    cells = paper.items["table-1"].cells()
    table = paper.table(cells["FedProx, strong", "skewed"], "tiny")
    assert table["run"] == {"rounds": 1, "evaluate_every": 1}
    assert table["data"]["limit"] == 150
    assert table["algorithm"] == {"name": "fedprox", "mu": 5.0}
    assert table["scenario"]["partition"]["kind"] == "dirichlet-by-client"
    own = paper.table(cells["FedAvg", "IID"], "paper")
    assert own["run"]["rounds"] == 3
    assert own["data"]["limit"] == 200


def test_settings_side_by_side_are_one(paper):
    cell = Part(setting="skewed + many", method="fedavg")
    table = paper.table(cell, "tiny")
    partition = {"kind": "dirichlet-by-client", "alpha": 0.1}
    assert table["scenario"] == {"clients": 4, "partition": partition}
    assert table["data"]["limit"] == 150
    assert paper.table(cell, "small")["scenario"]["clients"] == 8


def test_a_setting_with_a_plus_is_added_on_either_side():
    for first, second in (("+ many", "skewed"), ("skewed", "+ many")):
        both = Part(setting=first).with_part(Part(setting=second))
        assert both.setting == "skewed + many"
    assert Part(setting="digits").with_part(Part(setting="skewed")).setting == "skewed"


def test_another_kind_replaces_all_of_the_one_before():
    base = {"partition": {"kind": "lda", "alpha": 1.0}, "clients": 3}
    assert merge(base, {"partition": {"kind": "iid"}}) == {
        "partition": {"kind": "iid"},
        "clients": 3,
    }
    assert merge(base, {"partition": {"alpha": 2.0}})["partition"] == {"kind": "lda", "alpha": 2.0}


def test_figures_are_those_of_the_runs(paper):
    found = compute(paper, "table-1")
    cell = found.table.cells["FedProx", "skewed"]
    assert (cell.paper_value, len(cell.ours)) == (61.0, 2)
    summaries = [
        json.loads(file.read_text())
        for file in paper.folder.parents[1].glob("runs/*/*/summary.json")
    ]
    assert len(summaries) == 12  # three methods, two settings, two seeds
    by_run = {100 * summary["final"]["local_accuracy"] for summary in summaries}
    assert {value for each in found.table.cells.values() for value in each.ours} == by_run
    assert "digits: digits of 8 x 8" in found.notes
    assert "scale tiny has run.rounds = 1" in found.notes
    assert "skewed: scale tiny has data.limit = 150" in found.notes


def test_kept_results_are_shown_as_kept_and_nothing_else_is_computed(paper, folder):
    nothing = compute(paper, "table-1", compute=False)
    assert not nothing.table.is_computed
    assert "not computed yet: 12 of 12 runs" in nothing.notes
    first = compute(paper, "table-1", keep=True)
    assert not any(note.startswith("kept") for note in first.notes)
    runs = papers.kept_runs(paper, "table-1", "tiny")
    assert (runs.kept, runs.all, runs.missing) == (12, 12, ())
    again = compute(papers.read_paper("fedconcat", folder), "table-1", compute=False)
    assert again.table.cells.keys() == first.table.cells.keys()
    assert [c.ours for c in again.table.cells.values()] == [
        c.ours for c in first.table.cells.values()
    ]
    assert any(note.startswith("kept: 12 of 12 cells") for note in again.notes)


def test_what_the_figures_say_is_shown_with_all_of_them_only(paper, folder):
    text = (folder / "fedconcat" / FILE_NAME).read_text()
    (folder / "fedconcat" / FILE_NAME).write_text(
        text.replace("[item.table-1]", '[item.table-1]\nfindings.tiny = "The order is chance."')
    )
    told = papers.read_paper("fedconcat", folder)
    assert compute(told, "table-1", compute=False).notes[0] != "The order is chance."
    assert compute(told, "table-1", keep=True).notes[0] == "The order is chance."
    kept = compute(told, "table-1", compute=False)
    assert kept.notes[0] == "The order is chance."
    for part in ({"only_rows": ["FedAvg"]}, {"seeds": 1}, {"scale": "small"}):
        found = compute(told, "table-1", **({"compute": False} | part))
        assert "The order is chance." not in found.notes, part
    again = compute(told, "table-1", fresh=True)
    assert "The order is chance." not in again.notes, "the figures may be others by now"


def test_the_time_is_estimated_before_any_run(paper):
    absent = compute(paper, "table-1", compute=False).absent
    assert len(absent) == 12
    estimate = papers.Estimator()
    assert all(estimate(settings) > 0 for settings in absent)
    assert times_fedavg(FedEM(num_models=5)) == 7
    assert times_fedavg(ALGORITHMS["pfedme"](inner_steps=4)) == 4
    assert times_fedavg(ALGORITHMS["moon"]()) == 2
    assert times_fedavg(FedAvg()) == 1


def test_data_that_are_not_at_hand_are_named(paper):
    found = compute(paper, "table-2")
    assert found.table.cells["FedAvg", ""].text == "-"
    assert "unknown: not computed, data set tiny-imagenet is not at hand" in found.notes
    assert papers.kept_runs(paper, "table-2", "tiny").missing == ("tiny-imagenet",)


def test_tiny_figures_are_said_to_mean_nothing(paper):
    said = {
        scale: compute(paper, "table-1", scale, compute=False).notes[0]
        for scale in ("tiny", "small")
    }
    assert "mean nothing" in said["tiny"]
    assert "mean nothing" not in said["small"]


def test_curves_and_pictures(paper, monkeypatch):
    curve = compute(paper, "figure-3", "paper")
    (panel,) = curve.panels
    assert panel["series"][0]["x"] == [1, 2, 3]
    assert panel["series"][0]["y"][-1] == curve.table.cells["FedAvg", ""].mean
    sizes = {
        "kind": "bars",
        "title": "sizes",
        "x_label": "client",
        "y_label": "examples",
        "series": [{"name": "train", "x": ["a", "b"], "y": [3, None]}],
    }
    monkeypatch.setitem(measures.MEASURES, "sizes", lambda finished: {"panels": [sizes]})
    (panel,) = compute(paper, "figure-4b").panels
    assert panel["title"] == "FedAvg, sizes"
    lines = list(csv.reader(pictures.to_csv([panel]).splitlines()))
    assert lines == [
        ["panel", "series", "x", "y", "spread"],
        ["FedAvg, sizes", "train", "a", "3", ""],
        ["FedAvg, sizes", "train", "b", "", ""],
    ]
    drawn = pictures.draw("a title", [panel], "svg")
    assert drawn == pictures.draw("a title", [panel], "svg")
    assert b"<svg" in drawn


def test_curves_over_seconds(paper):
    item = replace(paper.items["figure-3"], along="seconds")
    timed = replace(paper, items={**paper.items, "figure-3": item})
    (panel,) = compute(timed, "figure-3", "paper").panels
    x = panel["series"][0]["x"]
    assert x == sorted(x)
    assert panel["x_label"] == "seconds"


def test_the_last_ten_rounds(paper):
    item = replace(
        paper.items["figure-3"], kind="table", figure="last_ten.local_accuracy", set=TEN_ROUNDS
    )
    longer = replace(paper, items={"figure-3": item})
    found = compute(longer, "figure-3", "paper").table.cells["FedAvg", ""]
    (summary,) = (
        json.loads(file.read_text())
        for file in paper.folder.parents[1].glob("runs/*/*/summary.json")
    )
    assert found.ours == (100 * summary["last_ten"]["local_accuracy"],)
    assert found.spread == 100 * summary["last_ten"]["local_accuracy_std"]
    assert found.text == f"{found.ours[0]:.1f} ± {found.spread:.1f}"


def test_a_row_may_look_at_another_figure_than_its_column_names(folder):
    """Of a method for which the paper reports something else under the same head."""
    file = folder / "fedconcat" / FILE_NAME
    file.write_text(
        ENTRIES
        + """
[item.table-5]
about = "two scopes"
setting = "digits"
percent = false
rows."FedAvg" = { method = "fedavg" }
rows."other" = { method = "fedavg", figures.global_accuracy = "global_f1" }
columns."local" = { figure = "local_accuracy" }
columns."global" = { figure = "global_accuracy" }
"""
    )
    found = compute(papers.read_paper("fedconcat", folder), "table-5")
    (summary,) = folder.parent.glob("runs/*/*/summary.json")  # one run for all
    final = json.loads(summary.read_text())["final"]
    assert final["global_f1"] != final["global_accuracy"]
    assert {place: cell.ours for place, cell in found.table.cells.items()} == {
        ("FedAvg", "local"): (final["local_accuracy"],),
        ("FedAvg", "global"): (final["global_accuracy"],),
        ("other", "local"): (final["local_accuracy"],),
        ("other", "global"): (final["global_f1"],),
    }
    assert found.item.has_figures  # although the item itself names none


def test_figures_have_a_panel_each(folder):
    file = folder / "fedconcat" / FILE_NAME
    file.write_text(
        ENTRIES
        + """
[item.figure-6]
about = "by the rate"
kind = "lines"
setting = "digits"
method = "fedavg"
axis = "rate"
rows."local" = { figure = "local_accuracy" }
rows."global" = { figure = "global_accuracy" }
columns."0.1" = { set.training.lr = 0.1 }
columns."0.2" = { set.training.lr = 0.2 }
"""
    )
    found = compute(papers.read_paper("fedconcat", folder), "figure-6")
    assert [panel["y_label"] for panel in found.panels] == [
        "local accuracy in percent",
        "global accuracy in percent",
    ]
    for panel, row in zip(found.panels, ("local", "global"), strict=True):
        (series,) = panel["series"]
        assert series["x"] == ["0.1", "0.2"]
        assert series["y"] == [found.table.cells[row, column].mean for column in ("0.1", "0.2")]


def test_columns_that_share_a_picture_show_it_once(paper, monkeypatch):
    picture = {"kind": "bars", "title": "", "x_label": "", "y_label": "", "series": []}
    found = {"panels": [picture], "first": 0.1, "second": 0.2}
    for name in ("sizes", "others"):
        monkeypatch.setitem(measures.MEASURES, name, lambda finished: found)
    shared = {name: {"figure": name} for name in ("first", "second")}
    apart = {name: {"measure": name} for name in ("sizes", "others")}
    items = {
        name: replace(paper.items["figure-4b"], columns=columns)
        for name, columns in (("figure-1", shared), ("figure-2", apart))
    }
    changed = replace(paper, items=items)
    shown = compute(changed, "figure-1")
    assert [panel["title"] for panel in shown.panels] == ["FedAvg"]
    assert [shown.table.cells["FedAvg", name].ours for name in shared] == [(10,), (20,)]
    titles = [panel["title"] for panel in compute(changed, "figure-2").panels]
    assert titles == ["FedAvg, sizes", "FedAvg, others"]


def test_pictures_may_have_curves_before_them(paper, monkeypatch):
    history = [
        {"round": round, "global_accuracy": round / 10, "bytes": {"down": 1, "up": 1}}
        for round in (1, 2)
    ]
    picture = {"kind": "bars", "title": "", "x_label": "", "y_label": "", "series": []}
    found = {"panels": [picture], "history": history, "global_accuracy": 0.2}
    monkeypatch.setitem(measures.MEASURES, "sizes", lambda finished: found)
    item = replace(paper.items["figure-4b"], figure="global_accuracy")
    changed = replace(paper, items={"figure-4b": item})
    shown = compute(changed, "figure-4b")
    assert [panel["kind"] for panel in shown.panels] == ["lines", "bars"]
    assert shown.panels[0]["series"] == [{"name": "FedAvg", "x": [1, 2], "y": [10, 20]}]
    assert shown.table.cells["FedAvg", ""].ours == (20,)
    counted = replace(item, figure="models")  # of which the history knows nothing
    found["models"] = 3
    without = compute(replace(paper, items={"figure-4b": counted}), "figure-4b")
    assert [panel["kind"] for panel in without.panels] == ["bars"]


@pytest.mark.parametrize("kind", ["lines", "bars", "stacked", "points", "histogram", "heatmap"])
def test_every_kind_of_picture_is_drawn(kind):
    edges = [0.0, 1.0, 2.0, 3.0] if kind == "histogram" else [0.0, 1.0, 2.0]
    series = [{"name": f"s{n}", "x": edges, "y": [1.0, float(n), 2.0]} for n in range(2)]
    panel = {"kind": kind, "title": "$t", "x_label": "x", "y_label": "y", "series": series}
    assert b"<svg" in pictures.draw("several", [panel] * 4, "svg")


def test_stacked_bars_lie_on_each_other():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    series = [
        {"name": "train", "x": ["a", "b"], "y": [3.0, 2.0]},
        {"name": "test", "x": ["b", "c"], "y": [1.0, 4.0]},
    ]
    panel = {"kind": "stacked", "title": "", "x_label": "", "y_label": "", "series": series}
    pictures._stacked(axes, panel)
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_y()) for bar in axes.patches]
    assert bars == [(0, 0.0), (1, 0.0), (1, 2.0), (2, 0.0)]


def test_a_spread_is_shaded_and_written():
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    series = {"name": "s", "x": [1, 2], "y": [0.5, 0.7], "spread": [0.1, 0.2]}
    panel = {"kind": "lines", "title": "", "x_label": "", "y_label": "", "series": [series]}
    pictures._lines(axes, panel)
    (shade,) = axes.collections
    corners = shade.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == pytest.approx((0.4, 0.9))
    assert pictures.to_csv([panel]).splitlines()[1] == ",s,1,0.5,0.1"


def test_the_spread_over_clients(paper):
    """Of several seeds it is the mean of their deviations over clients."""
    item = replace(paper.items["table-1"], spread="clients")
    changed = replace(paper, items={"table-1": item})
    found = compute(changed, "table-1", only_rows=["FedAvg"], only_columns=["IID"])
    cell = found.table.cells["FedAvg", "IID"]
    summaries = paper.folder.parents[1].glob("runs/*/*/summary.json")
    deviations = [json.loads(file.read_text())["final"]["local_accuracy_std"] for file in summaries]
    assert len(deviations) == len(cell.ours) == 2
    assert cell.spread == pytest.approx(50 * sum(deviations))
    assert cell.text == f"{cell.mean:.1f} ± {cell.spread:.1f}"


def test_a_run_of_several_columns_is_drawn_once(folder, monkeypatch):
    file = folder / "fedconcat" / FILE_NAME
    entry = """
[item.figure-7]
about = "two numbers of a picture"
kind = "pictures"
measure = "sizes"
setting = "digits"
method = "fedavg"
rows."FedAvg" = {}
columns."one" = { figure = "one" }
columns."two" = { figure = "two.parts" }
"""
    file.write_text(ENTRIES + entry)
    picture = {"kind": "bars", "title": "", "x_label": "", "y_label": "", "series": []}
    found = {"panels": [picture], "one": 0.5, "two": {"parts": 0.25}}
    monkeypatch.setitem(measures.MEASURES, "sizes", lambda finished: found)
    once = compute(papers.read_paper("fedconcat", folder), "figure-7")
    assert [panel["title"] for panel in once.panels] == ["FedAvg"]
    assert [cell.ours for cell in once.table.cells.values()] == [(50,), (25,)]
    other = entry.replace('{ figure = "one" }', '{ figure = "one", set.training.lr = 0.3 }')
    file.write_text(ENTRIES + other)
    twice = compute(papers.read_paper("fedconcat", folder), "figure-7")
    assert [panel["title"] for panel in twice.panels] == ["FedAvg, one", "FedAvg, two"]


@pytest.mark.parametrize(
    ("ours", "shown"),
    [
        ((70.0, 71.0, 70.5), "70.5 ± 0.5"),
        ((70.0, 70.0004), "70.0 ± 0.000283"),  # something is left of it
        ((0.25, 0.75), "0.5 ± 0.354"),
        ((70.0,), "70.0"),
    ],
)
def test_a_deviation_has_the_decimals_of_its_mean(ours, shown):
    assert Cell("", ours).text == shown


def test_rows_and_columns_without_results_can_be_left_out():
    cells = {
        ("kept", "here"): Cell("80", (70.0,)),
        ("kept", "not here"): Cell("81"),
        ("other", "here"): Cell("82"),
        ("other", "not here"): Cell("83"),
        ("third", "here"): Cell("84", (60.0,)),
        ("third", "not here"): Cell("85"),
    }
    table = SideBySide("a table", cells)
    shown = table.computed()
    assert (shown.rows, shown.columns) == (["kept", "third"], ["here"])
    assert "Without results here: other; not here." in [*cli_reproduce._computed(table)]


def test_thousands_are_read_and_written():
    cell = Cell("60,000", (50000.0,))
    assert (cell.paper_value, cell.text) == (60000.0, "50,000")


def test_heat_maps_of_a_picture_have_one_scale_of_colours():
    figure = Figure()
    for place, values in zip(figure.subplots(1, 2), ([[0.0, 2.0]], [[1.0, 5.0]]), strict=True):
        place.imshow(values)
    pictures._share_colours(figure)
    assert [place.images[0].get_clim() for place in figure.axes] == [(0.0, 5.0)] * 2


def test_the_order_of_methods_is_compared():
    cells = {
        (row, "a"): Cell(str(paper), (ours,))
        for row, paper, ours in (("x", 10, 1.0), ("y", 20, 3.0), ("z", 30, 2.0))
    }
    ranks = SideBySide("", cells).rank_correlations()
    assert math.isclose(ranks["a"], 0.5)  # 1 - 6 · (0 + 1 + 1) / (3 · 8)
    turned = {(column, row): cell for (row, column), cell in cells.items()}
    assert SideBySide("", turned, "columns").rank_correlations() == ranks
    ceiling = {**cells, ("top", "a"): Cell("99", (9.0,))}
    assert SideBySide("", ceiling, apart=("top",)).rank_correlations() == ranks
    assert SideBySide("", ceiling).rank_correlations() != ranks
    two = {place: cell for place, cell in cells.items() if place[0] != "z"}
    assert SideBySide("", two).rank_correlations() == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('method = "fedavg"', "x = 1"), "unknown key 'figure-4b.x'"),
        (('setting = "unknown"', 'setting = "nothing"'), "must have every setting that it names"),
        (('setting = "unknown"', 'setting = "many"'), "must name a run file for every setting"),
        (('paper."FedProx" = ["71.0", "61"]', 'paper."FedProx" = ["71.0"]'), "each of 2 columns"),
        (('rows."FedAvg" = { method = "fedavg" }', 'rows."FedAvg" = {}'), "a setting and a method"),
        (('kind = "curves"', 'kind = "drawing"'), "kind must be one of"),
    ],
)
def test_wrong_entries_are_refused(folder, change, message):
    file = folder / "fedconcat" / FILE_NAME
    file.write_text(ENTRIES.replace(*change))
    with pytest.raises(SettingError, match=message):
        papers.read_paper("fedconcat", folder)


def test_items_are_found_however_they_are_written(paper):
    for text in ("table 1", "Table-1", "table1"):
        assert papers.find_item(paper, text) == "table-1"
    assert papers.find_item(paper, "fig. 4b") == "figure-4b"
    with pytest.raises(SettingError, match="must be one that"):
        papers.find_item(paper, "table 9")


def test_the_command(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(terminal.console, "width", 160)  # whoever imported it, and where
    for name in ("fedconceptem", "fedgmm", "fedvc"):
        (folder / name).mkdir()
        (folder / name / FILE_NAME).write_text('title = "Another"\n')
    monkeypatch.setattr(entries, "experiments_folder", lambda: folder)
    planned = concordfl(folder.parent, "reproduce", "fedconcat", "table", "1", "--dry-run").stdout
    assert "To compute: 6 runs, about " in planned
    shown = concordfl(
        folder.parent, "reproduce", "fedconcat", "table", "1", "--scale", "tiny", "--keep"
    )
    assert "(70.1 ± 2)" in shown.stdout
    assert (tmp_path / "runs/reproduce-fedconcat/table-1-tiny/table.csv").exists()
    listed = concordfl(folder.parent, "reproduce", "--list", "--scale", "tiny").stdout
    assert "12 of 12" in listed
    assert "tiny-imagenet (not at hand)" in listed
    concordfl(folder.parent, "reproduce", "--page", "page.md", "--scale", "tiny")
    page = (tmp_path / "page.md").read_text()
    assert "### Table 1: three methods" in page
    assert "![figure 3](page/fedconcat-figure-3.svg)" in page  # its run is one of table 1
    assert (tmp_path / "page/fedconcat-figure-3.svg").exists()
    assert "Not kept at this scale: table 2, figure 4b." in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("fedconcat",), "needs a paper and an item"),
        (("fedconcatt", "table", "1"), "the paper must be one of"),
        (("--list", "--rows", "FedAvg"), "--list is about all items, got --rows with it"),
        (("fedconcat", "table", "1", "--page", "x.md"), "--page is about all items, got an item"),
        (("fedconcat", "table", "1", "--scale", "large"), "--scale must be one of"),
        (("fedconcat", "table", "1", "--rows", "FedAv"), "--rows must be of"),
    ],
)
def test_refusals_of_the_command(folder, monkeypatch, arguments, message):
    monkeypatch.setattr(entries, "experiments_folder", lambda: folder)
    failed = concordfl(folder.parent, "reproduce", *arguments)
    assert failed.returncode != 0
    assert message in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
