import tomllib
from pathlib import Path

import pytest

import concordfl as cf
from concordfl import SettingError
from concordfl.algorithms import FedConceptEM
from concordfl.cli.options import known_names
from concordfl.config import Config, override, read_table
from concordfl.inputs import read_inputs
from concordfl.runner import load_config
from concordfl.study.cells import assign, cells

EXPERIMENTS = sorted(
    file
    for file in (Path(__file__).parents[1] / "experiments").rglob("*.toml")
    if file.name != "reproduce.toml"  # entries, which tests/papers looks at
)


def test_a_complete_table_comes_back_the_same():
    table = {
        "run": {"rounds": 3, "cohort": 0.5, "workers": 2},
        "data": {"name": "synthetic-mixture", "clients": 4, "limit": 100},
        "scenario": {
            "partition": {"kind": "natural"},
            "shifts": [{"kind": "label-map", "map": [1, 0], "share": 0.5}],
        },
        "model": {"name": "mlp", "hidden": [3, 4]},
        "training": {"optimizer": "adam", "schedule": {"kind": "multi-step", "milestones": [2, 3]}},
        "algorithm": {"name": "fedprox", "mu": 0.5},
    }
    config = Config.from_table(table)
    assert Config.from_table(tomllib.loads(config.to_toml())) == config
    assert config.scenario.clients is None
    (shift,) = config.to_table()["scenario"]["shifts"]
    assert {key: shift[key] for key in ("kind", "map", "share")} == {
        "kind": "label-map",
        "map": [1, 0],
        "share": 0.5,
    }


def test_defaults_make_a_run():
    assert Config.from_table({}).to_table()["data"]["name"] == "digits"


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rum": {}}, "unknown key 'rum': did you mean 'run'?"),
        ({"run": {"ronds": 3}}, "unknown key 'run.ronds': did you mean 'rounds'?"),
        ({"run": 3}, "[run] must be a table, got 3"),
        ({"run": {"rounds": "many"}}, "run.rounds must be a whole number, got 'many'"),
        ({"run": {"cohort": 1.2}}, "run.cohort must be a whole number or <= 1, got 1.2"),
        ({"training": {"lr": -0.1}}, "training.lr must be > 0, got -0.1"),
        ({"training": {"batch_size": 0}}, "training.batch_size must be >= 1, got 0"),
        (
            {"training": {"schedule": "step"}},
            "training.schedule must be a table with a kind, got 'step'",
        ),
        (
            {"algorithm": {"name": "fedagv"}},
            "algorithm.name must be a known name, got 'fedagv': did you mean 'fedavg'?",
        ),
        (
            {"algorithm": {"name": "fedprox", "muu": 1}},
            "unknown key 'algorithm.muu': did you mean 'mu'?",
        ),
        ({"data": {"name": "mnits"}}, "data.name must be a known name, got 'mnits'"),
        (
            {"scenario": {"partition": {"kind": "lda", "alpha": 0}}},
            "scenario.partition.alpha must be > 0, got 0",
        ),
        (
            {"scenario": {"partition": "lda"}},
            "scenario.partition must be a table with a kind, got 'lda'",
        ),
        ({"scenario": {"name": ["x"]}}, "scenario.name must be a known name, got ['x']"),
        ({"scenario": {"shifts": {"kind": "x"}}}, "scenario.shifts must be a list of tables"),
        (
            {"scenario": {"shifts": [{"kind": "label-map", "share": 2}]}},
            "scenario.shifts[0].share must be <= 1, got 2",
        ),
    ],
)
def test_bad_tables_are_answered_in_one_line(table, message):
    with pytest.raises(cf.SettingError) as error:
        Config.from_table(table)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_overrides():
    table = {"run": {"rounds": 3}}
    changed = override(
        table,
        [
            "run.rounds=5",
            "algorithm.name=fedprox",
            "model.hidden=[1, 2]",
            "scenario.partition.kind='lda'",
        ],
    )
    assert changed == {
        "run": {"rounds": 5},
        "algorithm": {"name": "fedprox"},
        "model": {"hidden": [1, 2]},
        "scenario": {"partition": {"kind": "lda"}},
    }
    assert table == {"run": {"rounds": 3}}
    assert override(table, ["run={seed = 4}"]) == {"run": {"seed": 4}}
    for bad in ("rounds=3", "run.rounds", "run.rounds.deep=3"):
        with pytest.raises(cf.SettingError, match="--set must"):
            override(table, [bad])


