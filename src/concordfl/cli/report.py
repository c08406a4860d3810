"""`concordfl report`."""

from pathlib import Path
from typing import Annotated

import typer

from ..study import reports
from .options import TrustOption
from .terminal import say

FoldersArgument = Annotated[
    list[Path],
    typer.Argument(
        help="Folders of runs, or of several runs each; also of a diagnosis.", show_default=False
    ),
]


def report(
    folders: FoldersArgument,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="An .html file."),
    ] = Path("report.html"),
    title: Annotated[
        str | None,
        typer.Option(help="By default the folder's name.", show_default=False),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Show finished runs in one file that any browser opens: who is like whom, which model each
    client uses, and whether it is better than what it had.
    """
    reports.check_file(out)
    gathered = reports.of_folders(folders, trust=trust)
    made = reports.write(title or folders[0].resolve().name, gathered.runs, out)
    say(made["headline"], *made["sentences"])
    for path in gathered.unfinished:
        say(f"Left out, as it is not finished: {path}")
    say(f"The report is {out}")
