"""Comparisons: several values of a setting, and results that outlive their runs."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from concordfl import SettingError, compare
from concordfl.config import Config
from concordfl.engine.experiment import ignore

TABLE = {
    "run": {"rounds": 4, "evaluate_every": 2},
    "data": {"name": "digits", "limit": 200},
    "scenario": {"clients": 3},
    "algorithm": {"name": "fedprox"},
    "compare": {"ditto": {"penalty": 2.0}},
}


def test_every_value_of_a_varied_setting_has_a_row():
    cells = compare.varied(TABLE, "algorithm.mu=0.5, 2", ["fedavg", "fedprox"], [1, 2])
    assert list(cells) == [
        *(("fedavg", seed) for seed in (1, 2)),
        *((f"fedprox, mu = {mu}", seed) for mu in ("0.5", "2") for seed in (1, 2)),
    ]
    assert [
        cells["fedprox, mu = 0.5", 1].algorithm.mu,
        cells["fedprox, mu = 2", 2].algorithm.mu,
    ] == [0.5, 2]
    assert cells["fedprox, mu = 2", 2].run.seed == 2
    lists = compare.varied(TABLE, "model.hidden=[8, 8], [4]", ["fedavg"], [0])
    assert [settings.model.options["hidden"] for settings in lists.values()] == [[8, 8], [4]]
    others = compare.varied(TABLE, "compare.ditto.penalty=1,3", ["ditto"], [0])
    assert [settings.algorithm.penalty for settings in others.values()] == [1, 3]


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("algorithm.mu", r"--vary must be SECTION.KEY=VALUE,VALUE,..., got 'algorithm.mu'"),
        ("mu=1,2", r"--vary must be SECTION.KEY=VALUE,VALUE,..., got 'mu=1,2'"),
        ("algorithm.mu=1,-1", r"algorithm.mu must be >= 0, got -1"),
        ("algorithm.nu=1", r"unknown key 'algorithm.nu'"),
        ("run.seed=1,2", r"--vary must not be about run.seed, which --seeds is for"),
        (
            "compare.ditto.penalty=1,2",
            r"--vary must change one of the methods fedprox, got 'compare.ditto.penalty=1,2'",
        ),
    ],
)
def test_a_wrong_variation_is_refused(vary, message):
    with pytest.raises(SettingError, match=message):
        compare.varied(TABLE, vary, ["fedprox"], [0])


def test_results_outlive_their_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "WORTH_KEEPING", 0.0)
    cells = compare.cells(TABLE, ["fedprox"], [0])
    ((_, settings),) = cells.items()
    results = tmp_path / "experiments" / "results"
    first = compare.compare(cells, tmp_path / "runs", lambda _: nullcontext(ignore), results)
    kept = json.loads((results / f"{compare.config_hash(settings)}.json").read_text())
    assert kept["config"] == settings.to_table()
    assert [milestone["round"] for milestone in kept["history"]] == [2, 4]
    last = kept["history"][-1]
    assert last["local_accuracy"] == kept["final"]["local_accuracy"]
    assert (last["bytes"]["down"], last["bytes"]["up"]) == (
        kept["bytes"]["down"],
        kept["bytes"]["up"],
    )
    assert kept["history"][0]["bytes"]["up"] * 2 == kept["bytes"]["up"]  # half of the rounds

    compare.require_history(cells, results)
    again = compare.compare(cells, tmp_path / "elsewhere", lambda _: nullcontext(ignore), results)
    assert not (tmp_path / "elsewhere").exists()
    assert again["fedprox"][0]["parameters_sha256"] == first["fedprox"][0]["parameters_sha256"]
    del kept["history"]
    file = results / f"{compare.config_hash(settings)}.json"
    file.write_text(json.dumps(kept))
    with pytest.raises(
        SettingError, match=f"a curve needs results with a history, got {file} without"
    ):
        compare.require_history(cells, results)


def test_what_was_measured_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = Config.from_table({key: value for key, value in TABLE.items() if key != "compare"})
    calls = []

    def measure(finished):
        calls.append(finished.path)
        return {"rounds": finished.summary["rounds"]}

    elsewhere, file = tmp_path / "mine.toml", tmp_path / "experiments" / "mine.toml"
    for expected in (1, 2):  # outside of `experiments` the run is kept, what was measured is not
        assert compare.measured(elsewhere, settings, "rounds", measure) == {"rounds": 4}
        assert len(calls) == expected
    for _ in range(2):
        assert compare.measured(file, settings, "rounds", measure) == {"rounds": 4}
    assert len(calls) == 3
    assert (
        tmp_path / "experiments" / "results" / f"{compare.config_hash(settings)}-rounds.json"
    ).exists()


RESULTS = sorted((Path(__file__).parent.parent / "experiments" / "results").glob("*.json"))


def test_kept_results_are_found_by_their_configuration():
    """Whatever is added to the settings, a result must have the name under which `compare` looks
    for it.
    """
    kept = {file.stem: json.loads(file.read_text()) for file in RESULTS}
    found = {
        name: Config.from_table(result["config"])
        for name, result in kept.items()
        if "config" in result
    }
    assert len(found) > 100
    assert {
        name for name, settings in found.items() if compare.config_hash(settings) != name
    } == set()
    assert {
        name for name, settings in found.items() if settings.to_table() != kept[name]["config"]
    } == set()
