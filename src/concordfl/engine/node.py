"""Node: where clients live. It performs the orders that reach it, and nothing else.

A node has its clients' examples, their private states, memos and secrets. On a real federation it
hosts one client, in simulation any number of them. What it is asked for is data (`Order`), what it
answers is data (`Outcome`); method, network and training settings reach it once, as a `Setup`.
"""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..core import (
    Aggregation,
    Client,
    ClientId,
    ClientStepError,
    Examples,
    Missing,
    Order,
    Outcome,
    SettingError,
    Tree,
    tree,
)
from ..core.algorithm import find_step
from ..core.client import Secret
from ..core.protocol import DROPPED_OUT, FAILED, REFUSED
from ..data import Federation, Splits
from .evaluate import EVALUATION_STEPS
from .setup import Setup
from .tree_sum import NOTHING, TreeSum

MAX_DETAIL_CHARACTERS = 500  # of an exception's text


class StateStore(Protocol):
    """Where a node keeps its clients' packed states: pending ones until they are committed."""

    def get(self, id: ClientId) -> bytes | None: ...

    def put(self, id: ClientId, state: bytes) -> None: ...

    def commit(self) -> None: ...

    def discard(self) -> None: ...


class Reply(NamedTuple):
    """What came of one client's step; a new state is kept with it."""

    value: Tree
    state: bytes | None  # packed; None where it has not changed


class Collected:
    """What has come of an order so far."""

    def __init__(self, order: Order, aggregation: Aggregation) -> None:
        self.first: Tree = None  # of the replies that are added: the others must fit it
        self._is_total = order.wanted == "total"
        self._total = TreeSum(len(order.clients), aggregation.add)
        self._replies: dict[ClientId, Tree] = {}
        self._sent: dict[ClientId, int] = {}
        self._missing: dict[ClientId, Missing] = {}

    def put(self, index: int, id: ClientId, reply: Reply | Missing) -> None:
        """Take the reply of the client at `index` of the order."""
        if isinstance(reply, Missing):
            self._missing[id] = reply
            self._total.put(index, NOTHING)
            return
        self._sent[id] = tree.num_bytes(reply.value)
        if self._is_total:
            self.first = reply.value if self.first is None else self.first
            self._total.put(index, reply.value)
        else:
            self._replies[id] = reply.value

    def outcome(self) -> Outcome:
        value: Tree = self._replies
        if self._is_total:
            value = self._total.value if self._sent else None
        return Outcome(value, self._sent, self._missing)


