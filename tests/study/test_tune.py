"""Tuning: settings chosen on validation data, with the same budget for every method."""

import json
import re
import shutil
import tomllib
from contextlib import nullcontext
from pathlib import Path

import pytest

from command import concordfl
from concordfl import ClientStepError, SettingError, run
from concordfl.config import read_table
from concordfl.engine import evaluate
from concordfl.engine.experiment import ignore
from concordfl.study import grid as grids
from concordfl.study.cells import ConfigHasher, cells
from concordfl.study.tune import Race, Trial, _ranked, tune
from mutations import TYPED

TABLE = {
    "run": {"rounds": 4, "evaluate_every": 1, "executor": "serial"},
    "data": {"name": "digits", "limit": 200},
    "scenario": {"clients": 2},
    "model": {"name": "linear"},
    "training": {"lr": 0.01},
}
RATES = {"training.lr": [1e-6, 1e-5, 0.1, 1e-4]}


def chosen(tuning):
    return {method: dict(one.chosen.candidate.values) for method, one in tuning.methods.items()}


def straight(method, **training):
    return run({**TABLE, "algorithm": {"name": method}, "training": training})


# --- the choice -----------------------------------------------------------------------------------


def test_the_best_rate_is_found_for_every_method(tmp_path):
    tuning = tune(TABLE, ["fedavg", "fedprox"], RATES, out=tmp_path)
    assert chosen(tuning) == {method: {"training.lr": 0.1} for method in ("fedavg", "fedprox")}
    for method, one in tuning.methods.items():
        for trial, rate in ((one.before, 0.01), (one.chosen, 0.1)):
            record = straight(method, lr=rate).records[-1]
            assert one.validation(trial) == record["validation"]["accuracy"]
    assert tuning.table["algorithm"] == {"training": {"lr": 0.1}}
    assert tuning.table["compare"] == {"fedprox": {"training": {"lr": 0.1}}}


@pytest.mark.parametrize(("turned", "expected"), [("test", 0.1), ("validation", 1e-6)])
def test_the_choice_is_by_validation_and_never_by_test(tmp_path, monkeypatch, turned, expected):
    """Figures of one split are turned round: only those of validation data count."""
    summarise = evaluate.summarise

    def adversary(replies, split):
        found = summarise(replies, split)
        if split != turned or not found:
            return found
        worse = {"accuracy": -found["accuracy"], "loss": -found["loss"]}
        return {**found, **worse}

    monkeypatch.setattr(evaluate, "summarise", adversary)
    tuning = tune(TABLE, ["fedavg"], {"training.lr": [1e-6, 0.1]}, out=tmp_path)
    assert chosen(tuning)["fedavg"] == {"training.lr": expected}


def test_seeds_are_averaged(tmp_path):
    grid = {"training.lr": [1e-6, 0.1]}
    tuning = tune(TABLE, ["fedavg"], grid, out=tmp_path, seeds=2, rungs=1)
    table = {**TABLE, "training": {"lr": 0.1}}
    accuracies = [
        run({**table, "run": {**TABLE["run"], "seed": seed}}).records[-1]["validation"]["accuracy"]
        for seed in (0, 1)
    ]
    found = tuning.methods["fedavg"]
    assert found.validation(found.chosen) == pytest.approx(sum(accuracies) / 2)


def test_without_a_grid_rates_around_the_own_one_are_tried(tmp_path):
    table = {**TABLE, "compare": {"local": {"training": {"lr": 0.5}}}}
    tuning = tune(table, ["fedavg", "local"], out=tmp_path, rounds=1)
    tried = {
        method: [trial.candidate.values["training.lr"] for trial in one.trials]
        for method, one in tuning.methods.items()
    }
    assert tried == {
        "fedavg": [0.001, 0.0033, 0.01, 0.03, 0.1],
        "local": [0.05, 0.17, 0.5, 1.5, 5.0],
    }


