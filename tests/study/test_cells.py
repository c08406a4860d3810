"""Configurations of a comparison, the hash that finds their results, and settings that differ."""

from dataclasses import replace

import pytest

from concordfl import SettingError
from concordfl.config import Config
from concordfl.data.own import Folder
from concordfl.scenarios.partition import Natural
from concordfl.study.cells import (
    ConfigHasher,
    apply_settings,
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
