"""The pictures of the docs: `python docs/make_pictures.py`."""

import re
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
    svg = console.export_svg(title="make demo")
    # The picture must not fetch a font from anywhere.
    (HERE / "demo.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    demo(HERE.parent / "runs" / "compare-demo")