def test_equal_figures_leave_the_run_file_as_it_is(tmp_path):
    """A learning rate is nothing to a method that fits Gaussians."""
    tuning = tune(
        TABLE, ["fedgmm-unsupervised"], {"training.lr": [0.5, 0.6]}, out=tmp_path, rounds=1
    )
    assert tuning.methods["fedgmm-unsupervised"].chosen.candidate.is_own
    assert tuning.table == TABLE
    assert tuning.notes() == ["fedgmm-unsupervised: no setting of the grid made any difference"]


def test_settings_with_which_a_run_fails_are_not_chosen(tmp_path):
    tuning = tune(TABLE, ["fedavg"], {"training.lr": [0.1, 1e38]}, out=tmp_path)
    assert chosen(tuning)["fedavg"] == {"training.lr": 0.1}
    assert any(note.startswith("fedavg, lr = 1e+38, failed: stage") for note in tuning.notes())
    with pytest.raises(ClientStepError, match="at least one setting of fedavg must succeed"):
        tune(
            {**TABLE, "training": {"lr": 2e38}},
            ["fedavg"],
            {"training.lr": [1e38, 3e38]},
            out=tmp_path / "all",
        )


def test_the_metric_says_which_way_is_better():
    """An error is the better the lower; of equal ones the least loss decides, then the own."""

    def ranked(**figures):
        trials = [
            Trial(grids.Candidate(name, {"training.lr": name}, {}, name == "own"), 1, found)
            for name, found in figures.items()
        ]
        return [candidate.name for candidate in _ranked(trials)]

    assert ranked(a={"rmse": 2.0}, b={"rmse": 1.0}, failed={}) == ["b", "a"]
    assert ranked(a={"accuracy": 0.1}, b={"accuracy": 0.2}) == ["b", "a"]
    same = {"accuracy": 0.5}
    assert ranked(a={**same, "loss": 2.0}, own={**same, "loss": 2.0}, b={**same, "loss": 1.0}) == [
        *("b", "own", "a")
    ]
    no_number = float("nan")
    known = {**same, "loss": 9.0}
    assert ranked(none=same, own={**same, "loss": no_number}, b=known) == ["b", "own", "none"]
    assert ranked(a={"rmse": no_number}, b={"rmse": 1.0}, c={"rmse": no_number}) == ["b", "a", "c"]


def test_a_value_at_the_end_of_the_grid_is_said(tmp_path):
    tuning = tune(TABLE, ["fedavg"], {"training.lr": [1e-6, 0.1]}, out=tmp_path)
    assert tuning.notes() == [
        "fedavg: training.lr = 0.1 is the largest of the grid, further out it may be better"
    ]


def test_several_settings_are_combined(tmp_path):
    grid = {"training.lr": [1e-6, 0.1], "algorithm.mu": [0.01, 1e3]}
    tuning = tune(TABLE, ["fedprox"], grid, out=tmp_path, rounds=2)
    assert [trial.name for trial in tuning.methods["fedprox"].trials] == [
        *("lr = 1e-06, mu = 0.01", "lr = 1e-06, mu = 1000.0"),
        *("lr = 0.1, mu = 0.01", "lr = 0.1, mu = 1000.0", "as in the run file"),
    ]
    # a strong pull to the global model is as good as no learning
    assert chosen(tuning)["fedprox"] == {"training.lr": 0.1, "algorithm.mu": 0.01}


# --- the budget -----------------------------------------------------------------------------------


def test_half_of_the_settings_go_on_from_each_rung(tmp_path):
    tuning = tune(TABLE, ["fedavg", "fedprox"], RATES, out=tmp_path)
    assert tuning.rungs == (1, 2, 4)
    for one in tuning.methods.values():
        in_grid = [trial for trial in one.trials if trial.candidate.in_grid]
        assert sorted(trial.rounds for trial in in_grid) == [1, 1, 2, 4]
        assert one.before.rounds == 4  # whatever it is worth: it says what tuning has gained
    assert len({one.rounds for one in tuning.methods.values()}) == 1


