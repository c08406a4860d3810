"""Rules that are made from a benchmark, and runs whose method they choose."""

import json
import tomllib

import numpy as np
import pytest
from torch import nn

import concordfl as cf
from command import concordfl
from concordfl.algorithms import ALGORITHMS
from concordfl.config import Config
from concordfl.diagnosis import recommend
from concordfl.diagnosis.recommend import Facts, Rule, find_rule, method_settings
from concordfl.diagnosis.run import load_diagnosis
from concordfl.engine.records import DIAGNOSIS_FILE
from diagnosis.planted import planted

NOTHING = Facts(clients=8, examples=100, labels=0, concept=0, features=0, groups=1)
SERIAL = {"executor": "serial", "rounds": 2, "evaluate_every": 1}
SPLIT = {"split": [0.6, 0.0, 0.4]}


# --- rules ----------------------------------------------------------------------------------------


def rule(purpose="local", **holds):
    return Rule(purpose, holds, ["one"], {"fedavg": 0.0})


def test_the_first_rule_that_holds_is_taken():
    known = [
        rule(concept=True, labels="strong"),
        rule("global", concept=False),
        rule(concept=False, labels="weak", few=True),
        rule(concept=False),
        rule(),
    ]
    cases = {
        3: NOTHING,
        2: NOTHING._replace(labels=0.1, examples=20),
        0: NOTHING._replace(labels=0.6, concept=0.2),
        4: NOTHING._replace(labels=0.1, concept=0.2),
    }
    for place, facts in cases.items():
        assert find_rule(known, facts, "local") is known[place]
    assert find_rule(known, NOTHING, "global") is known[1]
    with pytest.raises(cf.SettingError, match="a rule for every diagnosis, got none for global"):
        find_rule(known[:1], NOTHING, "global")


@pytest.mark.parametrize("purpose", recommend.PURPOSES)
def test_there_is_a_rule_for_every_diagnosis_and_its_methods_exist(purpose):
    own = [one for one in recommend.rules() if one.purpose == purpose]
    assert own[-1].holds == {}
    for one in own:
        assert set(one.behind) <= set(ALGORITHMS)
        assert list(one.behind.values()) == sorted(one.behind.values())
        assert min(one.behind.values()) >= 0
        assert len(one.behind) >= recommend.NUM_METHODS
    for facts in (NOTHING, NOTHING._replace(concept=0.3, groups=3), NOTHING._replace(labels=0.7)):
        advice = recommend.recommend(facts)[purpose]
        assert len(advice["methods"]) == recommend.NUM_METHODS
        assert advice["methods"][0]["method"] in advice["because"]


def test_settings_are_a_model_for_every_group_and_no_more_clusters_than_clients():
    three = NOTHING._replace(concept=0.3, groups=3)
    assert method_settings("ifca", three) == {"num_models": 3}
    assert method_settings("ifca", NOTHING) == {}
    assert method_settings("ditto", three) == {}
    assert method_settings("fedconcat", NOTHING._replace(clients=4)) == {"clusters": 4}


def test_what_is_not_named_does_not_count():
    found = cf.diagnose(clients=planted(4, 40), run={"executor": "serial"}, max_groups=2)
    content = found.content
    for name in ("labels", "concept", "features"):
        content["questions"][name] = {**found[name], "effect": 0.5, "differs": name == "labels"}
    facts = Facts.of(content["questions"], content["groups"], content["clients"])
    assert facts == Facts(4, 40.0, 0.5, 0.0, 0.0, 1)


# --- auto -----------------------------------------------------------------------------------------


def test_auto_runs_what_is_recommended_and_its_record_says_so(tmp_path):
    clients = planted(6, 100, concept=True)
    settings = {"clients": clients, "run": SERIAL, "scenario": SPLIT}
    expected = cf.diagnose(**settings).recommendation["local"]["methods"][0]
    result = cf.run(**settings, algorithm="auto", out=tmp_path / "run")
    auto = result.summary["auto"]
    assert result.summary["algorithm"] == auto["method"] == expected["method"]
    assert auto["settings"] == expected["settings"]
    assert any("The same inputs have other labels" in one for one in auto["found"])
    text = (tmp_path / "run" / "config.toml").read_text()
    assert text.startswith(f"# auto chose {expected['method']}")
    assert tomllib.loads(text)["algorithm"]["name"] == expected["method"]
    written = load_diagnosis(tmp_path / "run").content
    assert written["chosen"]["because"] == auto["because"]
    named = {"name": expected["method"], **expected["settings"]}
    by_name = cf.run(**settings, algorithm=named)
    assert by_name.summary["final"] == result.summary["final"]
    assert "auto" not in by_name.summary


