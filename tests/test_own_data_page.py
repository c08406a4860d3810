"""docs/own-data.md is true: its files are written, its commands called, and print what it shows."""

import re
import shlex
from pathlib import Path

import pytest

from command import concordfl

PAGE = (Path(__file__).parents[1] / "docs/own-data.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands():
    """Each command with the lines that it must print, `...` for any."""
    for block in blocks("console"):
        for part in block.split("$ concordfl ")[1:]:
            command, *lines = part.splitlines()
            yield shlex.split(command), lines


def require_lines(printed, expected):
    """The expected lines stand one after the other; `...` stands for any number of lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    start, free = 0, False  # free to look for the next line further down
    for line in expected:
        if line == "...":
            free = True
            continue
        while free and start < len(lines) and lines[start] != line:
            start += 1
        assert start < len(lines), f"{line!r} must be printed, got\n{printed}"
        assert lines[start] == line
        start, free = start + 1, False
    assert free or start == len(lines)


def test_the_check_of_lines_notices():
    require_lines("a\nb\nc\n", ["...", "b", "..."])
    for wrong in (["...", "d", "..."], ["a", "c"], ["...", "c", "b", "..."], ["...", "b"]):
        with pytest.raises(AssertionError):
            require_lines("a\nb\nc\n", wrong)


def test_the_walk_from_a_table_to_a_newcomer(tmp_path):
    for name, text in zip(("clinics.csv", "late.csv"), blocks("csv"), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "clinics.toml").write_text(blocks("toml")[0])
    called = list(commands())
    assert [arguments[0] for arguments, _ in called] == ["run", "compare", "run", "adapt"]
    for arguments, expected in called:
        done = concordfl(tmp_path, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), arguments
        require_lines(done.stdout, expected)
