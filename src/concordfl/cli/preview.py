"""What a run would be, without doing it: `concordfl run FILE --dry-run`."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from rich.console import RenderableType
from rich.table import Table

from .. import assemble
from ..config import Config
from ..data import Arrays, Federation
from ..data.text import listing
from ..engine.choice import Choice
from ..engine.experiment import Experiment, Turn
from ..engine.roster import Roster
from ..report.tables import size
from .data_preview import show_data

MAX_CLIENTS_SHOWN = 30
HELD_OUT_CLIENTS_SHOWN = 5  # where there are more clients than that
BARS = " ▁▂▃▄▅▆▇█"


def preview(settings: Config) -> Iterator[RenderableType]:
    """The complete configuration, features and classes, the clients and their labels, the model,
    the bytes of a round in every stage, and what a user should know of the data.
    """
    data = assemble.load_data(settings)
    federation = assemble.make_federation(settings, data)
    settings.run.cohort_size(len(federation.participants))
    model = assemble.make_model(settings, federation)
    yield settings.to_toml()
    yield from show_data(data)
    yield _clients(federation)
    yield f"{settings.model.name}: {model.num_parameters:,} parameters"
    for turn, rounds, down, up in _bytes_by_stage(settings, federation):
        span = "a round" if rounds == 1 else f"its {rounds} rounds"
        yield f"stage {turn.stage.name!r}: {size(down)} down and {size(up)} up in {span}"
    for notice in federation.notices:
        yield f"Notice: {notice}"


def _clients(federation: Federation) -> Table:
    ids = (*federation.participants, *federation.held_out)
    listed = ids
    if len(ids) > MAX_CLIENTS_SHOWN:
        listed = (
            *federation.participants[:MAX_CLIENTS_SHOWN],
            *federation.held_out[:HELD_OUT_CLIENTS_SHOWN],
        )
    table = Table(
        title=f"{len(federation.participants)} clients, {len(federation.held_out)} held out",
        title_justify="left",
    )
    for name in (
        "client",
        "train",
        "validation",
        "test",
        _targets_title(federation),
        "group",
    ):
        table.add_column(
            name,
            justify="right" if name in ("train", "validation", "test") else "left",
            no_wrap=True,
        )
    for id in listed:
        splits = federation.splits(id)
        groups = federation.groups.get(id, {})
        held_out = " (held out)" if id in federation.held_out else ""
        table.add_row(
            id + held_out,
            *(str(len(part)) for part in splits),
            _targets_of(federation, splits.train.y.numpy()),
            ", ".join(value for value in groups.values() if value != "original"),
        )
    if len(listed) < len(ids):
        table.caption = f"{len(ids) - len(listed)} more are not shown"
    return table


def _targets_title(federation: Federation) -> str:
    if federation.kind == "classification":
        return f"labels 0..{federation.num_classes - 1}"
    names = listing(federation.preprocessing.targets)
    return (
        f"labels {names}" if federation.kind == "multi-label" else f"{names}: least, middle, most"
    )


def _targets_of(federation: Federation, y: np.ndarray) -> str:
    """A client's targets in a few characters."""
    if federation.kind == "classification":
        return histogram(np.bincount(y, minlength=federation.num_classes))
    if federation.kind == "multi-label":
        return histogram(y.sum(axis=0).astype(int))
    ranges = [values[::2] for values in federation.quantiles(y).values()]  # 0, a half and 1
    return "; ".join(" ".join(f"{value:.6g}" for value in values) for values in ranges)


def histogram(counts: np.ndarray) -> str:
    """A bar per label; a dot where there is none."""
    heights = np.ceil(counts / max(counts.max(), 1) * (len(BARS) - 1)).astype(int)
    return "".join(BARS[height] if height else "·" for height in heights)


def _bytes_by_stage(
    settings: Config, federation: Federation
) -> Iterator[tuple[Turn, int, int, int]]:
    """Counted, not calculated: played with two examples per client, preparing stages whole, of the
    others the first round.
    """
    small = _two_examples_each(federation)
    model = assemble.make_model(settings, small)
    setup = assemble.make_setup(settings, model, assemble.make_objective(settings, federation))
    plan = replace(settings.run, dropout=0.0, client_states="memory")
    executor = Choice("serial", 1, "a preview").make(setup, small, plan, None)
    experiment = Experiment(setup, Roster.from_federation(small, setup), plan, executor)
    progress = experiment.start()
    for _, group in itertools.groupby(experiment.turns, lambda turn: turn.stage.name):
        turns = list(group)
        played = turns if turns[0].stage.prepares else turns[:1]
        before = replace(progress.traffic)
        for turn in played:
            experiment.play(turn, progress)
        yield (
            turns[0],
            len(played),
            progress.traffic.down - before.down,
            progress.traffic.up - before.up,
        )


def _two_examples_each(federation: Federation) -> Federation:
    def cut(id: str) -> Any:
        x, y = federation.splits(id).train.x[:2].numpy(), federation.splits(id).train.y[:2].numpy()
        return Arrays(x, y), Arrays(x[:0], y[:0]), Arrays(x[:0], y[:0])

    made = Federation.build(
        {id: cut(id) for id in federation.participants},
        {},
        federation.num_classes,
        preprocessing=federation.preprocessing,
    )
    return made.with_pooled_client() if federation.pooled_id is not None else made
