"""The run files of Concord's comparisons have the rates that were best on validation data."""

from pathlib import Path

import pytest

from concordfl.config import read_table
from concordfl.study.cells import cells
from scripts import load_script

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def script():
    return load_script("experiments/concord/rates.py")


def test_every_method_of_every_file_was_tried_at_every_rate(script):
    expected = [
        (setting.file, method, rate)
        for setting in script.SETTINGS
        for method in setting.methods
        for rate in setting.rates
    ]
    assert sorted(row[:3] for row in script.read()) == sorted(expected)


def test_run_files_have_the_rates_that_were_chosen(script):
    for (file, method), row in script.best(script.read()).items():
        if file.startswith("concord/"):
            table = read_table(ROOT / f"experiments/{file}.toml")
            (config,) = cells(table, [method], [0]).values()
            assert config.training.lr == row.rate, (file, method)
