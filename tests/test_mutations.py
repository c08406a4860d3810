"""Damaged files and odd settings are refused in one line, or change nothing.

`CONCORDFL_MUTATIONS` is the number of cases; `tests/mutations.py` repeats one by its name.
"""

import os

import pytest

import mutations

CASES = int(os.environ.get("CONCORDFL_MUTATIONS", "300"))
CASES_PER_TEST = 25
CHUNKS = [
    (family, first, min(first + CASES_PER_TEST, count))
    for family, count in mutations.counts(CASES).items()
    for first in range(0, count, CASES_PER_TEST)
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return mutations.World.build(tmp_path_factory.mktemp("world"))


@pytest.mark.skipif(os.name != "posix", reason="needs pipes, links and alarms")
@pytest.mark.parametrize(("family", "first", "stop"), CHUNKS)
def test_no_traceback_no_hang_no_silent_change(world, tmp_path, family, first, stop):
    verdicts = [mutations.play(world, family, number, tmp_path) for number in range(first, stop)]
    wrong = [verdict for verdict in verdicts if verdict.wrong]
    assert not wrong, "\n\n".join(f"{each.kind}: {each.case}\n{each.text}" for each in wrong)
