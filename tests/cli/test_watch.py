"""`concordfl watch --terminal`, and what a run's own progress shows."""

import io
import re
import shutil
import threading
import unicodedata

import pytest

import concordfl as cf
from command import concordfl
from concordfl.cli import watch as command
from concordfl.cli.braille import Line, Range, plot, sparkline
from concordfl.cli.progress import show_progress
from concordfl.cli.terminal import PlainConsole
from concordfl.cli.watch_display import Display
from concordfl.engine.records import RunFolder
from concordfl.watch.status import Watcher
from watched import SETTINGS


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    cf.run(SETTINGS, out=folder, until=3)
    return folder


@pytest.fixture
def folder(stopped, tmp_path):
    shutil.copytree(stopped, tmp_path / "run")
    return tmp_path


def shown(path, width=100, **options):
    console = PlainConsole(width=width, file=io.StringIO(), force_terminal=True, **options)
    console.print(Display(path, Watcher(path).look()))
    return re.sub(r"\x1b\[[\d;]*m", "", console.file.getvalue())


# --- a pipe ---------------------------------------------------------------------------------------


def test_a_pipe_gets_a_line_per_round_that_is_evaluated_as_run_prints_it(folder):
    printed = io.StringIO()
    with show_progress(PlainConsole(file=printed, width=200), "fedavg, seed 0") as observe:
        cf.run(SETTINGS, on_round=observe)
    cf.resume(folder / "run")
    done = concordfl(folder, "watch", "run", "--terminal")
    assert done.returncode == 0

    def without_seconds(text):
        return [line.rsplit("  ", 1)[0] for line in text.splitlines()]

    expected = [*without_seconds(printed.getvalue()), "fedavg, seed 0: finished"]
    assert without_seconds(done.stdout) == expected
    assert len(expected) == 4


def test_a_pipe_is_told_that_a_run_stopped_and_follows_it_to_its_end(folder, monkeypatch):
    monkeypatch.setattr(command, "SECONDS_BETWEEN_LOOKS", 0.02)
    resumed = threading.Thread(target=cf.resume, args=[folder / "run"])
    look, looks = Watcher.look, []

    def look_and_resume(self):
        looks.append(look(self))
        if len(looks) == 2:
            resumed.start()
        return looks[-1]

    monkeypatch.setattr(Watcher, "look", look_and_resume)
    lines = concordfl(folder, "watch", "run", "--terminal").stdout.splitlines()
    resumed.join()
    assert lines[0].startswith("fedavg, seed 0: round 2/6  participants ")
    assert lines[1] == "fedavg, seed 0: stopped; `concordfl resume run` goes on with it"
    assert lines[-1] == "fedavg, seed 0: finished"
    assert [line.split()[4] for line in lines if "round" in line] == ["2/6", "4/6", "6/6"]


