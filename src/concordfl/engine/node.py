"""Node: where clients live. It performs the orders that reach it, and nothing else.

A node has its clients' examples, their private states, memos and secrets. On a real federation it
hosts one client, in simulation any number of them. What it is asked for is data (`Order`), what it
answers is data (`Outcome`); method, network and training settings reach it once, as a `Setup`.
"""

from typing import Any, NamedTuple, Protocol

from ..core import (
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


class Node:
    """The clients of one process: they share a resident model and what was published."""

    def __init__(
        self, setup: Setup, federation: Federation, states: StateStore, secret: Secret
    ) -> None:
        self._setup, self._federation = setup, federation
        self._states, self.secret = states, secret
        # By client: the phase of its data that the memos are of, and one memo per split.
        self._memos: dict[ClientId, tuple[int, dict[str, dict[str, Any]]]] = {}
        self._published: dict[str, Tree] = {}

    # --- what a server may ask for ----------------------------------------------------------------

    def perform(self, order: Order) -> Outcome:
        """Do the order for its clients, one after the other."""
        total = TreeSum(len(order.clients), self._setup.aggregation.add)
        replies: dict[ClientId, Tree] = {}
        sent: dict[ClientId, int] = {}
        missing: dict[ClientId, Missing] = {}
        for index, id in enumerate(order.clients):
            reply = Missing(DROPPED_OUT) if id in order.dropped else self._try(order, id)
            if isinstance(reply, Missing):
                missing[id] = reply
                total.put(index, NOTHING)
                continue
            sent[id] = tree.num_bytes(reply.value)
            if reply.state is not None:
                self._states.put(id, reply.state)
            if order.wanted == "total":
                total.put(index, reply.value)
            else:
                replies[id] = reply.value
        value = replies if order.wanted == "replies" else total.value if sent else None
        return Outcome(value, sent, missing)

    def publish(self, name: str, data: bytes) -> None:
        """Take what the server gives every client for good."""
        if name in self._published:
            self._memos.clear()  # whatever was derived may come from the older publication
        self._published[name] = tree.unpack(data)

    def commit(self) -> None:
        """Make the round's states count: the server has counted the replies."""
        self._states.commit()

    def discard(self) -> None:
        """Forget the round's states: it was void."""
        self._states.discard()

    def remembers(self, id: ClientId) -> bool:
        """Whether something derived from the client's examples is remembered here."""
        return id in self._memos and any(self._memos[id][1].values())

    # --- one client -------------------------------------------------------------------------------

    def _try(self, order: Order, id: ClientId) -> Reply | Missing:
        """The client's reply, or why there is none."""
        try:
            return self._perform_one(order, id)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            if self._setup.on_error == "skip":
                return Missing(FAILED, what)
            where = f"client {id!r}, stage {order.stage!r}, step {order.step!r}"
            raise ClientStepError(f"{where}, round {order.round}: {what}") from error

    def _perform_one(self, order: Order, id: ClientId) -> Reply | Missing:
        packed = self._states.get(id)
        state = None if packed is None else tree.unpack(packed)
        splits = self._splits(id, order.training_round)
        client = self._client(id, splits.train, order.stage_round, has_state=state is not None)
        message = order.message_to(id)
        if order.step in EVALUATION_STEPS:
            evaluation = EVALUATION_STEPS[order.step]
            value = evaluation(self._setup.algorithm, client, splits, state, message, order.options)
            return Reply(tree.normal(self._outgoing(value, order)), None)
        step = find_step(self._setup.algorithm, order.step)
        before = self._setup.algorithm.init_client(client, message) if state is None else state
        known = tree.pack(before) if packed is None else packed
        after, reply = step(client, before, message)
        value = tree.normal(self._outgoing(reply, order))
        if not (tree.is_finite(value) and tree.is_finite(after)):
            return Missing(REFUSED, "NaN or infinity")
        new = tree.pack(after)
        # A first state that the step has only handed on, or that is empty, does not count as one.
        first = packed is None and after is not before and bool(after)
        return Reply(value, new if first or new != known else None)

    def _outgoing(self, reply: Any, order: Order) -> Tree:
        return self._setup.aggregation.outgoing(reply, order.wanted)

    def _client(
        self, id: ClientId, examples: Examples, stage_round: int, *, has_state: bool
    ) -> Client:
        return Client(
            id,
            examples,
            num_classes=self._setup.num_classes,
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
