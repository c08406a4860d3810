"""`concordfl diagnose`."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import config as configuration
from ..core import SettingError
from ..diagnosis.recommend import PURPOSES, sentences
from ..diagnosis.run import QUESTIONS, Diagnosis, data_settings
from ..diagnosis.run import diagnose as diagnose_source
from ..engine.records import DIAGNOSIS_FILE
from ..report.tables import size
from .options import ExecutorOption, SeedOption, SetOption, assignments
from .terminal import say, show

MAX_CLIENTS_SHOWN = 20


def diagnose(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DATA|RUN.toml",
            help="A run file, a table (.csv), a folder of clients' files, or a data set's name.",
            show_default=False,
        ),
    ],
    client: Annotated[
        str | None,
        typer.Option(help="The column of a table that says whose each row is.", show_default=False),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="The column of labels.", show_default=False)
    ] = None,
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    out: Annotated[
        Path | None, typer.Option(help=f"A folder for {DIAGNOSIS_FILE}.", show_default=False)
    ] = None,
    seed: SeedOption = None,
    executor: ExecutorOption = None,
    dimensions: Annotated[int | None, typer.Option(help="Of the features.", min=1)] = None,
    max_groups: Annotated[
        int | None, typer.Option(help="The largest number of concept groups to try.", min=2)
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(help="The share of further examples that counts as another concept.", min=0),
    ] = None,
) -> None:
    """Say how clients' data differ: in labels, concept, features and amount."""
    found = diagnose_source(
        _table(source, client, label, assignments(set, seed=seed, executor=executor)),
        out=out,
        dimensions=dimensions,
        max_groups=max_groups,
        margin=margin,
    )
    show(_answers(found))
    say(*found.sentences)
    show(_recommendation(found))
    say(*sentences(found.recommendation))
    show(_clients(found))
    traffic = found.content["traffic"]
    say(
        f"A client has sent {size(traffic['up_per_client'])} and received "
        f"{size(traffic['down_per_client'])}; {found.content['seconds']:.1f} s"
    )
    if out is not None:
        say(f"Written to {out / DIAGNOSIS_FILE}")


def _table(source: str, client: str | None, label: str | None, given: list[str]) -> dict[str, Any]:
    if Path(source).suffix.lower() != ".toml":
        return configuration.override(data_settings(source, client, label), given)
    if client is not None or label is not None:
        raise SettingError(f"--client and --label must go with a table, got the run file {source}")
    return configuration.override(configuration.read_table(Path(source)), given)


def _answers(found: Diagnosis) -> Table:
    table = Table(title="do clients differ?", title_justify="left")
    for column in ("in", "answer", "effect", "p", "effect is"):
        table.add_column(column, overflow="fold")
    for name in QUESTIONS:
        own = found[name]
        p = "" if name == "amount" else f"{own['p']:.2g}"
        table.add_row(
            name, "yes" if own["differs"] else "no", f"{own['effect']:.3f}", p, own["effect_is"]
        )
    return table


def _recommendation(found: Diagnosis) -> Table:
    table = Table(title="what to run", title_justify="left")
    for column in ("for", "method", "settings", "points behind the best"):
        table.add_column(column)
    for purpose in PURPOSES:
        for one in found.recommendation[purpose]["methods"]:
            settings = ", ".join(f"{name} = {value}" for name, value in one["settings"].items())
            table.add_row(purpose, one["method"], settings, f"{one['behind']:.1f}")
    return table


def _clients(found: Diagnosis) -> Table:
    lines = found.content["clients"]
    title = "clients"
    if len(lines) > MAX_CLIENTS_SHOWN:
        title += f": {MAX_CLIENTS_SHOWN} of {len(lines):,}"
    table = Table(title=title, title_justify="left")
    for column in ("client", "examples", "labels away", "group", "sure", "features p", "mostly in"):
        table.add_column(column)
    for id, line in list(lines.items())[:MAX_CLIENTS_SHOWN]:
        stands_out = line["features_p"] <= 0.05
        table.add_row(
            id,
            f"{line['size']:,}",
            f"{line['label_distance']:.2f}",
            str(line["group"]),
            f"{line['sure']:.2f}",
            f"{line['features_p']:.2g}",
            ", ".join(line["top_features"]) if stands_out else "",
        )
    return table
