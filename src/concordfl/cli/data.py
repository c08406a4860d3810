"""`concordfl data list` and `concordfl data get`."""

from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich.table import Table

from ..core import DataError, SettingError
from ..core.settings import nearest
from ..data.dataset import FileSource, Form, data_folders
from ..data.datasets import DATASETS
from ..data.fetch import fetch
from ..report.tables import size
from .progress import show_download
from .terminal import console, say, show

app = typer.Typer(help="Data sets: what is here, and how to get the rest.", no_args_is_help=True)


class Presence(NamedTuple):
    """Whether a data set is on this machine, its bytes, and where it is or how to get it."""

    here: bool
    bytes: int
    where: str


@app.command("list")
def list_data() -> None:
    """Show which data sets are on this machine, where, how large, and how to get the others."""
    table = Table(title="data sets", title_justify="left")
    for column in ("name", "here", "size", "where, or how to get it"):
        table.add_column(column, overflow="fold")
    for name, presence in data_sets().items():
        here, amount = ("yes", size(presence.bytes)) if presence.here else ("no", "-")
        table.add_row(name, here, amount, presence.where)
    show(table)


@app.command("get")
def get(
    name: Annotated[str, typer.Argument(help="A data set's name.", show_default=False)],
) -> None:
    """Fetch a data set from its official home, checked and resumable."""
    if name not in DATASETS:
        raise SettingError(
            f"the data set must be a known name, got {name!r}{nearest(name, DATASETS)}"
        )
    source = DATASETS[name]
    if not source.home:
        advice = source.advice or "it needs nothing"
        raise SettingError(
            f"the data set must have a home to fetch from, got {name!r}, which has none: {advice}"
        )
    folder = data_folders(name)[0]
    for remote in source.home:
        with show_download(console, remote.address) as report:
            file = fetch(remote, folder, report)
        say(str(file))


def data_sets() -> dict[str, Presence]:
    """Every data set by name."""
    return {name: _presence(name) for name in DATASETS}


def _presence(name: str) -> Presence:
    source = DATASETS[name]()
    if not isinstance(source, FileSource):
        return Presence(True, 0, "needs no files of its own")
    try:
        form, folder = source.locate()
    except DataError:
        return Presence(False, 0, source.advice or f"`concordfl data get {name}`")
    return Presence(True, _bytes_of(form, folder), str(folder))


def _bytes_of(form: Form, folder: Path) -> int:
    entries = [folder / name for name in form.files]
    files = [file for entry in entries for file in (entry, *entry.rglob("*"))]
    return sum(file.stat().st_size for file in files if file.is_file())
