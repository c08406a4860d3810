"""A client whose data are its own folder: what it tells the others to agree how examples are read,
and its examples as agreed. Its rows stay here.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...assemble import federation_key
from ...config import Config
from ...core import ClientId, SettingError
from ...core.settings import received
from ...data import Arrays, ArraySplits, Dataset, Federation, Preprocessing
from ...data.agreement import READING, from_record, to_record
from ...data.columns import indicators
from ...data.datasets import DATASETS
from ...data.federation import count_labels
from ...data.own import Folder
from ...data.own_client import (
    UnfitFolderError,
    encode_part,
    find_file,
    look_at,
    notices_of,
    read_part,
    rows_of,
    values_in,
)
from ...data.standardise import Moments
from ...scenarios.build import split_alone
from ...scenarios.partition import Natural
from .client_store import Refused
from .parcel import Answer, Card, Request

# Questions, in the order in which they are asked; the last one only says that somebody did not fit.
VALUES, SUMS, REFUSED = "values", "sums", "refused"
# Settings of data that are about all examples together.
OF_ALL_EXAMPLES = ("without", "limit", "test_limit", "pool_test", "copies")

log = logging.getLogger(__name__)


def require_own_folders(settings: Config) -> Folder:
    """The source of data of a run whose clients have folders of their own; settings that only make
    sense where all examples are in one place are refused.
    """
    source, scenario = settings.data, settings.scenario
    if not isinstance(source, Folder):
        found = next(name for name, kind in DATASETS.items() if type(source) is kind)
        raise SettingError(
            "data must be given as folder = ... in the run file where clients have folders of "
            f"their own, got {found!r}"
        )
    if not isinstance(scenario.partition, Natural) or scenario.shifts:
        changes = (scenario.partition, *scenario.shifts)
        kind = next(type(each).__name__ for each in changes if not isinstance(each, Natural))
        raise SettingError(
            "scenario must leave clients' examples as and where they are where clients have "
            f"folders of their own, got {kind}"
        )
    unused = {
        f"data.{name}": getattr(source, name)
        for name in OF_ALL_EXAMPLES
        if getattr(source, name) != getattr(Folder, name)
    }
    if scenario.hold_out:
        unused["scenario.hold_out"] = scenario.hold_out
    if unused:
        name, value = next(iter(unused.items()))
        raise SettingError(
            f"{name} must be left out where clients have folders of their own, got "
            f"{received(value)}"
        )
    return source


@dataclass(frozen=True)
class OwnFolder:
    """The client of such a folder in a run."""

    settings: Config
    name: ClientId
    folder: Path
    shares: frozenset[str]  # what the server may know

    def answer(self, request: Request) -> Answer:
        """What comes before any order."""
        try:
            if not request.question:
                return Answer(card=self.introduce())
            return Answer(told=self.tell(request.question, request.agreed))
        except (UnfitFolderError, SettingError) as error:
            raise self._refused(error) from None

    def federation(self, agreed: dict[str, Any]) -> Federation:
        """The client's examples, read as all have agreed."""
        if not agreed:
            raise Refused("an order must say how examples are read, got nothing")
        read = Preprocessing.from_record(agreed)
        try:
            prepared = self._encoded(read).map(read.standardise)
        except UnfitFolderError as error:
            raise self._refused(error) from None
        return Federation.build({self.name: prepared}, {}, len(read.classes), preprocessing=read)

    def _refused(self, error: Exception) -> Refused:
        return Refused(f"client {self.name!r}: {error}")

    # --- what it tells ----------------------------------------------------------------------------

    def introduce(self) -> Card:
        source = require_own_folders(self.settings)
        part = read_part(source, find_file(self.folder), self.name)
        for notice in notices_of(part):
            log.warning("%s", notice)
        splits = self._split(rows_of(source, part, self.name))
        if not len(splits.train.y):
            raise UnfitFolderError("a client must have at least one training example, got none")
        look = look_at(source, part, self.settings.objective.kind)
        sizes = {name: len(each.y) for name, each in splits._asdict().items()}
        return Card(self.name, sizes, {}, look=to_record(look))

    def tell(self, question: str, agreed: dict[str, Any]) -> dict[str, Any]:
        if question == VALUES:
            return self._values(agreed)
        if question == SUMS:
            return self._sums(Preprocessing.from_record(agreed))
        if question == REFUSED:
            log.warning("the run does not begin: %s", received(agreed.get("why")))
            return {}
        raise Refused("a question must be one of the agreement's, got another")

    def _values(self, agreed: dict[str, Any]) -> dict[str, Any]:
        source, reading = require_own_folders(self.settings), from_record(READING, agreed)
        part = read_part(source, find_file(self.folder), self.name, reading.texts)
        # What a user calls classes are classes, as many as there are.
        with_texts = reading.has_text_targets or self.settings.objective.kind != "auto"
        is_for_classes = reading.kind == "classification"
        values = values_in(part, reading.examples, classes=is_for_classes, with_texts=with_texts)
        return to_record(values)

    def _sums(self, read: Preprocessing) -> dict[str, Any]:
        """Of the training examples: nothing of one of them, unless it is the only one."""
        train = self._encoded(read).train
        counts = count_labels(train.y, read.kind, len(read.classes))
        is_regression = read.kind == "regression"
        return {
            "x": _tensors(_input_sums(train, read)) if self.settings.data.standardise else None,
            "y": _tensors(Moments.of_targets(train)) if is_regression else None,
            "labels": counts if "labels" in self.shares else None,
        }

    # --- its examples -----------------------------------------------------------------------------

    def _encoded(self, read: Preprocessing) -> ArraySplits:
        source = require_own_folders(self.settings)
        return self._split(encode_part(source, find_file(self.folder), self.name, read))

    def _split(self, data: Dataset) -> ArraySplits:
        key = federation_key(self.settings)
        return split_alone(self.name, data, self.settings.scenario, key)


def _input_sums(train: Arrays, read: Preprocessing) -> Moments:
    """Categories are not standardised: their sums would only tell how often each occurs."""
    moments = Moments.of_inputs(train)
    return moments.hidden(indicators(read.columns)) if read.columns else moments


def _tensors(moments: Moments) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(part) for name, part in moments._asdict().items()}
