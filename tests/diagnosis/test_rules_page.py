"""The rules are made from the kept figures, and the page shows them."""

from importlib.resources import files
from pathlib import Path

import pytest

from concordfl.study.cells import ConfigHasher
from scripts import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    return load_script("benchmarks/recommend.py")


@pytest.fixture(scope="module")
def rows(benchmark):
    return benchmark.read_rows()


def test_every_kept_figure_is_of_the_settings_as_they_are(benchmark, rows):
    hasher = ConfigHasher()
    expected = {
        (setting, str(seed), method)
        for setting in benchmark.all_settings()
        for seed in benchmark.SEEDS
        for method in benchmark.METHODS
    }
    assert set(rows) == expected, "run python benchmarks/recommend.py run"
    outdated = [
        key
        for key, row in rows.items()
        if hasher(benchmark.config(key[0], int(key[1]), key[2], row.facts)) != row.config_hash
    ]
    assert outdated == [], "run python benchmarks/recommend.py run"


def test_the_rules_are_those_of_the_kept_figures(benchmark, rows):
    kept = files("concordfl.diagnosis").joinpath("rules.toml").read_text()
    assert kept == benchmark.rules_text(benchmark.make_rules(rows)), "run ... recommend.py rules"


def test_the_page_shows_the_regrets(benchmark, rows):
    page = (ROOT / "docs/diagnose.md").read_text()
    for line in benchmark.tables(rows):
        assert line in page, "run python benchmarks/recommend.py show"


def test_a_setting_that_is_left_out_has_no_part_in_its_own_rule(benchmark, rows):
    for setting in benchmark.all_settings():
        made = benchmark.make_rules(rows, without=setting)
        assert all(setting not in rule.settings for rule in made)
        assert all(len(rule.settings) >= 2 for rule in made if rule.holds)
