"""Configurations of a comparison, the hash that finds their results, and settings that differ."""

from dataclasses import replace

import pytest

from concordfl import SettingError
from concordfl.config import Config
from concordfl.core.optim import Step
from concordfl.data.own import Folder
from concordfl.scenarios.partition import Natural
from concordfl.study.cells import (
    ConfigHasher,
    apply_settings,
    assign,
    cells,
    differing_settings,
    vary,
)

TABLE = {
    "run": {"rounds": 4, "evaluate_every": 2},
    "data": {"name": "digits", "limit": 200},
    "scenario": {"clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "algorithm": {"name": "fedprox"},
    "compare": {"ditto": {"penalty": 2.0}},
}


def cell(table, method, seed=0):
    return cells(table, [method], [seed])[method, seed]


def test_a_method_gets_its_own_settings():
    found = cells(TABLE, ["fedprox", "ditto"], [3, 4])
    assert list(found) == [("fedprox", 3), ("fedprox", 4), ("ditto", 3), ("ditto", 4)]
    assert found["ditto", 4].algorithm.penalty == 2.0
    assert found["ditto", 4].run.seed == 4


def test_every_value_of_a_varied_setting_has_a_row():
    found = vary(TABLE, ["algorithm.mu=0.5, 2"], ["fedavg", "fedprox"], [1, 2])
    assert list(found) == [
        *(("fedavg", seed) for seed in (1, 2)),
        *((f"fedprox, mu = {mu}", seed) for mu in ("0.5", "2") for seed in (1, 2)),
    ]
    assert found["fedprox, mu = 0.5", 1].algorithm.mu == 0.5
    assert found["fedprox, mu = 2", 2].algorithm.mu == 2
    assert found["fedprox, mu = 2", 2].run.seed == 2
    lists = vary(TABLE, ["model.hidden=[8, 8], [4]"], ["fedavg"], [0])
    assert [settings.model.options["hidden"] for settings in lists.values()] == [[8, 8], [4]]
    others = vary(TABLE, ["compare.ditto.penalty=1,3"], ["ditto"], [0])
    assert [settings.algorithm.penalty for settings in others.values()] == [1, 3]


def test_without_variations_there_is_a_row_per_method():
    assert vary(TABLE, [], ["fedavg", "ditto"], [0, 1]) == cells(TABLE, ["fedavg", "ditto"], [0, 1])


def test_a_single_value_is_applied():
    ((row, _),) = found = vary(TABLE, ["training.lr=0.5"], ["fedavg"], [0])
    assert row == "fedavg"
    assert found[row, 0].training.lr == 0.5


def test_several_variations_are_combined():
    both = ["algorithm.mu=0.5,2", "training.lr=0.1,0.2"]
    found = vary(TABLE, both, ["fedavg", "fedprox"], [0])
    assert [row for row, _ in found] == [
        *(f"fedavg, lr = {lr}" for lr in ("0.1", "0.2")),
        *(f"fedprox, mu = {mu}, lr = {lr}" for mu in ("0.5", "2") for lr in ("0.1", "0.2")),
    ]
    settings = found["fedprox, mu = 2, lr = 0.1", 0]
    assert (settings.algorithm.mu, settings.training.lr) == (2, 0.1)


def test_settings_that_end_alike_are_named_in_full():
    table = {"data": {"name": "synthetic-mixture"}}
    rows = [
        row for row, _ in vary(table, ["data.clients=5,6", "scenario.clients=5,6"], ["fedavg"], [0])
    ]
    assert rows[1] == "fedavg, data.clients = 5, scenario.clients = 6"
    assert len(set(rows)) == 4


@pytest.mark.parametrize(
    ("variations", "message"),
    [
        (["algorithm.mu"], r"--vary must be SECTION.KEY=VALUE,VALUE,..., got 'algorithm.mu'"),
        (["mu=1,2"], r"--vary must be SECTION.KEY=VALUE,VALUE,..., got 'mu=1,2'"),
        (["algorithm.mu=1,-1"], r"algorithm.mu must be >= 0, got -1"),
        (["algorithm.nu=1"], r"unknown key 'algorithm.nu'"),
        (["run.seed=1,2"], r"--vary must not be about run.seed, which --seeds is for"),
        (
            ["compare.ditto.penalty=1,2"],
            r"--vary must change one of the methods fedprox, got 'compare.ditto.penalty=1,2'",
        ),
        (
            ["algorithm.mu=1,2", "algorithm.mu=3"],
            r"--vary must name a setting once, got algorithm.mu 2 times",
        ),
    ],
)
def test_a_wrong_variation_is_refused(variations, message):
    with pytest.raises(SettingError, match=message):
        vary(TABLE, variations, ["fedprox"], [0])


NAMELESS = {key: value for key, value in TABLE.items() if key not in ("algorithm", "compare")}


def test_a_setting_goes_to_all_compared_methods_that_have_it_where_none_is_named():
    table = assign(NAMELESS, ["algorithm.mu=3.0"], ["fedavg", "fedprox", "moon"])
    assert table["compare"] == {"fedprox": {"mu": 3.0}, "moon": {"mu": 3.0}}
    assert cell(table, "fedprox").algorithm.mu == 3.0
    found = vary(NAMELESS, ["algorithm.mu=1,2"], ["fedavg", "fedprox"], [0])
    assert list(found) == [("fedavg", 0), ("fedprox, mu = 1", 0), ("fedprox, mu = 2", 0)]
    assert found["fedprox, mu = 2", 0].algorithm.mu == 2


def test_the_method_that_an_option_names_gets_the_setting():
    table = assign(NAMELESS, ["algorithm.mu=3.0", "algorithm.name=moon"], ["fedprox", "moon"])
    assert table["algorithm"] == {"name": "moon", "mu": 3.0}
    assert cell(table, "fedprox").algorithm.mu != 3.0


@pytest.mark.parametrize(
    ("table", "setting"),
    [
        (NAMELESS, "algorithm.penalty=1"),  # neither of the two has it
        (TABLE, "algorithm.mu=1"),  # of fedprox, which is not compared
        (TABLE, "compare.ditto.penalty=1"),
    ],
)
def test_a_setting_of_no_compared_method_is_refused(table, setting):
    message = f"must change one of the methods fedavg, moon, got '{setting}"
    with pytest.raises(SettingError, match=f"--set {message}"):
        assign(table, [setting], ["fedavg", "moon"])
    with pytest.raises(SettingError, match=f"--vary {message}"):
        vary(table, [setting], ["fedavg", "moon"], [0])


# --- training settings of a method's own ----------------------------------------------------------

OWN = {
    **TABLE,
    "training": {"lr": 0.1, "epochs": 2},
    "algorithm": {"name": "fedprox", "training": {"lr": 0.2}},
    "compare": {
        "ditto": {"penalty": 2.0, "training": {"lr": 0.3, "schedule": {"kind": "step"}}},
        "fedavg": {"aggregation": {"server_lr": 0.5}},
    },
}


def test_a_method_may_have_training_settings_of_its_own():
    found = cells(OWN, ["fedprox", "ditto", "fedavg", "moon"], [0])
    assert {method: settings.training.lr for (method, _), settings in found.items()} == {
        "fedprox": 0.2,
        "ditto": 0.3,
        "fedavg": 0.1,
        "moon": 0.1,
    }
    assert {settings.training.epochs for settings in found.values()} == {2}
    assert found["ditto", 0].training.schedule == Step()
    assert found["ditto", 0].algorithm.penalty == 2.0
    assert [found[method, 0].aggregation.server_lr for method in ("fedavg", "ditto")] == [0.5, 1.0]


def test_a_setting_that_all_methods_have_for_themselves_is_refused():
    """It would be ignored."""
    changed = assign(OWN, ["training.lr=0.9"], ["fedprox", "fedavg"])
    assert cell(changed, "fedavg").training.lr == 0.9
    assert cell(changed, "fedprox").training.lr == 0.2
    with pytest.raises(SettingError, match=r"--set must change one of the methods fedprox, ditto"):
        assign(OWN, ["training.lr=0.9"], ["fedprox", "ditto"])


@pytest.mark.parametrize("wrong", [{"algorithm": 3}, {"compare": 3}, {"compare": {"ditto": 3}}])
def test_a_wrong_section_is_refused_whatever_is_set(wrong):
    with pytest.raises(SettingError, match="must be a table, got 3"):
        cells(assign({**TABLE, **wrong}, ["training.lr=0.9"], ["ditto"]), ["ditto"], [0])


def test_own_settings_are_the_same_configuration_as_shared_ones():
    shared = {**TABLE, "training": {"lr": 0.3, "epochs": 2, "schedule": {"kind": "step"}}}
    hasher = ConfigHasher()
    assert cell(OWN, "ditto") == cell(shared, "ditto")
    assert hasher(cell(OWN, "ditto")) == hasher(cell(shared, "ditto"))


def test_a_varied_setting_leaves_methods_alone_that_have_their_own():
    rows = [row for row, _ in vary(OWN, ["training.lr=0.5,0.6"], ["fedavg", "ditto"], [0])]
    assert rows == ["fedavg, lr = 0.5", "fedavg, lr = 0.6", "ditto"]


# --- the hash -------------------------------------------------------------------------------------


def test_the_hash_is_of_what_a_result_depends_on():
    hasher, settings = ConfigHasher(), cell(TABLE, "fedprox")
    how = replace(settings.run, executor="serial", workers=2, client_states="disk")
    assert hasher(replace(settings, run=how)) == hasher(settings)
    for other in (
        replace(settings, run=replace(settings.run, seed=1)),
        replace(settings, algorithm=replace(settings.algorithm, mu=3.0)),
        replace(settings, training=replace(settings.training, lr=0.3)),
    ):
        assert hasher(other) != hasher(settings)


def test_a_later_setting_with_its_old_value_changes_no_hash():
    """As if run.dropout, and the whole section [training], had not existed once."""
    settings = cell(TABLE, "fedprox")
    later = {"run.dropout": 0.0} | {
        f"training.{key}": value for key, value in settings.to_table()["training"].items()
    }
    old = settings.to_table()
    del old["run"]["dropout"], old["training"]

    class OldConfig(Config):
        def to_table(self):
            return {section: dict(values) for section, values in old.items()}

    before = ConfigHasher({})(OldConfig(**vars(settings)))
    hasher = ConfigHasher(later)
    assert hasher(settings) == before
    assert ConfigHasher({})(settings) != before
    assert hasher(replace(settings, run=replace(settings.run, dropout=0.1))) != before
    assert hasher(replace(settings, training=replace(settings.training, lr=9.0))) != before


def test_a_later_setting_in_a_list_of_tables_with_its_old_value_changes_no_hash():
    """As if shifts had had no `strength` once."""

    def with_strength(strength):
        shifts = [{"kind": "corrupt", "strength": strength}, {"kind": "flip"}]
        return cell({**TABLE, "scenario": {"clients": 4, "shifts": shifts}}, "fedprox")

    settings = with_strength("imagenet-c")
    old = settings.to_table()
    del old["scenario"]["shifts"][0]["strength"]

    class OldConfig(Config):
        def to_table(self):
            return {section: dict(values) for section, values in old.items()}

    hasher = ConfigHasher({"scenario.shifts.strength": "imagenet-c"})
    before = ConfigHasher({})(OldConfig(**vars(settings)))
    assert hasher(settings) == before
    assert hasher(with_strength("cifar-c")) != before
    assert ConfigHasher({})(settings) != before


def test_data_are_read_once_in_a_comparison(monkeypatch, tmp_path):
    reads = []
    monkeypatch.setattr(Folder, "fingerprint", lambda self: reads.append(self.folder) or "x")
    table = {"data": {"folder": str(tmp_path)}}
    hasher = ConfigHasher()
    for settings in cells(table, ["fedavg", "local"], [0, 1, 2]).values():
        hasher(settings)
    assert reads == [str(tmp_path)]
    other = ConfigHasher()
    monkeypatch.setattr(Folder, "fingerprint", lambda self: "y")
    assert other(settings) != hasher(settings)  # edited data are other data


# --- settings that differ -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("fedprox", {}),
        ("fedprox", {"algorithm.mu": 2.0}),
        ("ditto", {"compare.ditto.penalty": 0.5, "training.lr": 0.5}),
        ("fedavg", {"model.hidden": [4, 4]}),
        ("fedavg", {"data.limit": None}),
        ("fedavg", {"model": {"name": "linear"}}),
        ("fedavg", {"data": {"name": "two-gaussians", "standardise": False}}),
        ("fedavg", {"scenario.partition": {"kind": "lda", "alpha": 0.5}}),
        ("fedavg", {"run.cohort": 0.5, "run.rounds": 7}),
    ],
)
def test_the_settings_that_differ_give_the_configuration(method, settings):
    hasher = ConfigHasher()
    wanted = cell(apply_settings(TABLE, settings), method, seed=5)
    found = differing_settings(TABLE, wanted, method, hasher)
    assert found == settings or "data" in settings  # another data set has more settings
    assert hasher(cell(apply_settings(TABLE, found), method, seed=5)) == hasher(wanted)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ditto", {"compare.ditto.training.lr": 0.5}),
        ("ditto", {"compare.ditto.penalty": 0.5, "compare.ditto.training.epochs": 7}),
        ("fedprox", {"algorithm.training.momentum": 0.5}),
        ("fedavg", {"training.lr": 0.5}),
    ],
)
def test_settings_differ_where_the_method_has_its_own(method, settings):
    wanted = cell(apply_settings(OWN, settings), method)
    found = differing_settings(OWN, wanted, method, ConfigHasher())
    assert found == settings
    assert cell(apply_settings(OWN, found), method) == wanted


