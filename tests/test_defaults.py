"""The defaults give the right answer: what docs/defaults.md says, from the kept figures."""

from pathlib import Path

import pytest

from concordfl.config import Config
from concordfl.scenarios.partition import Natural
from concordfl.study.cells import ConfigHasher
from scripts import load_script

ROOT = Path(__file__).parents[1]
FEWEST_TEST_EXAMPLES = 144


@pytest.fixture(scope="module")
def benchmark():
    return load_script("benchmarks/defaults.py")


@pytest.fixture(scope="module")
def rows(benchmark):
    return benchmark.read_rows()


def all_cells(benchmark):
    return benchmark.all_cells(benchmark.settings(), benchmark.METHODS)


def test_every_kept_figure_is_of_the_defaults_as_they_are(benchmark, rows):
    hasher = ConfigHasher()
    outdated = [
        cell
        for cell in all_cells(benchmark)
        if cell not in rows or rows[cell].config_hash != hasher(cell.config())
    ]
    assert outdated == [], "run python benchmarks/defaults.py"
    assert set(rows) == set(all_cells(benchmark))


def test_the_page_shows_the_kept_figures(benchmark, rows):
    page = (ROOT / "docs/defaults.md").read_text()
    tables = benchmark.tables(rows, benchmark.settings(), benchmark.METHODS)
    for line in (*tables, *benchmark.schedule_table(rows)):
        assert line in page, "run python benchmarks/defaults.py --show"


def test_no_method_is_at_chance(benchmark, rows):
    """Better than a guess by two standard errors of the fewest test examples that a setting has."""
    for setting in benchmark.settings():
        chance = 0.5 if setting in ("heart-disease", "synthetic-mixture") else 0.1
        error = (chance * (1 - chance) / FEWEST_TEST_EXAMPLES) ** 0.5
        for method in benchmark.METHODS:
            (found,) = benchmark.accuracies(rows, setting, method, ["default"])
            assert found / 100 > chance + 2 * error, (setting, method)


def test_fedavg_is_ahead_of_local_where_clients_do_not_differ(benchmark, rows):
    fedavg, local = (
        benchmark.accuracies(rows, "digits-iid", method, ["default"])
        for method in ("fedavg", "local")
    )
    assert fedavg >= local


def test_methods_are_in_the_order_that_they_have_when_tuned(benchmark, rows):
    names, methods = benchmark.settings(), benchmark.METHODS
    assert benchmark.correlation(rows, names, methods, "default") >= 0.8


def test_a_falling_rate_is_not_better_by_default(benchmark, rows):
    """On validation examples, in the mean over settings and methods."""
    means = {
        variant: sum(
            float(rows[benchmark.Cell(name, method, variant)].validation)
            for name in benchmark.SCHEDULE_SETTINGS
            for method in benchmark.SCHEDULE_METHODS
        )
        for variant in ("default", *benchmark.SCHEDULES)
    }
    assert max(means, key=means.get) == "default"


@pytest.mark.parametrize("name", ["synthetic-mixture", "two-gaussians", "heart-disease"])
def test_data_that_come_in_clients_keep_them(name):
    made = Config.from_table({"data": {"name": name}})
    assert isinstance(made.scenario.partition, Natural)
