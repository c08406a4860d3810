"""Workplace: where one process does clients' work: examples, one resident model, memos."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...core import (
    Client,
    ClientId,
    ClientStepError,
    Examples,
    Model,
    SettingError,
    Training,
    Tree,
    tree,
)
from ...data import Federation, Splits
from .job import NO_VISIT, NOTHING, Task, TreeSum, Visit


class Workplace:
    def __init__(self, model: Model, federation: Federation, training: Training, seed: int) -> None:
        self._model, self._federation, self._training, self._seed = (
            model,
            federation,
            training,
            seed,
        )
        # By client: the phase of its data that the memos are of, and one memo per split.
        self._memos: dict[ClientId, tuple[int, dict[str, dict[str, Any]]]] = {}
        self._published: dict[str, Tree] = {}

    def publish(self, name: str, data: bytes) -> None:
        if name in self._published:
            # whatever was derived may have been derived from the older publication
            self._memos.clear()
        self._published[name] = tree.unpack(data)

    def visit(self, task: Task, id: ClientId, state: bytes | None, message: Tree) -> Visit:
        """Do `task` for one client."""
        splits = self._splits(id, task.round)
        client = Client(
            id,
            splits.train,
            num_classes=self._federation.num_classes,
            model=self._model,
            training=self._training,
            seed=self._seed,
            round=task.stage_round,
            published=self._get_published,
        )
        before = None if state is None else tree.unpack(state)
        try:
            after, reply = task.call(client, splits, before, message)
            reply = tree.normal(reply)
            refused = task.refuse_non_finite and not (
                tree.is_finite(reply) and tree.is_finite(after)
            )
            packed = None if refused or (state is None and not after) else tree.pack(after)
            packed = None if packed == state else packed
        except Exception as error:
            where = f"client {id!r}, stage {task.stage!r}, step {task.step!r}, round {task.round}"
            raise ClientStepError(f"{where}: {type(error).__name__}: {error}") from error
        return Visit(
            reply, tree.num_bytes(reply), packed, refused, any(self._memos[id][1].values())
        )

    def visit_all(
        self,
        task: Task,
        ids: Sequence[ClientId | None],
        states: Iterable[bytes | None],
        messages: Iterable[Tree],
        additive: bool,
        keep: Callable[[ClientId, bytes], None] | None = None,
    ) -> tuple[Any, list[Visit]]:
        """Do `task` for several clients: the sum of their replies (or all of them), and the visits
        without replies.

        With `keep`, changed states are given to it one by one instead of coming back with the
        visits.
        """
        total, replies, visits = TreeSum(len(ids)), {}, []
        for place, (id, state, message) in enumerate(zip(ids, states, messages, strict=True)):
            visit = NO_VISIT if id is None else self.visit(task, id, state, message)
            if id is None or visit.refused:
                total.put(place, NOTHING)
            elif additive:
                total.put(place, visit.reply)
            else:
                replies[id] = visit.reply
            if keep is not None and id is not None and visit.state is not None:
                keep(id, visit.state)
                visit = visit._replace(state=None)
            visits.append(visit._replace(reply=None))
        return (total.total if additive else replies), visits

    def _splits(self, id: ClientId, round: int) -> Splits:
        splits = self._federation.splits(id, round)
        phase = self._federation.phase(id, round)
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
