"""Who looks on while a run is played: functions that are called after every round, and watchers,
which are also there when it begins and when it ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..core import SettingError
from ..core.settings import received
from .experiment import Event

Observer = Callable[[Event], object]


@dataclass
class Watched:
    """A run as its watchers see it."""

    name: str
    settings: Mapping[str, Any]  # all of them, as tables by section
    folder: Path | None
    # the very list to which the run adds; a run that is taken up again begins with its earlier ones
    records: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any] | None = None  # once the run is over


@runtime_checkable
class Watcher(Protocol):
    """An observer with a beginning and an end."""

    def watch(self, run: Watched) -> AbstractContextManager[Observer]:
        """Entered before the first round that is played and left after the last, or where the run
        breaks off. Of a finished run no round is played.
        """
        ...


OneObserver: TypeAlias = Observer | Watcher
OnRound: TypeAlias = OneObserver | Iterable[OneObserver]


def observers_of(on_round: OnRound) -> tuple[OneObserver, ...]:
    """One or several, as a user gives them."""
    is_one = callable(on_round) or not isinstance(on_round, Iterable)
    several: Any = (on_round,) if is_one else tuple(on_round)  # type: ignore[arg-type]
    for one in several:
        if not callable(one) and not isinstance(one, Watcher):
            raise SettingError(
                f"on_round must be a function or a list of functions, got {received(one)}"
            )
    return tuple(several)


@contextmanager
def watching(observers: Sequence[OneObserver], run: Watched) -> Iterator[Callable[[Event], None]]:
    """One observer for several, while their watchers watch."""
    with ExitStack() as stack:
        functions = [
            stack.enter_context(one.watch(run)) if isinstance(one, Watcher) else one
            for one in observers
        ]

        def observe(event: Event) -> None:
            for one in functions:
                one(event)

        yield observe
