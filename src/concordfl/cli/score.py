"""`concordfl score`."""

import statistics
from pathlib import Path
from typing import Annotated

import typer

from ..core import SettingError
from ..deploy import scoring
from ..metrics import novelty
from .options import DataOption, FolderArgument, TrustOption
from .terminal import say


def score(
    folder: FolderArgument,
    data: DataOption,
    false_alarm: Annotated[
        float,
        typer.Option(
            help="The share of held-out training data that may be called novel.", min=0, max=1
        ),
    ] = 0.05,
    against: Annotated[
        Path | None,
        typer.Option(
            help="Samples known to be familiar: how well are the two told apart?",
            show_default=False,
        ),
    ] = None,
    normalise: Annotated[
        bool,
        typer.Option(
            help="With --against: bring log p(x) and log p(y|x) to 0..1, over both files, before "
            "they are added."
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="A .csv or .json file.", show_default=False)
    ] = None,
    trust: TrustOption = False,
) -> None:
    """Say how familiar samples are to a finished run, and which are unlike anything seen."""
    file = out or folder / "scores" / f"{data.stem}.csv"
    if file.suffix.lower() not in (".csv", ".json"):
        raise SettingError(f"--out must be a .csv or .json file, got {file}")
    if normalise and against is None:
        raise SettingError("--normalise needs --against, the samples to compare with, got none")
    if against is None:
        scored, familiar = scoring.score(folder, data, false_alarm, trust=trust), None
    else:
        scored, familiar = scoring.score_both(folder, data, against, false_alarm, trust=trust)
        if normalise:
            scored, familiar = scoring.normalise(scored, familiar)
    scoring.write(scored, file)
    say(f"{len(scored.score)} samples, {_verdict(scored)}")
    if familiar is not None:
        figures = novelty(familiar.score, scored.score)
        say(
            f"against {len(familiar.score)} familiar samples, {_verdict(familiar)}",
            f"AUROC {figures.auroc:.4f}, AP {figures.ap:.4f} (base rate {figures.base_rate:.4f}), "
            f"max-F1 {figures.max_f1:.4f} (of calling all familiar: {figures.base_f1:.4f})",
        )
    say(f"Written to {file}")


def _verdict(scored: scoring.Scored) -> str:
    middle = f"median score {statistics.median(scored.score):.4g}"
    if scored.novel is None:
        return f"{middle}; no verdicts, as there is no threshold from validation data"
    return (
        f"{int(scored.novel.sum())} of them novel: {middle}, threshold {scored.threshold:.4g} "
        f"at a false-alarm rate of {scored.false_alarm:g}"
    )
