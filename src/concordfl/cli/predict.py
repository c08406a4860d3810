"""`concordfl predict`."""

from pathlib import Path
from typing import Annotated

import typer

from ..core import SettingError
from ..data.text import listing
from ..deploy import predictions
from ..engine.files import file_name
from ..report.tables import headline
from .options import ClientOption, DataOption, FolderArgument, TrustOption
from .terminal import say


def predict(
    folder: FolderArgument,
    data: DataOption,
    client: ClientOption = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="A .csv file for the predictions.", show_default=False),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Predict the classes of samples, or their values, with a finished run: as one of its clients,
    or as somebody of whom nothing is known. Labels in the file are not needed; if it has them, they
    are compared.
    """
    file = out or folder / "predictions" / _name(data, client)
    if file.suffix.lower() != ".csv":
        raise SettingError(f"--out must be a .csv file, got {file}")
    found = predictions.predict(folder, data, client=client, trust=trust)
    predictions.write(found, file)
    who = "the shared model" if found.client is None else found.client
    say(f"{len(found.values)} samples, predicted by {who}")
    if found.scores is not None:
        say(f"{headline(found.scores)} on their labels")
    elif found.unknown:
        say(f"no accuracy, as the run does not know the labels {listing(found.unknown)}")
    say(f"Written to {file}")


def _name(data: Path, client: str | None) -> str:
    return file_name(data.stem if client is None else f"{data.stem} by {client}", ".csv")
