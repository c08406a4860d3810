"""`auto`: the method that `diagnose` recommends for the run's own clients.

It stands in a run's settings until the diagnosis has been made (`choose.py`), and is never played.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..core import ANY_KIND, About, Algorithm, SettingError, Task, Tree

NAME = "auto"


@dataclass(frozen=True)
class Auto(Algorithm):
    """A method that is still to be chosen."""

    about: ClassVar[About] = About(
        title="The method that `diagnose` recommends",
        paper="this library",
        year=2026,
        travels="what travels in a diagnosis, then what the chosen method sends",
        private="as in a diagnosis, then as in the chosen method",
        cost="a diagnosis, then the chosen method's",
    )
    supports: ClassVar[frozenset[str]] = ANY_KIND

    # whose accuracy is to be high: that of the clients themselves, or of new ones
    purpose: Literal["local", "global"] = "local"

    def init_server(self, task: Task, seed: int) -> Tree:
        raise SettingError("auto must be replaced by a method before a run begins, got it as it is")


def described(method: str, settings: Mapping[str, Any]) -> str:
    """`ifca (num_models = 3)`."""
    listed = ", ".join(f"{name} = {value}" for name, value in settings.items())
    return f"{method} ({listed})" if listed else method


def described_choice(chosen: Mapping[str, Any]) -> str:
    """What was chosen and why, in a line."""
    method = described(chosen["method"], chosen["settings"])
    passed_over = "".join(f"; passed over: {reason}" for reason in chosen["passed_over"])
    return f"auto chose {method} for {chosen['purpose']} accuracy: {chosen['because']}{passed_over}"
