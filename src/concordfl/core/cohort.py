"""Cohort: a round's view of its clients, reachable only through their steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .algorithm import Step, Task
from .client import ClientId
from .errors import NoReplies, SettingError
from .optim import Training
from .random import Key
from .tree import Tree


class Replies(Mapping[ClientId, Tree]):
    """Individual replies by client, in the order of client ids, and who did not answer."""

    def __init__(self, replies: Mapping[ClientId, Tree], missing: Sequence[ClientId] = ()) -> None:
        self._replies = {id: replies[id] for id in sorted(replies)}
        self.missing = tuple(sorted(missing))

    def __getitem__(self, id: ClientId) -> Tree:
        return self._replies[id]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)


class Request(NamedTuple):
    """One step asked of some clients: what a cohort hands to the engine."""

    step: Step
    ids: tuple[ClientId, ...]
    broadcast: Tree
    each: Mapping[ClientId, Tree] | None
    additive: bool


class Answer(NamedTuple):
    """The total of additive replies, or the replies by client; and who did not answer."""

    value: Tree
    missing: tuple[ClientId, ...]


class Cohort:
    """The clients of one round.

    `sum` sees only totals, `run` sees individual replies: which of the two a method uses is its
    privacy statement.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        *,
        round: int,
        task: Task,
        training: Training,
        population: int,
        key: Key,
        ask: Callable[[Request], Answer],
        publish: Callable[[str, Tree], None],
    ) -> None:
        self.ids: tuple[ClientId, ...] = tuple(sorted(ids))
        self.round, self.task, self.training, self.population = round, task, training, population
        self._key, self._ask, self._publish = key, ask, publish

    def sum(
        self, step: Step, *, broadcast: Tree = None, each: Mapping[ClientId, Tree] | None = None
    ) -> Tree:
        """The total of the clients' replies, added where they are made, along a fixed tree over the
        sorted ids.

        All clients receive `broadcast`; with `each`, only the clients it names are asked, each with
        a message of its own.
        """
        return self._request(step, broadcast, each, additive=True).value

    def run(
        self, step: Step, *, broadcast: Tree = None, each: Mapping[ClientId, Tree] | None = None
    ) -> Replies:
        """The clients' individual replies."""
        answer = self._request(step, broadcast, each, additive=False)
        return Replies(answer.value, answer.missing)

    def publish(self, name: str, tree: Tree) -> None:
        """Give every client `tree` for good, under `name`: it travels to each of them once."""
        self._publish(name, tree)

    def random(self, purpose: str) -> Key:
        return self._key.child(purpose)

    def _request(
        self, step: Step, broadcast: Tree, each: Mapping[ClientId, Tree] | None, *, additive: bool
    ) -> Answer:
        if not getattr(step, "is_client_step", False):
            raise SettingError(
                "a cohort can only be asked for a @client_step, got "
                f"{getattr(step, '__name__', step)!r}"
            )
        if broadcast is not None and each is not None:
            raise SettingError("a cohort takes either `broadcast` or `each`, got both")
        if each is not None and not set(each) <= set(self.ids):
            raise SettingError(
                f"`each` must name clients of this cohort, got {sorted(set(each) - set(self.ids))}"
            )
        ids = self.ids if each is None else tuple(sorted(each))
        if not ids:
            raise NoReplies(f"no client was left to ask for {getattr(step, '__name__', step)}")
        answer = self._ask(Request(step, ids, broadcast, each, additive))
        # A client that does not answer has left the round: later steps would meet a state that the
        # round never saw.
        self.ids = tuple(id for id in self.ids if id not in set(answer.missing))
        if len(answer.missing) == len(ids):
            raise NoReplies(
                f"none of {len(ids)} clients answered {getattr(step, '__name__', step)}"
            )
        return answer
