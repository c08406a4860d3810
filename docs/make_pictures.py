"""The pictures of the docs: `python docs/make_pictures.py`."""

from contextlib import nullcontext
from pathlib import Path

from rich.console import Console

from concordfl import compare
from concordfl.config import read_table
from concordfl.engine.experiment import ignore
from concordfl.report.tables import comparison_table

HERE = Path(__file__).parent


def demo(out: Path) -> None:
    """What `make demo` ends in."""
    cells = compare.cells(read_table(HERE.parent / "experiments/demo.toml"), ["local", "fedavg", "fedavg-ft", "fedprox"], [0])
    summaries = compare.compare(cells, out, lambda _: nullcontext(ignore))
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=104, file=nowhere)
        console.print(comparison_table("demo, 1 seed, after the last round (percent)", summaries))
    console.save_svg(str(HERE / "demo.svg"), title="make demo")


if __name__ == "__main__":
    demo(HERE.parent / "runs" / "compare-demo")