def test_runs_that_stop_early_are_judged_by_their_last_evaluation(tmp_path):
    table = {**TABLE, "run": {**TABLE["run"], "rounds": 40, "patience": 1}}
    tuning = tune(table, ["fedavg"], {"training.lr": [1e-6, 0.1]}, out=tmp_path, rungs=1)
    (one,) = tuning.methods.values()
    summaries = [json.loads(file.read_text()) for file in tmp_path.rglob("summary.json")]
    assert all(summary["stopped_early"] for summary in summaries)
    assert sorted(trial.rounds for trial in one.trials) == sorted(
        summary["rounds"] for summary in summaries
    )


def test_with_one_rung_all_settings_are_played_to_the_end(tmp_path):
    tuning = tune(TABLE, ["fedavg"], {"training.lr": [1e-6, 0.1]}, out=tmp_path, rungs=1)
    assert tuning.rungs == (4,)
    assert {trial.rounds for trial in tuning.methods["fedavg"].trials} == {4}


@pytest.mark.parametrize(
    ("rounds", "every", "settings", "expected"),
    [
        (20, 5, 5, (5, 10, 20)),
        (20, 5, 9, (5, 10, 20)),  # there is nothing to judge by before round 5
        (16, 1, 8, (2, 4, 8, 16)),
        (20, 20, 8, (20,)),
        (7, 2, 4, (2, 4, 7)),
        (10, 1, 2, (5, 10)),
    ],
)
def test_rungs_are_evaluated_rounds(tmp_path, rounds, every, settings, expected):
    table = {**TABLE, "run": {"rounds": rounds, "evaluate_every": every}}
    race = Race(table, tmp_path, 1, lambda _: nullcontext(ignore), {})
    assert race.levels(settings, None) == expected


