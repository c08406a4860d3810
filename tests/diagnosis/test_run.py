"""`cf.diagnose` and `concordfl diagnose`: planted differences are found, and no others."""

import json

import numpy as np
import pytest

import concordfl as cf
from command import concordfl
from concordfl.diagnosis.method import Diagnose
from concordfl.diagnosis.run import load_diagnosis
from concordfl.engine.records import DIAGNOSIS_FILE
from diagnosis.planted import planted

SERIAL = {"executor": "serial"}


def diagnose(clients, **settings):
    return cf.diagnose(clients=clients, run=SERIAL, **settings)


def differs(found):
    return {name for name in ("labels", "concept", "features") if found[name]["differs"]}


@pytest.mark.parametrize(
    "kinds",
    [(), ("labels",), ("features",), ("concept",), ("labels", "features", "concept")],
    ids=lambda kinds: "+".join(kinds) or "none",
)
def test_planted_differences_are_named_and_no_others(kinds):
    found = diagnose(planted(**dict.fromkeys(kinds, True)))
    assert differs(found) == set(kinds)
    if "concept" in kinds:
        groups = found.groups
        assert len({(groups[id], int(id[1:]) % 2) for id in groups}) == 2
        assert found.content["groups"] == 2
    else:
        assert set(found.groups.values()) == {0}


def test_a_false_concept_is_rare_under_feature_and_label_shift():
    alarms = [
        diagnose(planted(5, 50, labels=True, features=True, seed=seed), max_groups=2)["concept"]
        for seed in range(3)
    ]
    assert not any(alarm["differs"] for alarm in alarms)


def test_workers_say_the_same_as_one_process():
    clients = planted(3, 30, concept=True)
    one, two = (
        cf.diagnose(clients=clients, run={"executor": name, "workers": 2}, max_groups=2).content
        for name in ("serial", "processes")
    )
    for name in ("questions", "clients", "groups", "cautions", "traffic"):
        assert one[name] == two[name]


def test_it_runs_as_any_other_method_and_its_record_has_the_answers(tmp_path):
    clients = planted(3, 40, features=True)
    scenario = {"split": [0.8, 0.0, 0.2]}
    settings = {"clients": clients, "run": SERIAL, "scenario": scenario}
    played = cf.run(**settings, algorithm=Diagnose(max_groups=2), out=tmp_path / "run")
    recorded = played.records[-1]["server"]["diagnosis"]
    asked = cf.diagnose(**settings, max_groups=2)
    for name in ("concept", "features", "amount"):
        assert recorded[name]["p"] == asked[name]["p"]
    assert played.records[-1]["local"]["accuracy"] > 0.5


def test_how_a_run_would_train_and_keep_states_is_without_effect():
    clients = planted(3, 40, features=True)
    plain = cf.diagnose(clients=clients, run=SERIAL, max_groups=2)
    odd = {**SERIAL, "client_states": "disk", "dropout": 0.5, "cohort": 1, "rounds": 7}
    other = cf.diagnose(clients=clients, run=odd, training={"lr": 9.0}, max_groups=2)
    assert other.content["questions"] == plain.content["questions"]


def test_clients_of_a_few_examples_constant_columns_and_two_clients():
    rng = np.random.default_rng(0)
    clients = {
        f"c{size}": (rng.normal(size=(size, 3)).astype(np.float32), rng.integers(3, size=size))
        for size in (1, 2, 5, 30)
    }
    for x, _ in clients.values():
        x[:, 1] = 7.0
    found = diagnose(clients)
    assert found["labels"]["p"] > 0.01
    assert any("fewer than 10 examples" in caution for caution in found.content["cautions"])
    two = diagnose({id: clients[id] for id in ("c5", "c30")})
    assert not two["concept"]["differs"]


def test_clients_without_a_common_class_are_said_not_to_be_comparable():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 4)).astype(np.float32)
    found = diagnose({"a": (x, np.zeros(40, int)), "b": (x + 1, np.ones(40, int))})
    assert "share no class" in found.content["cautions"][0]
    assert "a and b" in found.content["cautions"][0]
    assert not found["concept"]["differs"]


