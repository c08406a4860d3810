"""What scripts measure is computed once, if it is kept."""

import json

import pytest

from concordfl import DataError
from concordfl.config import read_table
from concordfl.study import kept_results
from concordfl.study.cells import cells
from concordfl.study.measure import measure

RUN_FILE = """
[run]
rounds = 4

[data]
name = "digits"
limit = 200

[scenario]
clients = 3

[algorithm]
name = "fedprox"
"""


@pytest.fixture
def run_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "mine.toml"
    file.write_text(RUN_FILE)
    return file


class Look:
    """Counts how often a run is looked at."""

    calls = 0

    def __call__(self, finished):
        self.calls += 1
        return {"rounds": finished.summary["rounds"]}


def measure_rounds(run_file, look, kind=dict[str, int], **options):
    configs = cells(read_table(run_file), ["fedprox"], [0])
    return measure(configs, run_file, "rounds", kind, look, **options)


def test_a_measure_is_kept_if_asked(run_file):
    look = Look()
    for expected in (1, 2):  # the run is reused, what was measured is not
        found = measure_rounds(run_file, look)
        assert found.figures == {("fedprox", 0): {"rounds": 4}}
        assert found.notes == ()
        assert look.calls == expected
    assert not kept_results.results_file(run_file).exists()
    for _ in range(2):
        found = measure_rounds(run_file, look, keep=True)
        assert found.figures == {("fedprox", 0): {"rounds": 4}}
    assert look.calls == 3
    assert found.notes[0].startswith("kept: 1 of 1 cells (")
    (line,) = map(json.loads, kept_results.results_file(run_file).read_text().splitlines())
    assert (line["measure"], line["figures"]) == ("rounds", {"rounds": 4})
    measure_rounds(run_file, look, fresh=True)
    assert look.calls == 4
    assert len(list((run_file.parent / "runs").iterdir())) == 2


def test_an_edited_measure_is_an_error_of_one_line(run_file):
    measure_rounds(run_file, Look(), keep=True)
    file = kept_results.results_file(run_file)
    file.write_text(file.read_text().replace('"rounds": 4', '"rounds": "many"'))
    message = (
        r"mine.results.jsonl: the rounds of fedprox, seed 0: figures.rounds must be a valid "
        r"integer, got 'many'"
    )
    with pytest.raises(DataError, match=message):
        measure_rounds(run_file, Look())