def test_a_method_of_several_stages_is_judged_by_its_last(tmp_path):
    tuning = tune(TABLE, ["fedconcat"], {"training.lr": [1e-6, 0.1]}, out=tmp_path)
    (one,) = tuning.methods.values()
    summaries = [json.loads(file.read_text()) for file in tmp_path.rglob("summary.json")]
    (whole,) = {summary["rounds"] for summary in summaries}
    assert {trial.rounds for trial in one.trials} < set(range(whole + 1))
    assert one.chosen.rounds == whole
    last = summaries[0]["seconds"]["stages"]["head"]["rounds"]
    shortest = min(trial.rounds for trial in one.trials)
    assert shortest == whole - last + -(-last // 2)  # half of the last stage


def test_what_goes_on_is_the_run_that_it_would_have_been(tmp_path):
    tuning = tune(TABLE, ["fedavg"], RATES, out=tmp_path)
    settings = cells(tuning.table, ["fedavg"], [0])["fedavg", 0]
    (folder,) = tmp_path.glob(f"*-{ConfigHasher()(settings)}")
    summary = json.loads((folder / "summary.json").read_text())
    expected = straight("fedavg", lr=0.1).summary
    for key in ("parameters_sha256", "rounds", "final", "selected", "bytes"):
        assert summary[key] == expected[key], key


# --- going on -------------------------------------------------------------------------------------


def counted(played, end=0):
    """A display that takes down the rounds, and ends all of it after a number of them."""

    def observe(event):
        played.append(event.turn.round)
        if len(played) == end:
            raise KeyboardInterrupt

    return lambda _: nullcontext(observe)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_killed_tuning_goes_on_to_the_same_file(tmp_path, share):
    grid = {"training.lr": [1e-6, 0.1, 0.02]}
    rounds, killed, again = [], [], []
    expected = tune(TABLE, ["fedavg"], grid, out=tmp_path / "straight", display=counted(rounds))
    end, folder = max(1, int(share * len(rounds))), tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        tune(TABLE, ["fedavg"], grid, out=folder, display=counted(killed, end))
    assert len(killed) == end
    found = tune(TABLE, ["fedavg"], grid, out=folder, display=counted(again))
    assert found.to_toml() == expected.to_toml()
    assert len(again) <= len(rounds) - end + 4  # the run that was killed goes on from its last rung
    assert tune(TABLE, ["fedavg"], grid, out=folder, display=counted([], end=1)) == found


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "a grid must have from 2 to 1,000 settings, got 1"),
        ({"training.lr": [0.1]}, r"a grid must have two values or more of a setting, got train"),
        ({"run.rounds": [1, 2]}, r"a grid must be of algorithm.KEY, training.KEY, aggregation.KEY"),
        ({"algorithm.name": ["a", "b"]}, "a grid must be of algorithm.KEY"),
        ({"training.lr": [0.1, -1.0]}, r"algorithm.training.lr must be > 0, got -1.0"),
        ({"training.lrr": [1, 2]}, r"unknown key 'algorithm.training.lrr': did you mean 'lr'"),
        ({"training.lr": [0.1, 0.1]}, "of which two are the same for fedavg"),
        (
            {"algorithm.mu": [0.1, 1.0]},
            "a grid must change every method, so that all have the same budget, got algorithm.mu, "
            "which fedavg does not have",
        ),
    ],
)
def test_a_wrong_grid_is_refused_before_any_work(tmp_path, grid, message):
    with pytest.raises(SettingError, match=message):
        tune(TABLE, ["fedavg", "fedprox"], grid, out=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


SECTIONS = ("training", "algorithm")


@pytest.mark.parametrize("key", ["schedule", "mu"])
def test_whatever_is_typed_as_a_grid_is_tried_or_refused(key):
    messages = []
    for text in (f"{section}.{key}={value},0.1" for section in SECTIONS for value in TYPED):
        try:
            grid = grids.parse_grid([text])
            grids.check_grid(grid)
            messages.append(str(len(grids.candidates(TABLE, "fedprox", grid))))
        except SettingError as error:
            messages.append(str(error))
    assert max(map(len, messages)) < 1000


@pytest.mark.parametrize("text", ["training.lr", "training.lr 0.1,0.2"])
def test_a_grid_is_written_as_settings_are(text):
    with pytest.raises(SettingError, match="--grid must be SECTION.KEY=VALUE,VALUE,..., got"):
        grids.parse_grid([text])


def test_a_grid_from_the_command_line():
    found = grids.parse_grid(["training.lr = 0.1, 1", "training.optimizer=sgd,adam"])
    assert found == {"training.lr": [0.1, 1], "training.optimizer": ["sgd", "adam"]}
    with pytest.raises(SettingError, match="--grid must name a setting once, got training.lr"):
        grids.parse_grid(["training.lr=1,2", "training.lr=3,4"])


def test_tuning_needs_validation_examples(tmp_path):
    table = {**TABLE, "scenario": {"clients": 2, "split": [0.8, 0.0, 0.2]}}
    with pytest.raises(SettingError, match="tuning needs validation examples at one client"):
        tune(table, ["fedavg"], RATES, out=tmp_path)


def test_a_method_of_ones_own_is_tuned_too(tmp_path):
    own = "toys:Toy"
    tuning = tune(TABLE, [own], {"training.lr": [1e-6, 0.1]}, out=tmp_path, rounds=1)
    path = tuning.table["compare"][own]["training"]
    assert path == {"lr": 0.1}
    assert cells(tuning.table, [own], [0])[own, 0].training.lr == 0.1
    assert tomllib.loads(tuning.to_toml())["compare"][own]["training"] == path


def test_a_command_of_several_lines_stays_a_comment(tmp_path):
    tuning = tune(TABLE, ["fedavg"], {"training.lr": [1e-6, 0.1]}, out=tmp_path, rounds=1)
    text = tuning.to_toml("concordfl tune 'a\nrounds = 7.toml'")
    assert tomllib.loads(text) == tomllib.loads(tuning.to_toml())


def test_methods_are_named_once(tmp_path):
    with pytest.raises(SettingError, match="methods must be named once each, got local, local"):
        tune(TABLE, ["local", "local"], RATES, out=tmp_path)


def test_the_docs_show_what_is_printed(tmp_path, monkeypatch, capsys):
    """Commands and Python of the page, with fewer rounds; figures are not compared."""
    page = (Path(__file__).parents[2] / "docs/tuning.md").read_text()
    run_file, shown, python = (
        re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1]
        for kind in ("toml", "text", "python")
    )
    less = {
        "rounds = 20": 'rounds = 2\nexecutor = "serial"',
        "every = 5": "every = 1",
        '"digits"': '"digits"\nlimit = 300',
    }
    for long, short in less.items():
        run_file = run_file.replace(long, short)
    (tmp_path / "skewed.toml").write_text(run_file)
    commands = re.findall(r"```sh\nconcordfl (.*?)\n```", page)
    assert len(commands) == 2
    done, compared = (concordfl(tmp_path, *command.split()) for command in commands)
    assert done.returncode == 0, done.stderr
    assert compared.returncode == 0, compared.stderr
    printed = done.stdout.splitlines()
    assert [row[0] for row in rows(done.stdout)] == [row[0] for row in rows(shown)]
    assert [line.rstrip() for line in printed if line.startswith(("skewed, tuned", "Written"))] == [
        line for line in shown.splitlines() if line.startswith(("skewed, tuned", "Written"))
    ]
    heads = [
        [cell.strip() for cell in line.split("┃")]
        for line in [*printed, *shown.splitlines()]
        if line.startswith("┃")
    ]
    assert heads[0] == heads[1]
    monkeypatch.chdir(tmp_path)
    exec(python, {})
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "fedavg:",
        "fedprox:",
    ]


