"""`concordfl adapt`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from ..deploy import newcomer
from ..deploy.kept import answer_file
from ..report.tables import headline
from .options import DataOption, FolderArgument, TrustOption
from .terminal import say


def adapt(
    folder: FolderArgument,
    data: DataOption,
    client: Annotated[
        str | None,
        typer.Option(
            "--client", help="The new client's name, instead of the file's.", metavar="NAME"
        ),
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Let a new client join a finished run. It adapts to all of its examples and can then predict;
    to say how well, it also adapts to half of them and is tested on the rest.
    """
    answer = newcomer.adapt(folder, data, client=client, trust=trust)
    name, tested = answer["client"], answer["tested_on"]
    figures = [text] if (text := headline(tested)) else []
    if "log_likelihood" in answer:
        figures += [f"log-likelihood {answer['log_likelihood']['own_weights']:.3f}"]
    say(
        f"{name}: {newcomer.sentence(answer)}",
        f"{name}: {', '.join(figures)} on {tested['examples']} {_which(answer)}",
        f"Written to {answer_file(folder, name)}",
    )


def _which(answer: Mapping[str, Any]) -> str:
    """Which examples the figures are about, and which ones what is kept is from."""
    if not answer["adapted"]["parts"]:
        return f"of its {answer['kept_from']} examples"
    return (
        f"examples, after adapting to {answer['adapted_on']} others; what is kept is adapted to "
        f"all {answer['kept_from']}"
    )
