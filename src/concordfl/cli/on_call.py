"""The commands by name. One is imported when it is called: most need torch, which takes seconds,
and help should not.
"""

from importlib import import_module
from typing import Any, NamedTuple

import click
import typer
from typer.core import TyperGroup
from typer.main import get_group

from .signals import quiet_interrupts


class Place(NamedTuple):
    """Where a command is, and the beginning of its help."""

    module: str
    member: str  # a function, or the Typer of several commands
    help: str


COMMANDS = {
    "list": Place(
        "list", "list_known", "Show the algorithms, data sets, models and scenarios there are."
    ),
    "run": Place("run", "run", "Run one method as a run file says."),
    "resume": Place("resume", "resume", "Go on with a run where it stopped, bit for bit."),
    "watch": Place(
        "watch",
        "watch",
        "Follow runs in progress: a page for this computer alone, or in the terminal.",
    ),
    "compare": Place(
        "compare", "compare", "Run several methods on the same federation and show one table."
    ),
    "tune": Place(
        "tune",
        "tune",
        "Choose settings of several methods on validation data, and write a run file that has "
        "them.",
    ),
    "diagnose": Place(
        "diagnose",
        "diagnose",
        "Say how clients' data differ: in labels, concept, features and amount.",
    ),
    "report": Place(
        "report",
        "report",
        "Show finished runs in one file that any browser opens: who is like whom, which model each "
        "client uses, and whether it is better than what it had.",
    ),
    "plot": Place(
        "plot", "plot", "Draw one picture of the report for a paper, or write its numbers."
    ),
    "reproduce": Place(
        "reproduce",
        "reproduce",
        "A table or a figure of one of the four papers: the paper's numbers beside ours.",
    ),
    "adapt": Place("adapt", "adapt", "Let a new client join a finished run."),
    "predict": Place(
        "predict",
        "predict",
        "Predict the classes of samples, or their values, with a finished run.",
    ),
    "export": Place(
        "export",
        "export",
        "Write what a finished run predicts with to a file that needs no concordfl.",
    ),
    "score": Place(
        "score",
        "score",
        "Say how familiar samples are to a finished run, and which are unlike anything seen.",
    ),
    "data": Place("data", "app", "Data sets: what is here, and how to get the rest."),
    "federate": Place("federate", "app", "A real federation over Flower."),
    "bench": Place(
        "bench",
        "app",
        "How fast it is on this machine, which should have no other work meanwhile.",
    ),
}


class OnCall(TyperGroup):
    """A line of help stands for each command until it is called."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, place in COMMANDS.items():
            self.add_command(click.Command(name, help=place.help))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, load(name) if name in COMMANDS else command, rest


def load(name: str) -> click.Command:
    """A command with all of its options."""
    place = COMMANDS[name]
    with quiet_interrupts():
        found = getattr(import_module(f".{place.module}", __package__), place.member)
    around = typer.Typer()
    if isinstance(found, typer.Typer):
        around.add_typer(found, name=name)
    else:
        around.command(name)(found)
    return get_group(around).commands[name]
