"""A report as data: what the page shows, and what `concordfl plot` draws for a paper.

Sections make it (`report.sections`), the page shows it (`report.page`). All text is text: the page
never reads any of it as HTML.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from .pictures import Panel

Cell = str | float | None


class Strip(TypedDict):
    """A column of colours beside the lines of a heat map: a group for each of them."""

    name: str
    values: Sequence[str | None]


class Chart(TypedDict):
    id: str  # unique in a document, and the name of downloaded files: "convergence-rounds"
    caption: str  # what one sees, in a sentence
    panel: Panel
    orders: NotRequired[Mapping[str, Sequence[int]]]  # of a heat map's lines, the first shown first
    strips: NotRequired[Sequence[Strip]]


class Column(TypedDict):
    name: str
    kind: Literal["text", "number"]
    digits: NotRequired[int]  # of numbers, after the point
    best: NotRequired[Literal["highest", "lowest"]]  # which of the numbers is emphasised


class Table(TypedDict):
    """Sorted by a click on a column's name."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


class Image(TypedDict):
    png: str  # base64
    caption: str


class Gallery(TypedDict):
    title: str
    images: Sequence[Image]


class View(TypedDict):
    """One of several things that a section can show: a run, or what is on an axis."""

    name: str
    charts: Sequence[Chart]
    tables: NotRequired[Sequence[Table]]
    galleries: NotRequired[Sequence[Gallery]]


class Section(TypedDict):
    id: str
    title: str
    lead: str  # what the data say, in a sentence or two
    views: Sequence[View]  # one is shown; a reader chooses which


class Absent(TypedDict):
    """A section that these runs do not have, and why."""

    title: str
    reason: str


class Weights(TypedDict):
    """How much each client uses each model of a method."""

    models: Sequence[str]
    values: Sequence[Sequence[float] | None]  # by client


class ClientsOfRun(TypedDict):
    """What a run has to say of every client; None where it says nothing of one."""

    row: str  # the method, with settings that were varied
    seed: int
    scores: Sequence[float | None]  # by the criterion, on the client's test examples
    found: Sequence[str | None]  # the group that the method has put it into
    sure: Sequence[float | None]  # the weight of that group, from 0 to 1
    weights: Weights | None
    novelty: Sequence[float | None]  # mean log-likelihood of its test examples


class Clients(TypedDict):
    """Every client, column by column, in the same order throughout."""

    id: Sequence[str]
    held_out: Sequence[bool]
    train: Sequence[int]
    validation: Sequence[int]
    test: Sequence[int]
    true_groups: Mapping[str, Sequence[str | None]]  # by kind: "concept", "partition"
    classes: Sequence[str]  # empty where labels are no classes
    label_shares: Sequence[Sequence[float]]  # of training examples, by client
    apart: Sequence[str]  # what sets it apart, in a sentence
    verdict: Sequence[str]  # whether it is familiar or novel, in a sentence; "" where nothing tells
    diagnosed: Sequence[str]  # what `diagnose` says of it; "" where it says nothing
    runs: Sequence[ClientsOfRun]
    criterion: str  # the name of the scores
    is_share: bool  # scores are shares, and shown in percent
    higher_is_better: bool
    alone: str | None  # the row that trains alone, whom gains are measured against
    averaged: str | None  # the row of FedAvg, likewise


class Repeat(TypedDict):
    """How a run is done again."""

    name: str
    command: str
    config: str  # TOML
    versions: Mapping[str, str]


class Document(TypedDict):
    title: str
    headline: str
    sentences: Sequence[str]
    facts: Mapping[str, str]  # name and value: "clients": "24", "seeds": "3"
    warnings: Sequence[str]
    sections: Sequence[Section]
    clients: Clients | None
    absent: Sequence[Absent]
    repeat: Sequence[Repeat]
    made: str  # by which version, and when
