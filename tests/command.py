"""The command line, called inside the process of the tests: a new interpreter takes seconds."""

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from concordfl.cli import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def concordfl(folder, *arguments):
    """What `concordfl ARGUMENTS`, called in `folder`, prints and ends with."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        mock.patch.object(sys, "argv", ["concordfl", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as end:
            return Done(end.code, out.getvalue(), errors.getvalue())
    raise AssertionError("main() must end the process")
