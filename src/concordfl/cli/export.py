"""`concordfl export`."""

from pathlib import Path
from typing import Annotated

import typer

from ..deploy import export as exporting
from ..deploy.finished import FinishedRun
from .options import ClientOption, FolderArgument, TrustOption
from .terminal import say


def export(
    folder: FolderArgument,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="A .safetensors, .onnx or .pt2 file.", show_default=False),
    ],
    client: ClientOption = None,
    trust: TrustOption = False,
) -> None:
    """Write what a finished run predicts with to a file that needs no concordfl: from examples in
    their own units to probabilities.
    """
    exporting.write(FinishedRun.open(folder, trust=trust), out, client)
    say(f"Written to {out}")
