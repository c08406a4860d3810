"""Comparisons: results that outlive their runs, and the command that makes the table."""

import json
import os
import shutil
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path

import pytest

from concordfl import CheckpointError, SettingError
from concordfl.config import Config
from concordfl.engine.experiment import ignore
from concordfl.revision import code_revision
from concordfl.study import compare, kept_results
from concordfl.study.cells import ConfigHasher, cells
from mutations import watchdog

RUN_FILE = """
[run]
rounds = 4
evaluate_every = 2

[data]
name = "digits"
limit = 200

[scenario]
clients = 3

[algorithm]
name = "fedprox"
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    """A run file in an empty folder, where every result is worth keeping."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compare, "WORTH_KEEPING_SECONDS", 0.0)
    file = tmp_path / "mine.toml"
    file.write_text(RUN_FILE)
    return file


def results(run_file):
    text = kept_results.results_file(run_file).read_text()
    return [json.loads(line) for line in text.splitlines()]


def compare_cells(run_file, out="runs", kept=None, **options):
    configs = cells(kept_results.read_table(run_file), ["fedprox"], [0])
    folder = run_file.parent / out
    return compare.compare(configs, folder, lambda _: nullcontext(ignore), kept, **options)


def test_results_outlive_their_runs(run_file):
    first = compare_cells(run_file, keep_beside=run_file)
    (kept,) = results(run_file)
    summary_file = next((run_file.parent / "runs").rglob("summary.json"))
    summary = json.loads(summary_file.read_text())
    figures = kept["figures"]
    assert figures["parameters_sha256"] == summary["parameters_sha256"]
    assert (kept["method"], kept["seed"], kept["settings"]) == ("fedprox", 0, {})
    assert (kept["revision"], kept["date"]) == (code_revision(), compare._day_of(summary_file))
    assert [evaluated["round"] for evaluated in figures["history"]] == [2, 4]
    last = figures["history"][-1]
    assert last["local_accuracy"] == figures["final"]["local_accuracy"]
    assert last["bytes"] == figures["bytes"]
    assert figures["history"][0]["bytes"]["up"] * 2 == figures["bytes"]["up"]  # half of the rounds

    again = compare_cells(run_file, "elsewhere", kept_results.read(run_file, ConfigHasher()))
    assert not (run_file.parent / "elsewhere").exists()
    assert again.figures == first.figures
    assert (again.kept, first.kept) == ((kept,), ())


def test_nothing_is_kept_unasked_or_if_it_was_quick(run_file, monkeypatch):
    compare_cells(run_file)
    monkeypatch.setattr(compare, "WORTH_KEEPING_SECONDS", 1000.0)
    compare_cells(run_file, keep_beside=run_file)
    assert not kept_results.results_file(run_file).exists()


