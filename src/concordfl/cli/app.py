"""All commands, one file each."""

from importlib.metadata import version
from typing import Annotated

import typer

from .adapt import adapt
from .compare import compare
from .data import app as data_app
from .export import export
from .federate import app as federate_app
from .list import list_known
from .plot import plot
from .predict import predict
from .report import report
from .reproduce import reproduce
from .resume import resume
from .run import run
from .score import score
from .terminal import say
from .tune import tune
from .watch import watch

app = typer.Typer(
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


app.command("list")(list_known)
app.command("run")(run)
app.command("resume")(resume)
app.command("watch")(watch)
app.command("compare")(compare)
app.command("tune")(tune)
app.command("report")(report)
app.command("plot")(plot)
app.command("reproduce")(reproduce)
app.command("adapt")(adapt)
app.command("predict")(predict)
app.command("export")(export)
app.command("score")(score)
app.add_typer(data_app, name="data")
app.add_typer(federate_app, name="federate")
