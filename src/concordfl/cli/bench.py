"""`concordfl bench`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from ..core import SettingError
from ..report.curves import require_matplotlib
from .progress import show_steps
from .results import stoppable
from .signals import quiet_interrupts
from .terminal import complain, console, say, show

if TYPE_CHECKING:  # what other commands do without is imported where it is used
    from ..bench.findings import Cell, Findings, FindingsTable
    from ..bench.turns import Report

app = typer.Typer(
    help="How fast it is on this machine, which should have no other work meanwhile.",
    no_args_is_help=True,
)

RepeatsOption = Annotated[
    int, typer.Option("--repeats", min=1, max=1000, help="How often everything is timed.")
]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Small sizes, to try it out: the figures mean nothing.")
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="A folder for the figures as JSON and CSV, and for a picture.",
        show_default=False,
    ),
]
MethodsOption = Annotated[
    str | None,
    typer.Option(
        "--algorithms", help="Only these, separated by commas; all if left out.", show_default=False
    ),
]
VenvsOption = Annotated[
    Path | None,
    typer.Option(
        "--venvs",
        help="Where the libraries' environments are kept; by default in ~/.cache/concordfl/bench.",
        show_default=False,
    ),
]


@app.command()
def speed(repeats: RepeatsOption = 5, quick: QuickOption = False, out: OutOption = None) -> None:
    """FedAvg beside bare PyTorch loops, and how long a start takes."""
    with quiet_interrupts():
        from ..bench.speed import count_steps, measure_speed

    with _measuring("speed", count_steps(repeats), out) as report:
        findings = measure_speed(repeats, quick=quick, report=report)
    _present(findings, out)


@app.command()
def methods(
    repeats: RepeatsOption = 5,
    quick: QuickOption = False,
    out: OutOption = None,
    algorithms: MethodsOption = None,
) -> None:
    """Seconds and bytes of every method's rounds, beside the cost that `list` claims."""
    with quiet_interrupts():
        from ..algorithms import ALGORITHMS
        from ..bench.methods import count_steps, measure_methods

    names = _names(algorithms, tuple(ALGORITHMS), "names of concordfl's own methods")
    with _measuring("methods", count_steps(repeats, names), out) as report:
        findings = measure_methods(repeats, quick=quick, report=report, names=names)
    _present(findings, out)


@app.command()
def scale(
    repeats: RepeatsOption = 5,
    quick: QuickOption = False,
    out: OutOption = None,
    algorithms: MethodsOption = None,
) -> None:
    """100,000 clients beside 2,000: seconds, memory and disk; and a folder of 10,000 files."""
    with quiet_interrupts():
        from ..bench.scale import METHODS, count_steps, measure_scale

    names = _names(algorithms, METHODS, f"of {', '.join(METHODS)}")
    with _measuring("scale", count_steps(repeats, names), out) as report:
        findings = measure_scale(repeats, names=names, quick=quick, report=report)
    _present(findings, out)


@app.command()
def peers(
    repeats: RepeatsOption = 5,
    quick: QuickOption = False,
    out: OutOption = None,
    venvs: VenvsOption = None,
) -> None:
    """The same work by pfl and by Flower's simulation, each installed in an environment of its
    own.
    """
    with quiet_interrupts():
        from ..bench.peers import compare_peers, count_steps
        from ..bench.venvs import default_folder

    kept = default_folder() if venvs is None else venvs.absolute()
    say(f"The libraries' environments are kept in {kept}")
    with _measuring("peers", count_steps(repeats), out) as report:
        findings = compare_peers(repeats, quick=quick, venvs=kept, report=report)
    _present(findings, out)


def _names(given: str | None, allowed: Sequence[str], rule: str) -> Sequence[str]:
    from .options import known_names

    names = allowed if given is None else known_names(given)
    others = [name for name in names if name not in allowed]
    if others:
        raise SettingError(f"--algorithms must be {rule}, got {', '.join(others)}")
    return names


@contextmanager
def _measuring(name: str, steps: int, out: Path | None) -> "Iterator[Report]":
    """What can be refused is refused before any work is done; Ctrl-C leaves nothing behind."""
    from ..bench.turns import busy_warning

    if out is not None:
        require_matplotlib()
        if out.exists() and not out.is_dir():
            raise SettingError(f"--out must be a folder, got the file {out}")
    warning = busy_warning()
    if warning is not None:
        complain(warning)
    with stoppable(None), show_steps(console, f"bench {name}", steps) as report:
        yield report


def _present(findings: "Findings", out: Path | None) -> None:
    for table in findings.tables:
        show(_rendered(table, findings.repeats))
    say(*findings.notes)
    if out is not None:
        files = findings.write(out)
        say(f"Written to {', '.join(str(file) for file in files)}")


def _rendered(found: "FindingsTable", repeats: int) -> Table:
    caption = f"medians of {repeats} repeats" if repeats > 1 else "of one repeat"
    table = Table(title=found.title, title_justify="left", caption=caption)
    for number, column in enumerate(found.columns):
        is_text = any(isinstance(row[number], str) for row in found.rows)
        table.add_column(column, justify="left" if is_text else "right")
    for row in found.rows:
        table.add_row(*(_text(cell) for cell in row))
    return table


def _text(cell: "Cell") -> str:
    if cell is None:
        return ""
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
