"""The command line. Light to import: the rest is loaded once a Ctrl-C can be answered."""

import typing
from collections.abc import Callable

from .signals import quiet_interrupts
from .streams import prepare_streams

if typing.TYPE_CHECKING:
    from .options import AlgorithmsOption, FreshOption, KeepOption, SeedsOption, SetOption

__all__ = [
    "AlgorithmsOption",
    "FreshOption",
    "KeepOption",
    "SeedsOption",
    "SetOption",
    "main",
    "script",
]


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
    prepare_streams()
    with quiet_interrupts():
        import typer

        from .failures import finish

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    finish(app)


if not typing.TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """The options that scripts share with our commands: typer is loaded when one is used."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from . import options

        return getattr(options, name)
