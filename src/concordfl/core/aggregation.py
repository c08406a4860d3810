"""How replies are added: what a method declares, and the one place where an option changes it.

A step that is asked for a total declares what its reply is made of:

    Mean(value, weight, around)   averaged over clients by weight, or each row by its own; `around`
                                  is the part of the message that it is a new version of
    Total(value)                  added as it is
    Chosen({k: ...}, among)       some keys of `among`, chosen by the client's data

An option of `[aggregation]` acts at one of three points, and nowhere else: where a reply leaves its
client (`outgoing`), where two replies are added (`add`), and where a method takes the mean of a
total (`ServerStep`). Differences from `around` are formed only where an option asks for them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from . import tree
from .errors import SettingError
from .protocol import Wanted
from .settings import Fraction, Positive, Settings
from .tree import Tree, Weighted


@dataclass(frozen=True)
class Mean:
    """To be averaged over clients: a new version of `around`, counted `weight` times; with a
    tensor (R,), each row of its tensors as often as that says.
    """

    value: Tree
    weight: float | Tensor
    around: Tree


@dataclass(frozen=True)
class Total:
    """To be added over clients as it is."""

    value: Tree


@dataclass(frozen=True)
class Chosen:
    """Replies under keys that depend on the client's data: which of `among` it has chosen."""

    replies: Mapping[Any, Any]
    among: Mapping[Any, Tree]


@tree.register
class Averaged(Weighted):
    """What a `Mean` becomes on its way: value times weight, and the weight."""


@dataclass(frozen=True)
class Aggregation(Settings):
    """The `[aggregation]` section of a run file."""

    server_lr: Positive = 1.0  # η_g: how far the server goes from its old model towards the mean
    server_momentum: Fraction = 0.0  # of the server's steps, as in FedAvgM
    # whether clients that choose among models reply for all of them, so that a sum hides the choice
    pad_choices: bool = False

    @property
    def steps(self) -> bool:
        """Whether the server does anything else than take the mean."""
        return self.server_lr != 1.0 or self.server_momentum != 0.0

    def outgoing(self, reply: Any, wanted: Wanted) -> Tree:
        """A client's reply as it travels."""
        return self._outgoing(reply, wanted, "")

    def add(self, left: Tree, right: Tree) -> Tree:
        """Two replies, or sums of replies, as one."""
        return tree.add(left, right)

    def _outgoing(self, reply: Any, wanted: Wanted, path: str) -> Tree:
        if isinstance(reply, Mean):
            return Averaged(*tree.weighted(reply.value, reply.weight))
        if isinstance(reply, Total):
            return reply.value
        if isinstance(reply, Chosen):
            return self._outgoing(self._padded(reply), wanted, path)
        if isinstance(reply, dict):
            return {k: self._outgoing(part, wanted, f"{path}.{k}") for k, part in reply.items()}
        if isinstance(reply, (list, tuple)):
            parts = [self._outgoing(part, wanted, f"{path}.{i}") for i, part in enumerate(reply)]
            return tree.rebuild(reply, parts)
        if wanted == "total" and reply is not None:
            where = f" at {path[1:]!r}" if path else ""
            raise TypeError(
                f"a reply that is added must be made of Mean and Total, got a bare "
                f"{type(reply).__name__}{where}"
            )
        return reply

    def _padded(self, chosen: Chosen) -> dict[Any, Any]:
        strangers = [key for key in chosen.replies if key not in chosen.among]
        if strangers:
            raise ValueError(f"a client must choose among {list(chosen.among)}, got {strangers}")
        if not self.pad_choices:
            return dict(chosen.replies)
        return {
            key: chosen.replies.get(key, Mean(around, 0.0, around))
            for key, around in chosen.among.items()
        }


class ServerStep:
    """The server's side in one round: means that step from what they are averaged around.

    `memory` holds the momentum of every mean by its name; buffers, such as running variances, are
    not stepped but averaged.
    """

    def __init__(
        self, settings: Aggregation, memory: Mapping[str, Tree], buffer_names: Collection[str]
    ) -> None:
        self._settings, self.memory = settings, dict(memory)
        self._buffers = frozenset(buffer_names)
        self.count = 0  # of the means that were taken

    def incoming(self, total: Tree, name: str) -> Tree:
        """A total as a method receives it: its averages know how to step."""
        if not self._settings.steps:
            return total
        if isinstance(total, Averaged):
            return SteppedMean(total, name, self)
        if isinstance(total, dict):
            return {key: self.incoming(part, f"{name}.{key}") for key, part in total.items()}
        if isinstance(total, (list, tuple)):
            parts = [self.incoming(part, f"{name}.{i}") for i, part in enumerate(total)]
            return tree.rebuild(total, parts)
        return total

    def step(self, name: str, before: Tree, mean: Tree) -> Tree:
        """`before` moved towards `mean`."""
        velocity = tree.map(lambda new, old: new - old, mean, before)
        if self._settings.server_momentum and name in self.memory:
            past = tree.scale(self.memory[name], self._settings.server_momentum)
            velocity = tree.add(past, velocity)
        if self._settings.server_momentum:
            self.memory[name] = velocity
        rate = self._settings.server_lr
        moved = tree.map(lambda v, old: old + rate * v, velocity, before)
        return _with_buffers(moved, mean, self._buffers)


class SteppedMean:
    """An average whose `mean` is a step of the server."""

    def __init__(self, total: Averaged, name: str, server: ServerStep) -> None:
        self.total, self.weight = total.total, total.weight
        self._mean, self._name, self._server = total.mean, name, server

    def mean(self, otherwise: Tree = None) -> Tree:
        """A step from `otherwise` towards total / weight; `otherwise` if nothing was added."""
        if otherwise is None:
            raise SettingError(
                f"aggregation.server_lr needs to know what {self._name!r} is averaged around: "
                "the method must say `mean(otherwise=...)`"
            )
        self._server.count += 1
        if not isinstance(self.weight, Tensor) and self.weight == 0:
            return otherwise
        return self._server.step(self._name, otherwise, self._mean(otherwise))


def _with_buffers(moved: Tree, mean: Tree, buffers: Collection[str]) -> Tree:
    if not isinstance(moved, dict):
        return moved
    return {
        key: mean[key]
        if key in buffers and isinstance(value, Tensor)
        else _with_buffers(value, mean[key], buffers)
        for key, value in moved.items()
    }