def test_files(tmp_path):
    with pytest.raises(cf.SettingError, match="run file must exist"):
        read_table(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("a = = 1")
    with pytest.raises(cf.SettingError, match="must be a TOML file"):
        read_table(tmp_path / "bad.toml")
    (tmp_path / "run.toml").write_text("[run]\nrounds = 2\n")
    config = load_config(tmp_path / "run.toml", run={"seed": 4})
    assert (config.run.rounds, config.run.seed) == (2, 4)
    assert load_config(config) is config


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_experiment_is_valid(path):
    Config.from_table(read_table(path))


def test_settings_of_further_methods_are_for_comparisons():
    table = {
        "algorithm": {"name": "fedprox", "mu": 0.5},
        "compare": {"moon": {"mu": 2.0}, "fedavg": {}},
    }
    made = cells(table, ["fedprox", "moon", "fedavg", "fedlc"], [3])
    assert made["fedprox", 3].algorithm.mu == 0.5
    assert made["moon", 3].algorithm.mu == 2.0
    assert made["fedlc", 3].algorithm.tau == 1.0
    assert "compare" not in made["moon", 3].to_table()
    for wrong, message in {
        "mooon": r"compare.mooon.name must be a known name, got 'mooon': did you mean 'moon'\?",
        "moon": r"unknown key 'compare.moon.nu': did you mean 'mu'\?",
    }.items():
        with pytest.raises(SettingError, match=message):
            Config.from_table({"compare": {wrong: {"nu": 1}}})
    with pytest.raises(SettingError, match=r"\[compare.moon\] must be a table, got 3"):
        Config.from_table({"compare": {"moon": 3}})


def test_a_method_may_bring_its_own_training():
    table = {
        "training": {"lr": 0.1, "epochs": 3},
        "algorithm": {"name": "fedprox", "mu": 0.5, "training": {"lr": 0.2}},
    }
    config = Config.from_table(table)
    assert (config.training.lr, config.training.epochs, config.algorithm.mu) == (0.2, 3, 0.5)
    assert "training" not in config.to_table()["algorithm"]
    assert Config.from_table(config.to_table()) == config


def test_what_is_given_for_a_run_goes_before_the_methods_own():
    table = {"algorithm": {"name": "fedprox", "training": {"lr": 0.2, "epochs": 3}}}
    for given in (load_config(table, lr=0.5), load_config(table, training={"lr": 0.5})):
        assert (given.training.lr, given.training.epochs) == (0.5, 3)
    assert load_config(table).training.lr == 0.2
    assert table["algorithm"]["training"] == {"lr": 0.2, "epochs": 3}


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"lrr": 1}, r"unknown key 'compare.moon.training.lrr': did you mean 'lr'\?"),
        ({"lr": -1.0}, r"compare.moon.training.lr must be > 0, got -1.0"),
        ({"schedule": {"kind": "stp"}}, r"compare.moon.training.schedule.kind must be a known"),
        (3, r"\[compare.moon.training\] must be a table, got 3"),
    ],
)
def test_wrong_training_settings_of_a_method_are_refused(training, message):
    with pytest.raises(SettingError, match=message):
        Config.from_table({"compare": {"moon": {"training": training}}})


def test_settings_of_a_method_that_is_not_named_are_refused():
    with pytest.raises(SettingError, match=r"\[algorithm\] must name the method .*, got 'mu'"):
        Config.from_table({"algorithm": {"mu": 0.5}})


