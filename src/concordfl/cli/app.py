"""The command `concordfl`; its own commands are in one file each, and in `on_call` by name."""

from importlib.metadata import version
from typing import Annotated

import typer

from .on_call import OnCall
from .terminal import say

app = typer.Typer(
    cls=OnCall,
    name="concordfl",
    help="Federated learning when clients' data differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"concordfl {version('concordfl')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options that come before a command."""
