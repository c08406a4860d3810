"""VectorNode: a node that performs an order for blocks of clients at once."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core import Client, ClientId, Examples, Missing, Order, Outcome, Tree
from ...core.client import Secret
from ...core.protocol import DROPPED_OUT
from ...data import Federation
from ..node import Collected, Node, Reply, StateStore, require_fit
from ..setup import Setup
from .client import VectorClient
from .fit import fit_together
from .lockstep import Ask, run_in_lockstep
from .logits import logits_together
from .network import ManyNetworks
from .requests import ALONE, FitRequest, Request

BLOCK_SIZE = 256  # clients that are at their steps at a time


class VectorNode(Node):
    """The clients of this process, in lockstep."""

    def __init__(
        self, setup: Setup, federation: Federation, states: StateStore, secret: Secret
    ) -> None:
        super().__init__(setup, federation, states, secret)
        self._networks = ManyNetworks(setup.model)
        self._ask: Ask  # of the step that is running

    def perform(self, order: Order) -> Outcome:
        """Do the order for its clients, a block of them at a time."""
        found = Collected(order, self._setup.aggregation)
        for start in range(0, len(order.clients), BLOCK_SIZE):
            ids = order.clients[start : start + BLOCK_SIZE]
            for index, (id, reply) in enumerate(zip(ids, self._block(order, ids), strict=True)):
                fitting = self._fitting(order, id, reply, found.first)
                if isinstance(fitting, Reply) and fitting.state is not None:
                    self._states.put(id, fitting.state)
                found.put(start + index, id, fitting)
        return found.outcome()

    def _block(self, order: Order, ids: Sequence[ClientId]) -> list[Reply | Missing]:
        dropped = frozenset(order.dropped)
        asked = [id for id in ids if id not in dropped]
        jobs = [partial(self._try_in_step, order, id) for id in asked]
        replies = dict(zip(asked, run_in_lockstep(jobs, self._serve), strict=True))
        return [replies.get(id, Missing(DROPPED_OUT)) for id in ids]

    def _fitting(
        self, order: Order, id: ClientId, reply: Reply | Missing, first: Tree
    ) -> Reply | Missing:
        """A reply that can be added to the first one, or why there is none."""
        if first is not None and isinstance(reply, Reply):
            try:
                require_fit(reply.value, first)
            except ValueError as error:
                return self._fail(order, id, error)
        return reply

    def _try_in_step(self, order: Order, id: ClientId, ask: Ask) -> Reply | Missing:
        self._ask = ask  # no other step runs before the client is made
        return self._try(order, id, None)

    def _client(
        self, id: ClientId, examples: Examples, stage_round: int, *, has_state: bool
    ) -> Client:
        return VectorClient(
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
            ask=self._ask,
        )

    def _serve(self, requests: Sequence[Request]) -> list[Any]:
        """Answer what the clients of a block ask, all requests of one kind together."""
        kinds: dict[Any, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            kinds[request.kind].append(index)
        answers: list[Any] = [ALONE] * len(requests)
        model = self._setup.model
        for indices in kinds.values():
            some: Any = [requests[i] for i in indices]
            if len(some) == 1:
                continue
            compute: Any = fit_together if isinstance(some[0], FitRequest) else logits_together
            for i, answer in zip(indices, compute(some, model, self._networks), strict=True):
                answers[i] = answer
        return answers
