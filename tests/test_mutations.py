"""Damaged files and odd settings are refused in one line, or change nothing.

`CONCORDFL_MUTATIONS` is the number of cases; `tests/mutations.py` repeats one by its name.
"""

import os
import time
import warnings

import pytest

import mutations
from command import Done

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


def fail(*_):
    raise KeyError("a bug")


def sleep(*_):
    time.sleep(10)


def warn(*_):
    warnings.warn("careful", RuntimeWarning, stacklevel=1)
    return Done(0, "", "")


@pytest.mark.skipif(os.name != "posix", reason="needs alarms")
@pytest.mark.parametrize(
    ("command", "kind"),
    [
        (fail, mutations.TRACEBACK),
        (sleep, mutations.HANG),
        (warn, mutations.UNCLEAN),
        (lambda *_: Done(1, "", "concordfl: no\n"), mutations.UNCLEAN),
        (lambda *_: Done(2, "", "concordfl: no\nmore\n"), mutations.UNCLEAN),
        (lambda *_: Done(0, "\x1b[31m", ""), mutations.UNCLEAN),
        (lambda folder, *_: (folder / "outside/new").touch() or Done(0, "", ""), mutations.UNCLEAN),
        (lambda *_: Done(0, "another result", ""), mutations.CHANGE),
        (lambda *_: Done(0, "result", ""), mutations.SAME),
        (lambda *_: Done(2, "", "concordfl: mu must be >= 0, got -1\n"), mutations.REFUSED),
    ],
)
def test_the_judge_notices(tmp_path, monkeypatch, command, kind):
    (tmp_path / "outside").mkdir()
    monkeypatch.setattr(mutations, "concordfl", command)
    monkeypatch.setattr(mutations, "MAX_SECONDS", 1)
    prepared = mutations.Prepared(
        "damage", ("run",), lambda done: None if done.stdout == "result" else "it differs"
    )
    assert mutations.judge("family-0", tmp_path, prepared).kind == kind


def test_a_case_is_repeated_by_its_name(world, tmp_path):
    for family in mutations.PREPARE:
        first, second = (mutations.play(world, family, 7, tmp_path) for _ in range(2))
        assert (first.kind, first.case) == (second.kind, second.case)