@pytest.mark.parametrize(
    "assignment",
    [
        *("run.rounds", "=", "", "a.b.c.d=1", "run=[]", "run.=1", ".=1", "run..rounds=1"),
        *("run.rounds=", "run.rounds=1979-13-45", "run.rounds=1979-05-27", "run.rounds=\0"),
        *("run={a.b=1,a=2}", "scenario.shifts='x'", "scenario.shifts=[1]", "scenario.partition=3"),
        *("run.seed=" + "[" * 5000, "run.seed=" + "[" * 50 + "]" * 50, "a." * 5000 + "b=1"),
        *("run.rounds=" + "9" * 5000, "run.rounds=0x" + "f" * 5000, "x" * 10**5 + ".y=1"),
        *("run.rounds=1979-05-27T99:99:99", "model.name=[1]", "algorithm.name={}"),
        *("run.seed=0x" + "f" * 5000, "data.name='\ud800'", "model.name=1", "run.rounds=inf"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_odd_assignments_are_answered_in_one_line(assignment):
    with pytest.raises(SettingError) as error:
        Config.from_table(override({"run": {"rounds": 3}}, [assignment]))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_whole_section_may_be_emptied():
    assert override({"run": {"rounds": 3}}, ["run={}"]) == {"run": {}}


@pytest.mark.parametrize(
    "text",
    [
        *(b"\xff", b"run = []", b"[[run]]", b"[run]\nrounds = " + b"9" * 5000),
        *(b"x = " + b"[" * 10**5, b"[run]\nseed = 1979-99-99", b"[" + b"a." * 3000 + b"a]\nx=1"),
        *(b"x = {" + b"a={" * 5000, b"\0", b"run.rounds.x = 1", b"[scenario]\nshifts = 'x'"),
        *(b"[training]\nschedule = [1]", b"[model]\nname = 1979-05-27", b"[compare]\nmoon = [1]"),
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_odd_files_are_answered_in_one_line(tmp_path, text):
    (tmp_path / "run.toml").write_bytes(text)
    with pytest.raises(SettingError) as error:
        Config.from_table(read_table(tmp_path / "run.toml"))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize(
    "path", [".", "a\0b", "a" * 5000, "/proc/self/mem", "/dev/zero"], ids=ascii
)
def test_paths_that_are_no_files(path):
    rules = r"must be a TOML file|the run file must exist|must have at most 10,000,000 bytes"
    with pytest.raises(SettingError, match=rules):
        read_table(Path(path))


def test_a_method_may_be_called_by_its_other_name(tmp_path):
    """FedRC is what FedConceptEM was published as: one method, wherever it is named."""
    by_name = Config.from_table({"algorithm": {"name": "fedconceptem", "num_models": 4}})
    other = Config.from_table({"algorithm": {"name": "fedrc", "num_models": 4}})
    assert other == by_name
    assert other.to_table()["algorithm"]["name"] == "fedconceptem"
    file = tmp_path / "run.toml"
    file.write_text('[algorithm]\nname = "fedavg"\n[compare.fedrc]\nnum_models = 5\n')
    names = known_names("fedavg,fedrc")
    assert names == ["fedavg", "fedconceptem"]
    table = assign(read_table(file), ["compare.fedrc.noise=2"], names)
    assert cells(table, names, [0])["fedconceptem", 0].algorithm == FedConceptEM(
        num_models=5, noise=2
    )
    assert read_inputs(str(file), algorithm="fedrc").config().algorithm.num_models == 5
    assert override({}, ["algorithm.name=fedrc"]) == {"algorithm": {"name": "fedconceptem"}}
    table = {"compare": {"fedrc": {}, "fedconceptem": {}}}
    rule = r"\[compare\] must be about different methods, got fedrc, fedconceptem"
    with pytest.raises(SettingError, match=rule):
        Config.from_table(table)
