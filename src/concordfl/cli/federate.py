"""`concordfl federate`."""

import shlex
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.live import Live

from ..data.text import listing
from ..federate.init import create, require_flower
from ..federate.local import View, finished_summary, run_folder, started
from ..federate.project import DEFAULT_HOST, DEFAULT_PORT, Choices, Project
from ..watch import words
from .federate_display import FederationDisplay
from .results import show_summary, stoppable
from .terminal import console, say
from .watch import print_rounds

app = typer.Typer(help="A real federation over Flower.", no_args_is_help=True)

ProjectArgument = Annotated[Path, typer.Argument(help="The project's folder.", show_default=False)]


@app.command()
def init(
    folder: Annotated[
        Path, typer.Argument(help="A new folder for the project.", show_default=False)
    ],
    run: Annotated[Path, typer.Option("--run", help="A run file in TOML.", show_default=False)],
    clients: Annotated[
        list[str],
        typer.Option(
            "--clients",
            metavar="NAME=FOLDER ...",
            help="Each client and the folder of its data, or NAME=simulated for its part of what "
            "the run file simulates; may be repeated.",
            show_default=False,
        ),
    ],
    further: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: Annotated[
        str, typer.Option(help="The name or address by which clients reach the server.")
    ] = DEFAULT_HOST,
    port: Annotated[int, typer.Option(help="The server's port.")] = DEFAULT_PORT,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="No encryption, and clients need no keys: for tests only."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds for an order; who has not answered is left out.")
    ] = 600.0,
    wait: Annotated[
        float, typer.Option(help="Seconds for clients to come before the first order.")
    ] = 600.0,
) -> None:
    """Write a project: a folder with scripts, keys and a README for each who takes part."""
    choices = Choices(host=host, port=port, insecure=insecure, timeout=timeout, wait=wait)
    made = create(folder, run, [*clients, *(further or ())], choices)
    say(f"{folder} is a project for {listing(client.name for client in made.clients)}")
    if insecure:
        say("INSECURE: nothing is encrypted, and anybody can take part as any client")
    else:
        say(
            "Its certificate and keys are FOR TRYING OUT: before real use everybody makes their own"
        )
    for setting, name in made.own_code.items():
        say(f"{setting} = {name} is not concordfl's: clients must allow it by trust in node.toml")
    say(
        f"Read {folder / 'README.md'} for what each has to do",
        f"or try all of it on this machine: concordfl federate up {shlex.quote(str(folder))}",
    )


@app.command()
def up(folder: ProjectArgument) -> None:
    """Run a whole project on this machine: server, clients and the run; all end with it."""
    require_flower()
    project = Project.read(folder)
    if finished_summary(folder) is not None:
        say(f"The run of {folder} has finished; another needs another project")
        _show_result(folder)
        return
    command = f"concordfl federate up {shlex.quote(str(folder))}"
    with stoppable(f"`{command}`"), started(folder) as local:
        if local.port != project.port:
            say(f"Port {project.port} is taken; the server listens at {local.port} instead")
        with closing(local.play()) as views:
            _show(views, folder)
    _show_result(folder)
    say(
        f"Clients' private states are in {folder / 'clients'}/*/states, "
        f"logs in {folder / 'logs'}; all processes have ended"
    )


def _show_result(folder: Path) -> None:
    summary = finished_summary(folder)
    if summary is not None:
        show_summary(summary, run_folder(folder))


def _show(views: Iterator[View], folder: Path) -> None:
    if not console.is_terminal:
        _print_lines(views)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        for view in views:
            live.update(FederationDisplay(folder, view), refresh=True)


def _print_lines(views: Iterator[View]) -> None:
    """A line for every stage, every change of a client, and every evaluated round."""
    before: View | None = None
    printed = 0
    for view in views:
        if view.stage and (before is None or before.stage != view.stage):
            say(view.stage)
        for name, state in view.clients.items():
            if before is not None and before.clients[name] != state:
                say(f"{name}: {state}")
        for refusal in view.refusals[len(before.refusals) if before else 0 :]:
            say(refusal)
        if view.run is not None:
            (title,) = words.titles([view.run])
            print_rounds(view.run, title, printed)
            printed = max([printed, *(figures.round for figures in view.run.evaluated)])
        before = view
