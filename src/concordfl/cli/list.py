"""`concordfl list`."""

import inspect
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from ..algorithms import ALGORITHMS, ALIASES
from ..core import ANY_KIND
from ..data.datasets import DATASETS
from ..models import MODELS
from ..scenarios import NAMED, PARTITIONS, SHIFTS
from .terminal import show


class Kind(StrEnum):
    algorithms = "algorithms"
    datasets = "datasets"
    models = "models"
    scenarios = "scenarios"


def list_known(
    kind: Annotated[Kind | None, typer.Argument(help="Only one kind.", show_default=False)] = None,
) -> None:
    """Show the algorithms, data sets, models and scenarios there are."""
    for each in [kind] if kind else list(Kind):
        show(_algorithms() if each is Kind.algorithms else _descriptions(each))


def _algorithms() -> Table:
    classes_only = sorted(name for name, kind in ALGORITHMS.items() if kind.supports != ANY_KIND)
    table = Table(
        title=Kind.algorithms.value,
        title_justify="left",
        caption=(
            "cost: of a round, relative to FedAvg's; for classification alone: "
            f"{', '.join(classes_only)}, the others also for regression and several labels; also "
            f"known as: {', '.join(f'{alias} ({name})' for alias, name in ALIASES.items())}"
        ),
    )
    table.add_column("name", no_wrap=True)
    for column in ("paper", "what travels", "what stays private", "cost"):
        table.add_column(column)
    for name, algorithm in sorted(ALGORITHMS.items()):
        about = algorithm.about
        paper = f"{about.paper} {about.year or ''}"
        table.add_row(name, paper, about.travels, about.private, about.cost)
    return table


def _descriptions(kind: Kind) -> Table:
    table = Table(title=kind.value, title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for name, text in sorted(_texts(kind).items()):
        table.add_row(name, " ".join(text.split()))
    return table


def _texts(kind: Kind) -> dict[str, str]:
    """A sentence by name."""
    if kind is Kind.datasets:
        return {name: source.about for name, source in DATASETS.items()}
    if kind is Kind.models:
        return {name: inspect.getdoc(model) or "" for name, model in MODELS.items()}
    partitions = {f"partition {name}": kind.about for name, kind in PARTITIONS.items()}
    shifts = {f"shift {name}": kind.about for name, kind in SHIFTS.items()}
    mixes = {f"name {name}": "a paper's mix of partition and shifts" for name in NAMED}
    return partitions | shifts | mixes
