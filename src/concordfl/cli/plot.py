"""`concordfl plot`."""

from pathlib import Path
from typing import Annotated

import typer

from ..core import SettingError
from ..core.settings import nearest
from ..engine.files import write_atomically
from ..report import curves, make, pictures
from ..report.document import Chart
from ..study import reports
from .options import TrustOption
from .terminal import say


def plot(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a run, or of several.", show_default=False)
    ],
    figure: Annotated[
        str | None,
        typer.Argument(
            help="Which picture of the report; left out, all are named.", show_default=False
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .pdf, .svg, .png or .csv file.", show_default=False),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Draw one picture of the report for a paper, or write its numbers."""
    if out is not None and out.suffix.lower() != ".csv":
        curves.kind_of(out)  # refused before any work is done
    if (figure is None) != (out is None):
        raise SettingError("a figure must be given with --out, got only one of them")
    runs = reports.of_folders([folder], trust=trust).runs
    charts = make.charts_of(make.document(folder.name, runs))
    if figure is None or out is None:
        say(*(f"{id}: {chart['caption']}" for id, chart in charts.items()))
        return
    if figure not in charts:
        raise SettingError(
            f"a figure must be one of the report's, got {figure!r}{nearest(figure, charts)}"
        )
    write_atomically(out, _content(charts[figure], out))
    say(f"Written to {out}")


def _content(chart: Chart, out: Path) -> bytes:
    panel = make.ordered(chart)
    if out.suffix.lower() == ".csv":
        return pictures.to_csv([panel]).encode(errors="backslashreplace")
    return pictures.draw("", [panel], curves.kind_of(out))