def test_a_comparison_is_over_only_when_no_further_run_begins(folder, monkeypatch):
    monkeypatch.setattr(command, "SECONDS_BETWEEN_LOOKS", 0.02)
    monkeypatch.setattr(command, "SECONDS_UNTIL_OVER", 0.3)
    cf.resume(folder / "run")
    look, looks = Watcher.look, []

    def look_and_begin(self):
        looks.append(look(self))
        if len(looks) == 3:
            shutil.copytree(folder / "run", folder / "copy")
        return looks[-1]

    monkeypatch.setattr(Watcher, "look", look_and_begin)
    done = concordfl(folder, "watch", ".", "--terminal")
    assert [line for line in done.stdout.splitlines() if "finished" in line] == [
        "fedavg, seed 0: finished",
        "copy: finished",  # method and seed do not tell them apart
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nothing"], "a folder to watch must exist, got nothing"),
     (["run", "--terminal", "--port", "80"], "must not be given with --port or --open, got --port"),
     (["run", "--terminal", "--open"], "must not be given with --port or --open, got --open"),
     (["run", "--port", "0"], "0 is not in the range")],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_line(folder, arguments, message):
    done = concordfl(folder, "watch", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# --- a terminal -----------------------------------------------------------------------------------


def test_one_run_is_shown_with_its_bar_figures_curve_and_way_on(folder):
    cf.resume(folder / "run", until=4)
    text = shown(folder / "run")
    record = RunFolder(folder / "run").read_records()[-1]
    assert "fedavg, seed 0  stopped  4 clients, 1 newcomer" in text
    assert "round 4 of 6" in text
    assert record["round"] == 4
    assert f"{100 * record['local']['accuracy']:.1f}" in text
    assert f"go on with it: concordfl resume {folder}/run" in text.replace("\n", "")
    assert "━" in text
    assert re.search("[\u2801-\u28ff]", text)
    assert "● newcomers" in text


def test_several_runs_have_a_line_each(folder):
    shutil.copytree(folder / "run", folder / "other")
    cf.resume(folder / "other")
    lines = shown(folder, width=400).splitlines()  # the folder may have a long name
    assert lines[0].endswith("2 runs: 1 finished, 1 stopped")
    assert any(line.startswith("● run") and "3/6" in line for line in lines)
    assert any(line.startswith("● other") and "6/6" in line for line in lines)
    assert any("Warning (" in line for line in lines)


def test_finished_runs_make_room_for_those_that_are_not(folder):
    shutil.copytree(folder / "run", folder / "runs/0")
    cf.resume(folder / "runs/0")
    for number in range(1, 8):
        shutil.copytree(folder / "runs/0", folder / f"runs/{number}")
    shutil.copytree(folder / "run", folder / "runs/stopped")
    text = shown(folder / "runs", height=10)
    assert "● stopped" in text
    assert text.count("● ") == 5
    assert "4 more have finished" in text


def test_names_are_text_and_cannot_steer_the_terminal(tmp_path):
    config = '[algorithm]\nname = "[red]x[/red] \\u001b[2J \\u202e"\n'
    with RunFolder.create(tmp_path / "run", config) as folder:
        failure = {"client": "a", "step": "[b]\x1b]0;x\x07", "round": 1, "detail": "\n"}
        folder.append_record({"round": 1, "failures": [failure]})
    console = PlainConsole(width=200, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(Display(tmp_path, Watcher(tmp_path / "run").look()))
    text = console.file.getvalue()
    assert "[red]x[/red] \\x1b[2J \\u202e" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_a_terminal_without_such_characters_gets_no_curve(folder):
    class Ascii(io.StringIO):
        encoding = "ascii"

    console = PlainConsole(width=100, file=Ascii(), force_terminal=True, color_system=None)
    cf.resume(folder / "run")
    console.print(Display(folder, Watcher(folder / "run").look()))
    assert "participants" in console.file.getvalue()
    assert not re.search("[\u2800-\u28ff]", console.file.getvalue())


def test_the_live_display_ends_when_the_run_has_finished(folder, monkeypatch):
    cf.resume(folder / "run")
    console = PlainConsole(width=100, file=io.StringIO(), force_terminal=True)
    monkeypatch.setattr(command, "console", console)
    command._show_in_terminal(Watcher(folder / "run"))
    assert "6 rounds in" in console.file.getvalue()


def test_the_bar_of_a_run_shows_its_course_and_best_round():
    console = PlainConsole(width=160, file=io.StringIO(), force_terminal=True)
    with show_progress(console, "fedavg") as observe:
        result = cf.run(SETTINGS, on_round=observe)
    text = console.file.getvalue()
    assert f"best in round {result.summary['selected']['round']}" in text
    assert sparkline([record["local"]["accuracy"] for record in result.records], 12) in text


# --- curves of characters -------------------------------------------------------------------------


def test_a_rising_line_goes_from_corner_to_corner():
    lines = plot([Line([(0, 0), (1, 1)], "red")], 4, 2, Range(0, 1), Range(0, 1))
    assert _dots(lines) == {(x, 7 - x) for x in range(8)}


def _dots(lines):
    """(column, line) of every dot, by the names that Unicode gives the characters."""
    found = set()
    for row, line in enumerate(lines):
        for column, letter in enumerate(line.plain):
            name = unicodedata.name(letter)
            for dot in name.rpartition("-")[2] if "DOTS" in name else "":
                number = int(dot)
                right = number in (4, 5, 6, 8)
                line_in_cell = {1: 0, 4: 0, 2: 1, 5: 1, 3: 2, 6: 2, 7: 3, 8: 3}[number]
                found.add((2 * column + right, 4 * row + line_in_cell))
    return found


def test_levels_and_ends_of_a_curve():
    flat = plot([Line([(0, 5), (9, 5)], "red")], 3, 1, Range(0, 9), Range(5, 5))
    assert {x for x, _ in _dots(flat)} == set(range(6))
    (point,) = plot([Line([(9, 1)], "red")], 3, 1, Range(0, 9), Range(0, 1))
    assert _dots([point]) == {(5, 0)}
    assert plot([], 2, 1, Range(0, 1), Range(0, 1))[0].plain == "  "


def test_sparklines():
    assert sparkline([], 5) == ""
    assert sparkline([1.0, 1.0], 5) == "▅▅"
    assert sparkline([0, 9, 0, 7, 14], 3) == "▁▅█"
