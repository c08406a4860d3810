"""Who takes part in a run, as they have introduced themselves; kept in its federation.json."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ...assemble import objective_from, require_support
from ...config import Config
from ...core import ClientId, FormatError, Objective, SettingError, Task
from ...core.objective import objective_of
from ...data.federation import balanced_weights
from ...data.preprocessing import Preprocessing
from ..files import canonical_json
from ..roster import Roster
from ..setup import Setup
from .parcel import Card


class Members(NamedTuple):
    """The clients of a run, which read their examples alike."""

    run_id: str
    cards: Mapping[ClientId, Card]  # in the order of names
    preprocessing: Preprocessing
    objective: Objective
    labels: Mapping[ClientId, list[int] | None]  # counts that clients share

    @classmethod
    def agree(cls, run_id: str, cards: Mapping[ClientId, Card], settings: Config) -> "Members":
        """Clients who know already how examples are read, which must be alike; one that does not
        fit is refused by name.
        """
        first = next(iter(cards))
        for id, card in cards.items():
            if canonical_json(card.preprocessing) != canonical_json(cards[first].preprocessing):
                raise SettingError(
                    f"all clients must read their examples alike, got client {id!r} that differs "
                    f"from {first!r}"
                )
        preprocessing = Preprocessing.from_record(cards[first].preprocessing)
        labels = {id: card.labels for id, card in cards.items()}
        return cls.of(run_id, cards, preprocessing, labels, settings)

    @classmethod
    def of(
        cls,
        run_id: str,
        cards: Mapping[ClientId, Card],
        preprocessing: Preprocessing,
        labels: Mapping[ClientId, list[int] | None],
        settings: Config,
    ) -> "Members":
        """Clients who read their examples so."""
        require_support(settings.algorithm, preprocessing.kind)
        settings.objective.refuse_unused(preprocessing.kind)
        weights = None
        if settings.objective.class_weights == "balanced":
            weights = balanced_weights(_label_counts(labels, len(preprocessing.classes)))
        objective = objective_from(settings.objective, preprocessing, weights)
        return cls(run_id, dict(cards), preprocessing, objective, dict(labels))

    @property
    def agreed(self) -> dict[str, Any]:
        """What orders must tell clients with files of their own."""
        has_looks = any(card.look is not None for card in self.cards.values())
        return self.preprocessing.to_record() if has_looks else {}

    @property
    def objective_table(self) -> tuple[str, dict[str, Any]]:
        return self.objective.kind, self.objective.to_table()

    @property
    def without_test(self) -> int:
        return sum(not card.sizes["test"] for card in self.cards.values())

    def roster(self, setup: Setup) -> Roster:
        ids, data = tuple(self.cards), self.preprocessing
        task = Task(setup.model, self.objective, data.input_shape, data.scale)
        sizes = {id: card.sizes["train"] for id, card in self.cards.items()}
        return Roster(ids, (), ids, task, {}, sizes)

    # --- federation.json --------------------------------------------------------------------------

    def to_facts(self, identity: Mapping[str, str], source: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "identity": dict(identity),
            "source": source,
            "num_classes": self.objective.num_classes,
            "input_shape": list(self.preprocessing.input_shape),
            "clients": [
                {
                    **{"id": id, "held_out": False, **card.sizes, "labels": self.labels[id]},
                    **{"groups": {}, "look": card.look},
                }
                for id, card in self.cards.items()
            ],
            "run_id": self.run_id,
            "preprocessing": self.preprocessing.to_record(),
            "objective": list(self.objective_table),
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> "Members":
        """What `to_facts` gave, as a sealed file has it."""
        match facts:
            case {
                "clients": list(clients),
                "run_id": str(run_id),
                "preprocessing": dict(record),
                "objective": [kind, table],
            }:
                cards = {client["id"]: _card(client, record) for client in clients}
                labels = {client["id"]: client["labels"] for client in clients}
                read, objective = Preprocessing.from_record(record), objective_of(kind, table)
                return cls(run_id, cards, read, objective, labels)
        raise FormatError("federation.json must name the members of a federation, got others")


def _label_counts(labels: Mapping[ClientId, list[int] | None], num_classes: int) -> np.ndarray:
    """(clients, classes), of clients that share them all."""
    for id, counts in labels.items():
        if counts is None or len(counts) != num_classes:
            raise SettingError(
                "objective.class_weights = 'balanced' needs clients that share labels, got client "
                f"{id!r} that does not"
            )
    return np.array(list(labels.values()))


def _card(client: Mapping[str, Any], record: dict[str, Any]) -> Card:
    """As the client has introduced itself."""
    sizes = {name: client[name] for name in ("train", "validation", "test")}
    if client.get("look") is not None:
        return Card(client["id"], sizes, {}, look=client["look"])
    return Card(client["id"], sizes, record, client["labels"])