def test_the_columns_that_differ_are_named():
    import pandas as pd

    parts = []
    for id, (x, y) in planted(4, 80).items():
        x[:, 4] += 2.0 * (id == "c1")
        names = ["one", "two", "three", "four", "blood", "six"]
        parts.append(pd.DataFrame(x, columns=names).assign(client=id, y=y))
    found = diagnose(pd.concat(parts), client="client", label="y")
    line = found.content["clients"]["c1"]
    assert line["top_features"][0] == "blood"
    assert line["features_p"] < 0.001
    assert "blood" in found["features"]["sentence"]


def test_what_is_written_is_read_again_and_damage_is_refused(tmp_path):
    found = diagnose(planted(3, 30), max_groups=2, out=tmp_path / "new")
    assert load_diagnosis(tmp_path / "new").content == found.content
    file = tmp_path / "new" / DIAGNOSIS_FILE
    assert json.loads(file.read_text())["format"] == 2
    file.write_text(file.read_text().replace('"groups": 1', '"groups": 2'))
    with pytest.raises(cf.FormatError, match="sha256"):
        load_diagnosis(tmp_path / "new")


def test_what_cannot_be_answered_is_one_line():
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    with pytest.raises(cf.SettingError, match="labels that are classes, got data for regression"):
        diagnose({"a": (x, x[:, 0]), "b": (x, x[:, 1])})
    with pytest.raises(cf.SettingError, match="at least 2 clients to compare, got 1"):
        diagnose({"a": (x, np.arange(20) % 2)})
    with pytest.raises(cf.SettingError, match="margin must be >= 0, got -1"):
        diagnose(planted(2, 10), margin=-1)
    with pytest.raises(cf.SettingError, match="max_groups must be >= 2, got 1"):
        diagnose(planted(2, 10), max_groups=1)


# --- the command ----------------------------------------------------------------------------------


def write_table(folder):
    lines = ["hospital,age,pulse,ill"]
    rng = np.random.default_rng(0)
    for hospital in ("north", "south", "west"):
        for _ in range(30):
            age, ill = rng.normal(50, 9), rng.integers(2)
            pulse = rng.normal(70 + 30 * (hospital == "west") + 5 * ill, 5)
            lines.append(f"{hospital},{age:.1f},{pulse:.1f},{ill}")
    (folder / "all.csv").write_text("\n".join(lines) + "\n")


def test_the_command_on_a_table(tmp_path):
    write_table(tmp_path)
    done = concordfl(
        tmp_path,
        *("diagnose", "all.csv", "--client", "hospital", "--label", "ill", "--out", "here"),
        *("--executor", "serial", "--max-groups", "2"),
    )
    assert done.returncode == 0, done.stderr
    for words in (
        "do clients differ?",
        "Given the label, inputs differ",
        "pulse",
        "A client has sent",
    ):
        assert words in done.stdout
    assert (tmp_path / "here" / DIAGNOSIS_FILE).exists()


def test_the_command_on_a_run_file(tmp_path):
    write_table(tmp_path)
    (tmp_path / "run.toml").write_text(
        '[data]\ntable = "all.csv"\nclient = "hospital"\nlabel = "ill"\n'
        '[run]\nexecutor = "serial"\n'
    )
    done = concordfl(tmp_path, "diagnose", "run.toml", "--max-groups", "2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    assert "3 clients with" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nothing.csv",), "what is diagnosed must be a run file (.toml), a table"),
        (("nothing.toml",), "the run file must exist"),
        ((".", "--client", "who"), "--client must be a column of one table"),
        (("run.toml", "--label", "y"), "--client and --label must go with a table"),
    ],
)
def test_what_the_command_refuses_is_one_line(tmp_path, arguments, line):
    done = concordfl(tmp_path, "diagnose", *arguments)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
