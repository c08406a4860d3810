"""Cohort: a round's view of its clients, reachable only through their steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from . import tree
from .aggregation import ServerStep
from .algorithm import Algorithm, Step, Task, step_name
from .client import ClientId
from .errors import NoReplies, SettingError
from .optim import Training
from .protocol import Missing, Order, Outcome, Wanted
from .random import Key
from .tree import Tree


class Replies(Mapping[ClientId, Tree]):
    """Individual replies by client, in the order of client ids, and who is missing and why."""

    def __init__(
        self, replies: Mapping[ClientId, Tree], missing: Mapping[ClientId, Missing] | None = None
    ) -> None:
        self._replies = {id: replies[id] for id in sorted(replies)}
        self.missing = dict(missing or {})

    def __getitem__(self, id: ClientId) -> Tree:
        return self._replies[id]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._replies)

    def __len__(self) -> int:
        return len(self._replies)


class Cohort:
    """The clients of one round.

    `sum` sees only totals, `run` sees individual replies: which of the two a method uses is its
    privacy statement.
    """

    def __init__(
        self,
        ids: Sequence[ClientId],
        *,
        algorithm: Algorithm,
        order: Order,
        task: Task,
        training: Training,
        population: int,
        key: Key,
        ask: Callable[[Order], Outcome],
        publish: Callable[[str, Tree], None],
        server_step: ServerStep,
        min_replies: int = 1,
    ) -> None:
        self.ids: tuple[ClientId, ...] = tuple(sorted(ids))
        self.round, self.task, self.training = order.stage_round, task, training
        self.population = population
        self._algorithm, self._order, self._key = algorithm, order, key
        self._ask, self._publish = ask, publish
        self.server_step, self._min_replies = server_step, min_replies

    def sum(
        self, step: Step, *, broadcast: Tree = None, each: Mapping[ClientId, Tree] | None = None
    ) -> Tree:
        """The total of the clients' replies, added where they are made.

        Additions follow a fixed tree over the sorted ids. All clients receive `broadcast`; with
        `each`, only the clients it names are asked, each with a message of its own.
        """
        order = self._make_order(step, broadcast, each, "total")
        return self.server_step.incoming(self._perform(order).value, order.step)

    def run(
        self, step: Step, *, broadcast: Tree = None, each: Mapping[ClientId, Tree] | None = None
    ) -> Replies:
        """The clients' individual replies."""
        outcome = self._perform(self._make_order(step, broadcast, each, "replies"))
        return Replies(outcome.value, outcome.missing)

    def total(self, replies: Sequence[Tree], name: str) -> Tree:
        """The total of individual replies, as `sum` gives it; `name` tells it from other totals."""
        return self.server_step.incoming(tree.total(replies), name)

    def publish(self, name: str, tree: Tree) -> None:
        """Give every client `tree` for good, under `name`: it travels to each of them once."""
        self._publish(name, tree)

    def random(self, purpose: str) -> Key:
        return self._key.child(purpose)

    def _make_order(
        self, step: Step, broadcast: Tree, each: Mapping[ClientId, Tree] | None, wanted: Wanted
    ) -> Order:
        name = step_name(self._algorithm, step)
        if broadcast is not None and each is not None:
            raise SettingError("a cohort takes either `broadcast` or `each`, got both")
        if each is not None and not set(each) <= set(self.ids):
            strangers = sorted(set(each) - set(self.ids))
            raise SettingError(f"`each` must name clients of this cohort, got {strangers}")
        return self._order._replace(
            step=name,
            clients=self.ids if each is None else tuple(sorted(each)),
            broadcast=broadcast,
            each=None if each is None else dict(each),
            wanted=wanted,
        )

    def _perform(self, order: Order) -> Outcome:
        if not order.clients:
            raise NoReplies(f"no client was left to ask for {order.step}")
        outcome = self._ask(order)
        # A missing client has left the round: later steps would meet a state that it never saw.
        self.ids = tuple(id for id in self.ids if id not in outcome.missing)
        quorum = min(self._min_replies, len(order.clients))
        if len(outcome.sent) < quorum:
            asked = f"{len(order.clients)} clients answered {order.step}"
            raise NoReplies(f"{len(outcome.sent)} of {asked}, at least {quorum} must")
        return outcome
