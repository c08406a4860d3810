"""The entries of the four papers: every cell is a run that is allowed, and a sample is run."""

import functools

import pytest

from concordfl import papers
from concordfl.papers import PAPERS, SCALES
from concordfl.papers.measures import MEASURES
from concordfl.report.side_by_side import Cell
from concordfl.study import cells

# What a paper prints that has numbers.
PRINTED = {
    "fedconcat": [
        *(f"table-{number}" for number in range(1, 15)),
        *(f"figure-{number}" for number in (1, *range(3, 17))),
    ],
    "fedconceptem": [
        *(f"table-{number}" for number in range(1, 6)),
        *(f"figure-{number}" for number in (2, 3, "5a", "5b", *range(6, 13))),
    ],
    "fedgmm": [
        *(f"table-{number}" for number in range(2, 6)),
        *(f"figure-{number}" for number in range(1, 9)),
    ],
    "fedvc": [
        *(f"table-{number}" for number in range(1, 10)),
        *(f"figure-{number}" for number in range(4, 11)),
    ],
}
# Of every paper some that differ in kind, and are quick.
SAMPLE = {
    "fedconcat": ["figure-3", "figure-5", "figure-12", "table-8"],
    "fedconceptem": ["figure-2", "figure-3", "figure-7", "figure-9"],
    "fedgmm": ["figure-1", "figure-2", "figure-6", "figure-8"],
    "fedvc": ["table-9", "figure-5", "figure-6", "figure-7"],
}


@functools.cache
def read(name):
    return papers.read_paper(name)


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("scale", SCALES)
def test_every_cell_is_a_valid_run(name, scale):
    paper = read(name)
    tables = {}
    for item in paper.items.values():
        for cell in item.cells().values():
            tables[str((cell.setting, cell.method, cell.set))] = cell
    for cell in tables.values():
        cells.cells(paper.table(cell, scale), [cell.method], [0])


@pytest.mark.parametrize("name", PAPERS)
def test_what_is_asked_for_can_be_had(name):
    for item in read(name).items.values():
        for cell in item.cells().values():
            assert cell.measure is None or cell.measure in MEASURES
            assert cell.figure is not None or item.kind == "pictures"


@pytest.mark.parametrize("name", PAPERS)
def test_numbers_of_the_paper_are_numbers(name):
    for key, item in read(name).items.items():
        for row, numbers in item.paper.items():
            for text in numbers:
                assert text == "" or Cell(text).paper_value is not None, (key, row, text)


@pytest.mark.parametrize("name", PRINTED)
def test_everything_that_the_paper_prints_is_there(name):
    assert sorted(read(name).items) == sorted(PRINTED[name])


def run_tiny(name, item):
    paper = read(name)
    found = papers.reproduce(paper, item, "tiny", display=papers.no_display)
    at_hand = set(papers.data_of(paper, item)) - set(papers.kept_runs(paper, item, "tiny").missing)
    assert found.is_computed == bool(at_hand)


@pytest.mark.parametrize(
    ("name", "item"), [(name, item) for name, items in SAMPLE.items() for item in items]
)
def test_a_sample_runs(name, item, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_tiny(name, item)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "item"), [(name, item) for name in PAPERS for item in read(name).items]
)
def test_every_item_runs(name, item, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_tiny(name, item)
