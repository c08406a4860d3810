"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from ..algorithms import ALGORITHMS
from ..by_name import METHODS, registered, require_method
from ..core import SettingError
from ..core.own_code import check_name, names_own_code
from ..core.settings import nearest
from ..diagnosis import auto
from ..track import TRACKERS, Tracker, by_names

AlgorithmsOption = Annotated[
    str,
    typer.Option(
        help="Names, or your own as package.module:Class, separated by commas.",
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; may be repeated."),
]
OutOption = Annotated[Path | None, typer.Option("--out", help="A new folder for the results.")]
SeedsOption = Annotated[
    int, typer.Option(min=1, max=1000, help="How many seeds, counted from run.seed.")
]
SeedOption = Annotated[int | None, typer.Option("--seed", help="Override run.seed.")]
ExecutorOption = Annotated[
    str | None,
    typer.Option(
        "--executor", help="Override run.executor: auto, serial, vectorized, processes or ray."
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Override run.ray_address: a Ray cluster that this machine is part of, or auto.",
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", help="Override run.device: auto, cpu, cuda or mps.")
]
KeepOption = Annotated[
    bool, typer.Option("--keep", help="Keep results that took long beside the run file.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Compute all anew, whatever results are kept.")
]
GridOption = Annotated[
    list[str],
    typer.Option(
        "--grid",
        metavar="SECTION.KEY=VALUE,VALUE,...",
        help="Values to try of a setting in training, aggregation or algorithm; repeated, every "
        "combination. By default training.lr times 1/10, 1/3, 1, 3 and 10.",
        show_default=False,
    ),
]
TrackOption = Annotated[
    str | None,
    typer.Option(
        "--track",
        metavar="NAME,...",
        help=f"Write settings and figures for other tools too: {', '.join(TRACKERS)}.",
        show_default=False,
    ),
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Run code that is not concordfl's: a model, method or embedding package.module:name "
        "in the folder's settings.",
    ),
]
FolderArgument = Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)]
DataOption = Annotated[
    Path,
    typer.Option("--data", help="Examples: .npz, .csv or a folder of images.", show_default=False),
]
ClientOption = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="NAME",
        help="A client of the run, or one that has adapted to it; left out, somebody unknown.",
        show_default=False,
    ),
]
RunFile = Annotated[Path, typer.Argument(help="A run file in TOML.", show_default=False)]


def assignments(
    given: list[str],
    *,
    seed: int | None = None,
    executor: str | None = None,
    ray_address: str | None = None,
    device: str | None = None,
) -> list[str]:
    """What `--set` and the options for single settings override, in the form of `--set`."""
    options = {"seed": seed, "executor": executor, "ray_address": ray_address, "device": device}
    return given + [f"run.{key}={value!r}" for key, value in options.items() if value is not None]


def trackers(names: str | None) -> list[Tracker]:
    """Those that `--track` names."""
    return [] if names is None else by_names(names)


def known_names(algorithms: str) -> list[str]:
    """The methods that `--algorithms` names."""
    return [known_name(name.strip(), "--algorithms") for name in algorithms.split(",")]


def known_name(name: str, option: str) -> str:
    name, one_run = registered(name), option == "--algorithm"
    if names_own_code(name):
        check_name(name, option)
        return name
    if name == auto.NAME and not one_run:
        require_method(auto.Auto())
    known = METHODS if one_run else ALGORITHMS
    if name not in known:
        rule = "a known name" if one_run else "known names"
        raise SettingError(f"{option} must be {rule}, got {name!r}{nearest(name, known)}")
    return name