# --- the commands ---------------------------------------------------------------------------------

RUN_FILE = """
[run]
rounds = 4
evaluate_every = 1
executor = "serial"

[data]
name = "digits"
limit = 200

[scenario]
clients = 2

[model]
name = "linear"

[algorithm]
name = "fedprox"  # a comment, which is not kept
mu = 0.5

[training]
lr = 0.01
"""
TUNE = ("tune", "mine.toml", "--algorithms", "fedavg,fedprox", "--grid", "training.lr=1e-6,0.1")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.toml").write_text(RUN_FILE)
    return tmp_path


def rows(output):
    """The cells of the tables, by the first of them."""
    lines = [line for line in output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_tune_writes_a_run_file_that_compare_reads(folder):
    done = concordfl(folder, *TUNE, "-o", "tuned.toml")
    assert done.returncode == 0, done.stderr
    found = {row[0]: row[1] for row in rows(done.stdout)}
    assert found == {"fedavg": "lr = 0.1", "fedprox": "lr = 0.1"}
    text = (folder / "tuned.toml").read_text()
    first, command, *_ = text.splitlines()
    assert first.startswith("# Written by `concordfl tune` on 2")
    assert command == "# concordfl " + " ".join([*TUNE, "-o", "tuned.toml"])
    assert tomllib.loads(text) == {
        "format": 1,
        **tomllib.loads(RUN_FILE),
        "algorithm": {"name": "fedprox", "mu": 0.5, "training": {"lr": 0.1}},
        "compare": {"fedavg": {"training": {"lr": 0.1}}},
    }
    before = sorted(path.name for path in (folder / "runs/compare-tuned").iterdir())
    compared = concordfl(folder, "compare", "tuned.toml", "--algorithms", "fedavg,fedprox")
    assert compared.returncode == 0, compared.stderr
    assert "round 1/4" not in compared.stdout  # the runs that were chosen are those compared
    after = sorted(path.name for path in (folder / "runs/compare-tuned").iterdir())
    assert after == sorted([*before, "report.html"])
    assert concordfl(folder, "run", "tuned.toml", "--dry-run").returncode == 0


def test_tune_shows_nothing_of_test_data(folder):
    done = concordfl(folder, *TUNE)
    progress = [line for line in done.stdout.splitlines() if "round " in line and ": round" in line]
    assert progress
    assert all("validation accuracy" in line for line in progress)
    assert not any(word in done.stdout for word in ("local ", "global", "participants"))
    assert (folder / "mine-tuned.toml").exists()


def test_tune_refuses_to_replace_a_file_of_yours(folder):
    done = concordfl(folder, *TUNE, "-o", "mine.toml")
    assert done.returncode == 2
    assert done.stderr == (
        "concordfl: the tuned run file must be new, or an earlier one, got mine.toml\n"
    )
    assert (folder / "mine.toml").read_text() == RUN_FILE
    for wrong in ("nowhere/tuned.toml", "."):
        done = concordfl(folder, *TUNE, "-o", wrong)
        assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert not (folder / "runs").exists()
    (folder / "mine-tuned.toml").write_text("# Written by `concordfl tune` some time ago")
    assert concordfl(folder, *TUNE).returncode == 0


def test_a_wrong_grid_is_one_line(folder):
    done = concordfl(folder, *TUNE[:-1], "training.lr=0.1,-1")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["concordfl: compare.fedavg.training.lr must be > 0, got -1"]
    assert not (folder / "runs").exists()


def test_compare_tuned_does_both(folder):
    command = ("compare", "mine.toml", "--algorithms", "fedavg,fedprox", "--tuned")
    done = concordfl(folder, *command, "--grid", "training.lr=1e-6,0.1")
    assert done.returncode == 0, done.stderr
    assert "mine, tuned on validation data" in done.stdout
    assert "mine, tuned, 1 seed" in done.stdout
    assert {row[1] for row in rows(done.stdout)[:2]} == {"lr = 0.1"}
    shutil.rmtree(folder / "runs")
    (folder / "by-hand.toml").write_text(RUN_FILE.replace("lr = 0.01", "lr = 0.1"))
    by_hand = concordfl(folder, "compare", "by-hand.toml", "--algorithms", "fedavg,fedprox")
    figures = [row[:-1] for row in rows(by_hand.stdout)[:2]]  # of both methods, without the time
    assert [row[:-1] for row in rows(done.stdout)[2:4]] == figures


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--grid", "training.lr=1,2"), "--grid is for --tuned, got it without"),
        (
            ("--tuned", "--vary", "training.lr=1,2"),
            "--tuned must not be given with --vary, got both",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(folder, arguments, message):
    done = concordfl(folder, "compare", "mine.toml", "--algorithms", "fedavg", *arguments)
    assert (done.returncode, done.stderr) == (2, f"concordfl: {message}\n")


def test_data_are_found_from_another_folder(folder):
    """Relative paths begin at the run file, and the tuned one may lie elsewhere."""
    lines = [f"{name},{x},{x % 2}" for name in "ab" for x in range(40)]
    (folder / "rows.csv").write_text("\n".join(["client,x,y", *lines]))
    (folder / "mine.toml").write_text(
        '[run]\nrounds = 1\nexecutor = "serial"\n[data]\ntable = "rows.csv"\n'
        '[model]\nname = "linear"\n'
    )
    (folder / "elsewhere").mkdir()
    for target in ("elsewhere/tuned.toml", "tuned.toml"):
        done = concordfl(folder, *TUNE, "-o", target)
        assert done.returncode == 0, done.stderr
        compared = concordfl(folder, "compare", target, "--algorithms", "fedavg")
        assert compared.returncode == 0, compared.stderr
    assert str(folder) in (folder / "elsewhere/tuned.toml").read_text()
    assert str(folder) not in (folder / "tuned.toml").read_text()


def test_rounds_of_the_tuning_are_not_those_of_the_file(folder):
    done = concordfl(folder, *TUNE, "--rounds", "2", "--executor", "serial", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    table = read_table(folder / "mine-tuned.toml")
    assert table["run"] == {"rounds": 4, "evaluate_every": 1, "executor": "serial"}
    assert "Settings were judged after 1, 2 rounds" in done.stdout