def test_a_resumed_run_keeps_the_choice(tmp_path):
    settings = {"clients": planted(4, 60), "run": SERIAL, "scenario": SPLIT}
    straight = cf.run(**settings, algorithm={"name": "auto", "purpose": "global"})
    cf.run(**settings, algorithm={"name": "auto", "purpose": "global"}, out=tmp_path / "a", until=1)
    assert not (tmp_path / "a" / "summary.json").exists()
    resumed = cf.resume(tmp_path / "a")
    assert resumed.summary["auto"] == straight.summary["auto"]
    assert resumed.summary["auto"]["purpose"] == "global"
    assert resumed.summary["final"] == straight.summary["final"]


def test_a_diagnosis_that_was_written_into_a_run_folder_chooses_nothing(tmp_path):
    settings = {"clients": planted(3, 40), "run": SERIAL, "scenario": SPLIT}
    cf.run(**settings, algorithm="fedavg", out=tmp_path / "a", until=1)
    cf.diagnose(**settings, max_groups=2, out=tmp_path / "a")
    resumed = cf.resume(tmp_path / "a")
    assert resumed.summary["algorithm"] == "fedavg"
    assert "auto" not in resumed.summary


def test_a_run_is_not_resumed_without_the_diagnosis_that_chose_it(tmp_path):
    settings = {"clients": planted(3, 40), "run": SERIAL, "scenario": SPLIT}
    cf.run(**settings, algorithm="auto", out=tmp_path / "a", until=1)
    (tmp_path / "a" / DIAGNOSIS_FILE).unlink()
    with pytest.raises(cf.CheckpointError, match="begun with another diagnosis"):
        cf.resume(tmp_path / "a")


def test_methods_that_the_network_does_not_allow_are_passed_over(monkeypatch):
    made = (Rule("local", {}, ["one"], {"fedrep": 0.0, "fedavg": 1.0, "local": 2.0}),)
    monkeypatch.setattr(recommend, "rules", lambda: (*made, made[0]._replace(purpose="global")))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))  # without encoder and head
    result = cf.run(
        clients=planted(3, 40), run=SERIAL, scenario=SPLIT, model=plain, algorithm="auto"
    )
    auto = result.summary["auto"]
    assert auto["method"] == "fedavg"
    (reason,) = auto["passed_over"]
    assert reason.startswith("fedrep: ")
    assert "encoder" in reason


def test_settings_of_auto_round_trip():
    settings = Config.from_table({"algorithm": {"name": "auto", "purpose": "global"}})
    assert settings.to_table()["algorithm"] == {"name": "auto", "purpose": "global"}
    assert settings.own_code() == {}
    with pytest.raises(cf.SettingError, match="purpose must be "):
        Config.from_table({"algorithm": {"name": "auto", "purpose": "best"}})


def test_what_auto_cannot_do_is_one_line(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with pytest.raises(cf.SettingError, match="auto cannot choose a method: .* for regression"):
        cf.run(clients={"a": (x, x[:, 0]), "b": (x, x[:, 1])}, algorithm="auto", run=SERIAL)
    with pytest.raises(cf.SettingError, match="auto cannot choose .* at least 2 clients"):
        cf.run(clients={"a": (x, np.arange(20) % 2)}, algorithm="auto", run=SERIAL)
    with pytest.raises(cf.SettingError, match="auto is for one run"):
        cf.compare(clients=planted(3, 20), algorithms=["auto", "fedavg"], run=SERIAL)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(cf.ConcordError, match="must be new or empty"):
        cf.run(clients={"a": (x, x)}, algorithm="auto", out=tmp_path / "used")


def test_the_command_runs_auto_and_says_why(tmp_path):
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "digits"\nlimit = 300\n[scenario]\nclients = 4\n'
        '[run]\nexecutor = "serial"\nrounds = 1\n'
    )
    done = concordfl(tmp_path, "run", "run.toml", "--algorithm", "auto", "--out", "here")
    assert done.returncode == 0, done.stderr
    assert "auto chose " in done.stdout
    assert "Label shares" in done.stdout
    summary = json.loads((tmp_path / "here" / "summary.json").read_text())
    assert summary["auto"]["method"] in done.stdout
    assert (tmp_path / "here" / DIAGNOSIS_FILE).exists()
    again = concordfl(tmp_path, "resume", "here")
    assert "auto chose " in again.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("compare", "run.toml", "--algorithms", "auto,fedavg"), "auto is for one run"),
        (("tune", "run.toml", "--algorithms", "auto"), "auto is for one run"),
        (("run", "run.toml", "--algorithm", "auto", "--dry-run"), "auto is for one run"),
    ],
)
def test_other_commands_refuse_auto_in_one_line(tmp_path, arguments, line):
    (tmp_path / "run.toml").write_text('[data]\nname = "digits"\n')
    done = concordfl(tmp_path, *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
