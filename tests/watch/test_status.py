"""How runs are getting on, from folders that somebody else writes."""

import json
import math
import shutil
import sys

import numpy as np
import pytest

import concordfl as cf
import mutations
from concordfl import SettingError
from concordfl.engine.records import RunFolder
from concordfl.watch import words
from concordfl.watch.server import to_json
from concordfl.watch.status import Watcher
from watched import SETTINGS

DAMAGES = 100


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that was stopped after three rounds of six, and the same one finished."""
    folder = tmp_path_factory.mktemp("runs")
    cf.run(SETTINGS, out=folder / "stopped", until=3)
    shutil.copytree(folder / "stopped", folder / "finished")
    cf.resume(folder / "finished")
    return folder


@pytest.fixture
def stopped(runs, tmp_path):
    shutil.copytree(runs / "stopped", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def finished(runs, tmp_path):
    shutil.copytree(runs / "finished", tmp_path / "run")
    return tmp_path / "run"


def look(folder):
    (status,) = Watcher(folder).look()
    return status


def made_run(path, rounds=100, played=(), config="", **progress):
    """A folder as a run would have it: `played` are rounds, seconds and further figures."""
    with RunFolder.create(path, config) as folder:
        facts = {"round": 0, "rounds": rounds, "stage": "train", "seconds": 0.0, **progress}
        folder.write_progress(facts)
        for round, seconds, figures in played:
            folder.append_record({"round": round, "seconds": seconds, **figures})
    return path


def accuracy(local, validation=None):
    return {"local": {"accuracy": local}, "validation": {"accuracy": validation or local}}


# --- states ---------------------------------------------------------------------------------------


def test_a_run_that_stopped_says_how_to_go_on(stopped):
    run = look(stopped)
    assert (run.state, run.round, run.rounds) == ("stopped", 3, 6)
    assert run.way_on == f"concordfl resume {stopped}"
    assert [figures.round for figures in run.evaluated] == [2]  # round 3 was not evaluated
    assert run.facts == ("4 clients, 1 newcomer", "1 worker process on cpu")
    assert run.seconds_left is None


def test_a_run_under_way_is_running_and_nothing_is_advised(stopped):
    with RunFolder.open(stopped) as folder:
        folder.show_running()
        run = look(stopped)
    assert (run.state, run.way_on, run.stage) == ("running", None, "train")
    assert run.seconds_left is not None
    assert look(stopped).state == "stopped"


def test_a_finished_run_has_the_figures_of_its_records_and_summary(finished):
    run, result = look(finished), cf.resume(finished)
    assert (run.state, run.round, run.rounds) == ("finished", 6, 6)
    assert run.seconds == result.summary["seconds"]["total"]
    assert [figures.round for figures in run.evaluated] == [2, 4, 6]
    for figures, record in zip(run.evaluated, result.records, strict=True):
        assert figures.participants == record["local"]["accuracy"]
        assert figures.newcomers == record["global"]["accuracy"]
        assert figures.worst_tenth == record["local"]["worst_tenth"]
    assert run.best.round == result.summary["selected"]["round"]
    assert run.best.participants == result.summary["selected"]["local_accuracy"]
    warnings = [f"Warning ({each['kind']}): {each['text']}" for each in result.summary["warnings"]]
    assert warnings
    assert list(run.messages) == warnings


def test_a_run_that_has_not_begun(tmp_path):
    RunFolder.create(tmp_path / "run", "[algorithm]\nname = 'ifca'\n[run]\nseed = 3\n").__exit__(
        None, None, None
    )
    run = look(tmp_path / "run")
    assert (run.state, run.round, run.rounds) == ("not begun", 0, None)
    assert (run.method, run.seed) == ("ifca", 3)
    assert words.progress(run) == ["no round yet"]


def test_records_may_end_in_half_a_line_and_may_shrink(tmp_path):
    path = made_run(tmp_path / "run", played=[(5, 1.0, accuracy(0.5)), (10, 2.0, accuracy(0.6))])
    watcher, file = Watcher(path), path / "records.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"format": 1, "round": 15, "loc')
    (run,) = watcher.look()
    assert ([figures.round for figures in run.evaluated], run.messages) == ([5, 10], ())
    file.write_bytes(whole.splitlines(keepends=True)[0])
    (run,) = watcher.look()
    assert [figures.round for figures in run.evaluated] == [5]


# --- how far, and how long ------------------------------------------------------------------------


def test_speed_and_time_left_are_those_of_the_last_quarter(tmp_path):
    # Ten rounds of 1 s, then thirty of 3 s: what is left is sixty of these.
    played = [(10, 10.0, accuracy(0.5)), (30, 70.0, accuracy(0.5)), (35, 85.0, accuracy(0.5))]
    path = made_run(tmp_path / "run", played=played, round=40, seconds=100.0)
    with RunFolder(path) as folder:
        folder.show_running()
        run = look(path)
    assert run.seconds_per_round == pytest.approx(3.0)
    assert run.seconds_left == pytest.approx(180, abs=30)  # counted from when it was told
    assert words.progress(run)[:3] == ["round 40 of 100", "stage train", "3 s a round"]


def test_a_run_that_may_end_early_says_at_most(tmp_path):
    path = made_run(tmp_path / "run", config="[run]\npatience = 3\n", round=40, seconds=100.0)
    assert words.progress(look(path))[0] == "round 40 of at most 100"


def test_stages_count(tmp_path):
    cf.run(SETTINGS, algorithm="fesem", out=tmp_path / "run", until=2)
    assert (look(tmp_path / "run").round, look(tmp_path / "run").rounds) == (2, 7)


@pytest.mark.parametrize(("higher", "best"), [("accuracy", 10), ("rmse", 5)])
def test_the_best_round_is_by_validation_and_by_the_metrics_own_way(tmp_path, higher, best):
    def figures(local, validation):
        return {"local": {higher: local}, "validation": {higher: validation}}

    measured = [figures(0.9, 0.1), figures(0.5, 0.7), figures(0.6, 0.7)]
    played = [(5 * number, 1.0, each) for number, each in enumerate(measured, 1)]
    run = look(made_run(tmp_path / "run", played=played))
    assert (run.best.round, run.criterion) == (best, higher)


# --- whose folders may be anybody's ---------------------------------------------------------------


def test_code_that_a_folder_names_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "strange.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = '[algorithm]\nname = "strange:Method"\n[model]\nname = "strange:Model"\n'
    run = look(made_run(tmp_path / "run", config=config, round=1, seconds=1.0))
    assert "strange" not in sys.modules
    assert run.way_on == f"concordfl resume {tmp_path / 'run'} --trust"
    assert (run.method, run.rounds) == ("strange:Method", 100)  # which the run itself has counted


def test_missing_replies_and_failures_are_said(tmp_path):
    failure = {"client": "a", "stage": "s", "step": "train", "round": 2, "detail": "bad luck"}
    later = {**accuracy(0.6), "missing": {"failed": 2}, "void_rounds": 1}
    played = [(5, 1.0, {**accuracy(0.5), "failures": [failure]}), (10, 2.0, later)]
    assert look(made_run(tmp_path / "run", played=played)).messages == (
        "Replies that do not count: 2 failed",
        "The first of those with a reason: client 'a', step 'train', round 2: bad luck",
        "1 rounds were void: fewer answered than run.min_replies asks",
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [("records.jsonl", "line 1, is damaged"), ("progress.json", "is damaged"),
     ("executor.json", "is damaged"), ("federation.json", "is damaged"),
     ("config.toml", "must be a TOML file"), ("checkpoint", "A checkpoint is damaged")],
)  # fmt: skip
def test_what_is_damaged_is_a_message_and_the_rest_is_shown(stopped, name, message):
    file = stopped / name
    if file.is_dir():
        file = file / "manifest-00000003.json"
    file.write_text("= damaged\n")
    run = look(stopped)
    (text,) = run.messages
    assert message in text
    assert "\n" not in text
    assert (run.state, run.round) == ("stopped", 3)  # by one of the others


def test_a_damaged_summary_is_a_message(finished):
    (finished / "summary.json").write_text("{")
    run = look(finished)
    assert (run.state, run.round) == ("stopped", 6)
    assert "summary.json is damaged" in run.messages[0]


def test_links_are_not_followed(stopped, tmp_path):
    secret = tmp_path / "secret"
    shutil.move(stopped / "records.jsonl", secret)
    (stopped / "records.jsonl").symlink_to(secret)
    run = look(stopped)
    assert run.evaluated == ()
    assert run.messages == (f"{stopped / 'records.jsonl'} must be a file, got a link",)


@pytest.mark.parametrize("odd", [math.nan, math.inf, 10**400, "x", None, True, [1], {}])
def test_odd_figures_are_gaps_and_the_page_gets_json(tmp_path, odd):
    figures = {"local": {"accuracy": odd, "worst_tenth": odd}, "global": odd, "missing": odd,
               "failures": odd, "void_rounds": odd}  # fmt: skip
    played = [(5, 1.0, accuracy(0.5)), (10, odd, figures), (15, 3.0, accuracy(0.25))]
    watcher = Watcher(made_run(tmp_path / "run", played=played))

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    shown = json.loads(to_json(watcher), parse_constant=refuse)["runs"][0]
    assert shown["curves"]["participants"] == [50.0, None, 25.0]
    assert shown["curves"]["rounds"] == [5, 10, 15]


def test_a_round_that_no_run_has_is_damage(tmp_path):
    run = look(made_run(tmp_path / "run", played=[(10**400, 1.0, accuracy(0.5))]))
    assert "round must be a whole number from 0 to" in run.messages[0]


# --- several runs ---------------------------------------------------------------------------------


def test_the_runs_of_a_comparison_in_the_order_of_their_beginning(tmp_path):
    for method, name in (("local", "z"), ("fedavg", "b"), ("fedavg", "a"), ("ifca", "tuning/x")):
        config = f"[algorithm]\nname = '{method}'\n[run]\nseed = 0\n"
        made_run(tmp_path / "runs" / name, config=config)
    (tmp_path / "runs/letters").mkdir()
    (tmp_path / "runs/link").symlink_to(tmp_path / "runs/z")
    runs = Watcher(tmp_path / "runs").look()
    assert [run.name for run in runs] == ["z", "b", "a", "tuning/x"]
    assert words.titles(runs) == ["local, seed 0", "b", "a", "ifca, seed 0"]
    assert words.headline(runs) == "4 runs: 4 not begun"


def test_runs_that_begin_later_are_seen(tmp_path):
    made_run(tmp_path / "runs/first")
    watcher = Watcher(tmp_path / "runs")
    made_run(tmp_path / "runs/second")
    assert [run.name for run in watcher.look()] == ["first", "second"]
    shutil.rmtree(tmp_path / "runs/first")
    assert [run.name for run in watcher.look()] == ["second"]


def test_what_is_not_a_folder_of_runs_is_refused(tmp_path):
    with pytest.raises(SettingError, match="must exist, got .*nothing"):
        Watcher(tmp_path / "nothing")
    with pytest.raises(SettingError, match="must be of a run.* got .* without config.toml"):
        Watcher(tmp_path)


def test_files_that_stay_the_same_are_not_read_again(finished, monkeypatch):
    watcher = Watcher(finished)
    before = watcher.look()
    monkeypatch.setattr("concordfl.engine.files.read_file", None)
    monkeypatch.setattr("concordfl.engine.records.read_file", None)
    assert watcher.look() == before


@pytest.mark.parametrize("end", ["stopped", "finished"])
def test_no_damage_ends_the_watching(runs, tmp_path, end):
    """Files of a run cut, edited, sealed again, or replaced by others, folders and links."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret.txt").write_text("a secret")
    for case in range(DAMAGES):
        rng = np.random.default_rng([case, len(end)])
        path = tmp_path / f"run-{case}"
        shutil.copytree(runs / end, path)
        files = [
            *path.glob("*.*"), path / "progress.json", path / "records.jsonl",
            *path.glob("checkpoint/manifest-*.json"),
        ]  # fmt: skip
        words_of_damage, _ = mutations.damage_file(tmp_path, mutations.pick(rng, files), rng)
        if not (path / "config.toml").is_file():
            continue  # a run's folder no more
        try:
            shown = json.loads(to_json(Watcher(path)))
        except Exception as error:
            raise AssertionError(words_of_damage) from error
        assert "a secret" not in json.dumps(shown), words_of_damage
