"""What one client's encoder knows of another's task: tables 6 and 7 of the FedConcat paper.

    python experiments/fedconcat/encoders.py [--set SECTION.KEY=VALUE ...] [--keep] [--fresh]

Trains the clients of fmnist_encoders.toml alone (in runs/), and prints the losses of a linear
classifier and of a decoder on the frozen encoders of the first two: on each client's own images
under its own and the other's encoder, and on both clients' images under either encoder, under their
average, and under both side by side. Smaller is better. Figures that are kept beside the run file
are not computed again, unless with --fresh; --keep adds to them.
"""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from concordfl import config as configuration
from concordfl.cli import FreshOption, KeepOption, SetOption, script
from concordfl.study.cells import cells
from concordfl.study.encoders import EncoderTables, encoder_tables
from concordfl.study.measure import measure

RUN_FILE = Path(__file__).parent / "fmnist_encoders.toml"
# as the paper prints them: classification and reconstruction
PAPER = {
    "f_e1, own": (0.0235, 0.0646),
    "f_e1, exchanged": (0.2345, 0.0657),
    "f_e2, own": (0.0007, 0.0796),
    "f_e2, exchanged": (0.0292, 0.0816),
    "f_e1": (0.0810, 0.0817),
    "f_e2": (0.2456, 0.0823),
    "f_avg": (0.1072, 0.0850),
    "f_e": (0.0493, 0.0819),
}


def main(
    set: SetOption = [],  # noqa: B006 - typer reads the default and never changes it
    keep: KeepOption = False,
    fresh: FreshOption = False,
) -> None:
    given = configuration.override(configuration.read_table(RUN_FILE), set)
    seed = given["run"]["seed"]
    measured = measure(
        cells(given, ["local"], [seed]),
        RUN_FILE,
        "encoders",
        EncoderTables,
        encoder_tables,
        keep=keep,
        fresh=fresh,
    )
    found = measured.figures["local", seed]
    console = Console(width=120)
    for client, classes in found["classes"].items():
        console.print(f"{client} has the classes {', '.join(map(str, classes))}", highlight=False)
    for title, rows in (
        ("Table 6: a client's images under its own and the other's encoder", found["exchange"]),
        ("Table 7: both clients' images", found["together"]),
    ):
        table = Table(title=title, title_justify="left")
        table.add_column("encoder")
        for column in ("classification loss", "paper", "reconstruction loss", "paper"):
            table.add_column(column, justify="right")
        for name, losses in rows.items():
            pairs = zip(losses.values(), PAPER[name], strict=True)
            table.add_row(name, *(f"{value:.4f}" for pair in pairs for value in pair))
        console.print(table)
    for note in measured.notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


if __name__ == "__main__":
    script(main)
