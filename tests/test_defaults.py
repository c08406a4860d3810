"""The defaults give the right answer: what docs/defaults.md says, from the kept figures."""

import importlib.util
import sys
from pathlib import Path

import pytest

from concordfl.config import Config
from concordfl.scenarios.partition import Natural
from concordfl.study.cells import ConfigHasher

ROOT = Path(__file__).parents[1]
FEWEST_TEST_EXAMPLES = 144


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("defaults", ROOT / "benchmarks/defaults.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["defaults"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(benchmark):
    return benchmark.read_rows()


def all_cells(benchmark):
    return [
        benchmark.Cell(setting, method, variant)
        for setting in benchmark.settings()
        for method in benchmark.METHODS
        for variant in (benchmark.BEFORE, *benchmark.RATE_FACTORS)
    ]


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
    for line in benchmark.tables(rows, benchmark.settings(), benchmark.METHODS):
        assert line in page, "run python benchmarks/defaults.py --show"


def test_no_method_is_at_chance(benchmark, rows):
    """Better than a guess by two standard errors of the fewest test examples that a setting has."""
    for setting in benchmark.settings():
        chance = 0.5 if setting in ("heart-disease", "synthetic-mixture") else 0.1
        error = (chance * (1 - chance) / FEWEST_TEST_EXAMPLES) ** 0.5
        for method in benchmark.METHODS:
            found = benchmark.accuracy(rows[benchmark.Cell(setting, method, "default")])
            assert found / 100 > chance + 2 * error, (setting, method)


def test_fedavg_is_ahead_of_local_where_clients_do_not_differ(benchmark, rows):
    fedavg, local = (
        benchmark.accuracy(rows[benchmark.Cell("digits-iid", method, "default")])
        for method in ("fedavg", "local")
    )
    assert fedavg >= local


def test_methods_are_in_the_order_that_they_have_when_tuned(benchmark, rows):
    means = benchmark.mean_accuracies(rows, benchmark.settings(), benchmark.METHODS)
    _, default, tuned = zip(*means.values(), strict=True)
    assert benchmark.correlation(default, tuned) >= 0.8


@pytest.mark.parametrize("name", ["synthetic-mixture", "two-gaussians", "heart-disease"])
def test_data_that_come_in_clients_keep_them(name):
    made = Config.from_table({"data": {"name": name}})
    assert isinstance(made.scenario.partition, Natural)