class Node:
    """The clients of one process: they share a resident model and what was published."""

    def __init__(
        self,
        setup: Setup,
        federation: Federation,
        states: StateStore,
        secret: Secret,
        *,
        explains: bool = True,
    ) -> None:
        """`explains`: whether the server is told the text of an exception, which may hold data."""
        self._explains, self.committed_round = explains, 0
        self._setup, self._federation = setup, federation
        self._states, self.secret = states, secret
        # By client: the phase of its data that the memos are of, and one memo per split.
        self._memos: dict[ClientId, tuple[int, dict[str, dict[str, Any]]]] = {}
        self._published: dict[str, Tree] = {}

    # --- what a server may ask for ----------------------------------------------------------------

    def perform(self, order: Order) -> Outcome:
        """Do the order for its clients, one after the other."""
        found = Collected(order, self._setup.aggregation)
        dropped = frozenset(order.dropped)
        for index, id in enumerate(order.clients):
            reply = Missing(DROPPED_OUT) if id in dropped else self._try(order, id, found.first)
            if isinstance(reply, Reply) and reply.state is not None:
                self._states.put(id, reply.state)
            found.put(index, id, reply)
        return found.outcome()

    def publish(self, name: str, data: bytes) -> None:
        """Take what the server gives every client for good."""
        if name in self._published:
            self._memos.clear()  # whatever was derived may come from the older publication
        self._published[name] = tree.unpack(data)

    def commit(self, round: int) -> None:
        """Make the states of a round count: the server has counted the replies."""
        self._states.commit()
        self.committed_round = round

    def discard(self) -> None:
        """Forget the round's states: it was void."""
        self._states.discard()

    def remembers(self, id: ClientId) -> bool:
        """Whether something derived from the client's examples is remembered here."""
        return id in self._memos and any(self._memos[id][1].values())

    # --- one client -------------------------------------------------------------------------------

    def _try(self, order: Order, id: ClientId, first: Tree) -> Reply | Missing:
        """The client's reply, which must fit the `first` one of a sum, or why there is none."""
        state = self._states.get(id)  # that it is damaged is not the step's fault
        try:
            reply = self._perform_one(order, id, state)
            if first is not None and isinstance(reply, Reply):
                require_fit(reply.value, first)
            return reply
        except Exception as error:
            return self._fail(order, id, error)
        finally:
            if not self.remembers(id):  # else an entry for everybody who was ever asked
                self._memos.pop(id, None)

    def _fail(self, order: Order, id: ClientId, error: Exception) -> Missing:
        """What becomes of a client whose step has failed: the end of the run, or it is missing."""
        kind = type(error).__name__
        what = f"{kind}: {error}"[:MAX_DETAIL_CHARACTERS] if self._explains else kind
        if self._setup.on_error == "skip":
            return Missing(FAILED, what)
        raise ClientStepError(f"client {id!r}, {order.where}: {what}") from error

    def _perform_one(self, order: Order, id: ClientId, packed: bytes | None) -> Reply | Missing:
        state = None if packed is None else tree.unpack(packed)
        splits = self._splits(id, order.training_round)
        client = self._client(id, splits.train, order.stage_round, has_state=state is not None)
        message = order.message_to(id)
        if order.step in EVALUATION_STEPS:
            evaluation = EVALUATION_STEPS[order.step]
            value = evaluation(self._setup.algorithm, client, splits, state, message, order.options)
            return Reply(tree.normal(self._outgoing(value, order)), None)
        step = find_step(self._setup.algorithm, order.step)
        algorithm = self._setup.algorithm
        before = algorithm.init_client(client, message) if state is None else state
        after, reply = step(client, before, message)
        value = tree.normal(self._outgoing(reply, order))
        if not (tree.is_finite(value) and tree.is_finite(after)):
            return Missing(REFUSED, "NaN or infinity")
        new = tree.pack(after)
        # A first state that the step has only handed on, or that is empty, does not count as one.
        if packed is None and after is not before and bool(after):
            return Reply(value, new)
        # A step may have changed the state that it was given, so the first one is made once more.
        known = tree.pack(algorithm.init_client(client, message)) if packed is None else packed
        return Reply(value, new if new != known else None)

    def _outgoing(self, reply: Any, order: Order) -> Tree:
        return self._setup.aggregation.outgoing(reply, order.wanted)

    def _client(
        self, id: ClientId, examples: Examples, stage_round: int, *, has_state: bool
    ) -> Client:
        return Client(
            id,
            examples,
            objective=self._setup.objective,
            model=self._setup.model,
            training=self._setup.training,
            seed=self._setup.seed,
            round=stage_round,
            published=self._get_published,
            has_state=has_state,
            secret=self.secret,
        )

    def _splits(self, id: ClientId, training_round: int) -> Splits:
        splits = self._federation.splits(id, training_round)
        phase = self._federation.phase(id, training_round)
        if id in self._memos and self._memos[id][0] != phase:
            del self._memos[id]  # the examples have drifted
        _, memos = self._memos.setdefault(id, (phase, {name: {} for name in splits._fields}))
        return Splits(
            *(
                Examples(split.x, split.y, memos[name], split.scale)
                for name, split in splits._asdict().items()
            )
        )

    def _get_published(self, name: str) -> Tree:
        if name not in self._published:
            raise SettingError(f"nothing has been published under {name!r}")
        return self._published[name]


def require_fit(reply: Tree, first: Tree) -> None:
    """Refuse a reply that cannot be added to the first one."""
    ours, theirs = tree.flatten(reply), tree.flatten(first)
    for name in ours.keys() & theirs.keys():
        left, right = (_shape(part[name]) for part in (ours, theirs))
        if left != right:
            raise ValueError(f"replies must fit, got {name!r} of {left} beside {right}")


def _shape(leaf: Any) -> Any:
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else "a number"