def test_a_curve_needs_a_history(run_file):
    compare_cells(run_file, keep_beside=run_file)
    configs, hasher = cells(kept_results.read_table(run_file), ["fedprox"], [0]), ConfigHasher()
    compare.require_history(configs, kept_results.read(run_file, hasher), hasher)
    compare.require_history(configs, None, hasher)
    (kept,) = results(run_file)
    kept["figures"]["history"] = None
    kept_results.keep(run_file, kept)
    message = "a curve needs results with a history, got fedprox, seed 0, in .*mine.results.jsonl"
    with pytest.raises(SettingError, match=message):
        compare.require_history(configs, kept_results.read(run_file, hasher), hasher)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(run_file, monkeypatch, capsys):
    """`concordfl compare mine.toml` in this process: what it prints."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries of the command line
        from concordfl import cli

    def run(*arguments, file="mine.toml", status=0):
        monkeypatch.setattr(sys, "argv", ["concordfl", "compare", file, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        output = capsys.readouterr()
        assert ended.value.code == status, output.err
        return output.err if status else output.out

    return run


def test_the_command_keeps_and_says_what_is_kept(run_file, command):
    arguments = ("--algorithms", "fedavg,fedprox", "--set", "training.lr=0.2")
    assert "kept" not in command(*arguments)
    assert not kept_results.results_file(run_file).exists()
    command("--algorithms", "fedavg", "--set", "training.lr=0.2", "--keep")
    (kept,) = results(run_file)
    assert (kept["method"], kept["settings"]) == ("fedavg", {"training.lr": 0.2})

    shutil.rmtree("runs")
    output = command(*arguments)
    revision = kept["revision"] or "unknown"
    assert f"kept: 1 of 2 cells ({kept['date']}, revision {revision})" in output
    runs = [path for path in run_file.parent.glob("runs/*/*") if path.is_dir()]
    assert [folder.name.split("-")[0] for folder in runs] == ["fedprox"]
    assert "The report is" in output
    only_kept = command("--algorithms", "fedavg", "--set", "training.lr=0.2", "--over-clients")
    assert "kept: 1 of 1 cells" in only_kept
    assert "Runs are in" not in only_kept


def test_fresh_computes_all_anew(run_file, command):
    command("--algorithms", "fedavg", "--keep")
    (kept,) = results(run_file)
    kept["figures"]["parameters"] = 12345  # what is computed anew has another number
    kept_results.keep(run_file, kept)
    output = command("--algorithms", "fedavg", "--fresh")
    assert "kept" not in output
    assert "Runs are in runs/compare-mine-2" in output
    assert results(run_file) == [kept]
    command("--algorithms", "fedavg", "--fresh", "--keep")
    (replaced,) = results(run_file)
    assert replaced["figures"]["parameters"] != 12345


def test_the_command_says_which_lines_are_ignored(run_file, command):
    command("--algorithms", "fedavg", "--keep")
    run_file.write_text(RUN_FILE.replace("rounds = 4", "rounds = 2"))
    output = command("--algorithms", "fedavg")
    assert "mine.results.jsonl: line 1 ignored: the run file, the defaults or the data" in output
    assert "kept:" not in output


def test_every_vary_counts(run_file, command):
    output = command(
        "--algorithms", "fedavg", "--set", "run.rounds=1",
        "--vary", "training.lr=0.1,0.2", "--vary", "training.epochs=1,2",
    )  # fmt: skip
    rows = [line.split("│")[1].strip() for line in output.splitlines() if "│ fedavg" in line]
    assert rows == [f"fedavg, lr = {lr}, epochs = {e}" for lr in ("0.1", "0.2") for e in (1, 2)]


def test_the_command_says_who_gains_and_what_would_mislead(run_file, command):
    """From runs, and again from what is kept of them."""
    arguments = ("--algorithms", "local,fedavg,fedbn", "--keep", "--export", "table.csv")
    output = command(*arguments)
    assert "For whom: clients beside training alone" in output
    assert "Warning (identical-to-fedavg): fedbn: in effect this is fedavg" in output
    assert "Warning (spread): " in output
    assert "for participants: " in output
    assert "All figures are in table.csv" in output
    exported = Path("table.csv").read_text().splitlines()
    assert [line.split(",")[:2] for line in exported] == [
        ["method", "seed"], ["local", "0"], ["fedavg", "0"], ["fedbn", "0"]
    ]  # fmt: skip
    shutil.rmtree("runs")
    again = command(*arguments)
    assert said(again) == said(output)
    assert exported == Path("table.csv").read_text().splitlines()


def said(output):
    """What follows the table of figures, without where the runs are."""
    _, _, rest = output.partition("For whom")
    return rest.partition("All figures")[0]


def test_an_export_is_refused_before_any_work(run_file, command):
    error = command("--algorithms", "fedavg", "--export", "table.xlsx", status=2)
    assert error == "concordfl: --export must be a .csv file, got table.xlsx\n"
    assert not (run_file.parent / "runs").exists()


def test_runs_that_stopped_early_are_told_and_kept(run_file, command):
    arguments = ("--algorithms", "fedavg", "--set", "run.patience=1", "--set", "run.rounds=40")
    output = command(*arguments, "--seeds", "2", "--keep")
    played = [line["figures"]["rounds"] for line in results(run_file)]
    assert all(line["figures"]["stopped_early"] for line in results(run_file))
    assert max(played) < 40
    said = f"Stopped early: fedavg after {played[0]}, {played[1]} rounds"
    assert said in output
    shutil.rmtree("runs")
    assert said in command(*arguments, "--seeds", "2")
    assert "Stopped early" not in command("--algorithms", "fedavg")


def test_brackets_in_names_are_shown(run_file, command):
    run_file.rename("a[b].toml")
    output = command("--algorithms", "fedavg", "--out", "runs/[/x]", file="a[b].toml")
    assert "a[b], 1 seed" in output
    assert "Runs are in runs/[/x]" in output


def test_a_damaged_results_file_is_refused_in_one_line(run_file, command):
    kept_results.results_file(run_file).write_text("{}\n")
    error = command("--algorithms", "fedavg", status=2)
    assert error == (
        "concordfl: mine.results.jsonl, line 1, must be a kept result: its format must be 1, got "
        "None\n"
    )
    command("--algorithms", "fedavg", "--fresh", "--keep", status=2)  # before any work
    assert not (run_file.parent / "runs").exists()
    assert "fedavg" in command("--algorithms", "fedavg", "--fresh")


@pytest.mark.skipif(os.name != "posix", reason="needs pipes")
def test_a_cell_whose_settings_are_a_pipe_is_refused(tmp_path):
    """Reading it would wait for ever."""
    os.mkfifo(tmp_path / "config.toml")
    with watchdog(5), pytest.raises(CheckpointError, match=r"must hold config.toml"):
        compare.finish(Config.from_table({}), tmp_path)
