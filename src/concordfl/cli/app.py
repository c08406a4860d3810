"""All commands, one file each."""

import typer

from .adapt import adapt
from .compare import compare
from .data import app as data_app
from .list import list_known
from .resume import resume
from .run import run
from .score import score

app = typer.Typer(
    name="concordfl",
    help="Federated learning when clients' data differ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("list")(list_known)
app.command("run")(run)
app.command("resume")(resume)
app.command("compare")(compare)
app.command("adapt")(adapt)
app.command("score")(score)
app.add_typer(data_app, name="data")