def test_whole_sections_replace_own_ones():
    """Where a method's own settings cannot say it, all of its settings are told."""
    table = {**OWN, "scenario": {"name": "fedvc-target"}}
    base = cell(table, "ditto")
    scenario = replace(base.scenario, clients=None, partition=Natural())
    wanted = replace(base, scenario=scenario, training=replace(base.training, lr=0.7))
    found = differing_settings(table, wanted, "ditto", ConfigHasher())
    assert sorted(found) == ["compare.ditto", "scenario", "training"]
    assert cell(apply_settings(table, found), "ditto") == wanted


def test_a_key_that_a_named_scenario_sets_can_be_left_out():
    """It would come back with the name: then the whole section is told."""
    table = {"data": {"name": "digits"}, "scenario": {"name": "fedvc-target"}}
    named = cell(table, "fedavg")
    left_out = replace(named, scenario=replace(named.scenario, clients=None, partition=Natural()))
    assert named.scenario.clients is not None
    found = differing_settings(table, left_out, "fedavg", ConfigHasher())
    assert list(found) == ["scenario"]
    assert cell(apply_settings(table, found), "fedavg") == left_out


def test_how_it_is_computed_is_no_setting_that_differs():
    settings = cell(TABLE, "fedavg")
    other = replace(settings, run=replace(settings.run, executor="processes", workers=2))
    assert differing_settings(TABLE, other, "fedavg", ConfigHasher()) == {}


def test_settings_inside_a_value_are_refused():
    with pytest.raises(SettingError, match="a setting must be a key in a table, got"):
        apply_settings(TABLE, {"run.rounds.x": 1})
