"""The command line. Light to import: the rest is loaded once a Ctrl-C can be answered."""

from collections.abc import Callable

from .options import FreshOption, KeepOption, SetOption
from .signals import quiet_interrupts
from .streams import prepare_streams

__all__ = ["FreshOption", "KeepOption", "SetOption", "main", "script"]


def main() -> None:
    """The entry point of `concordfl`."""
    prepare_streams()
    with quiet_interrupts():
        from ..engine.memory import keep_freed_memory
        from .app import app
        from .failures import finish

        keep_freed_memory()
    finish(app)


def script(command: Callable[..., None]) -> None:
    """The entry point of a script that is none of our commands: its options and errors are given
    as theirs are.
    """
    import typer

    prepare_streams()
    with quiet_interrupts():
        from .failures import finish

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    finish(app)
