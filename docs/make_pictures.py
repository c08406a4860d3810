"""The pictures of the docs: `python docs/make_pictures.py`."""

import re
from contextlib import nullcontext
from pathlib import Path

from PIL import Image, ImageDraw
from rich.console import Console

from concordfl import Key
from concordfl.config import read_table
from concordfl.data.datasets import DATASETS
from concordfl.engine.experiment import ignore
from concordfl.report.tables import comparison_parts
from concordfl.scenarios.corruptions import CORRUPTIONS, corrupt
from concordfl.study.cells import cells
from concordfl.study.compare import compare

HERE = Path(__file__).parent


def demo(out: Path) -> None:
    """What `make demo` ends in."""
    configs = cells(
        read_table(HERE.parent / "experiments/demo.toml"),
        ["local", "fedavg", "fedavg-ft", "fedprox", "fedem", "fedconceptem"],
        [0],
    )
    compared = compare(configs, out, lambda _: nullcontext(ignore))
    with open("/dev/null", "w") as nowhere:
        console = Console(record=True, width=100, file=nowhere)
        for part in comparison_parts("demo, 1 seed", compared.figures):
            console.print(part, markup=False, highlight=False)
    svg = console.export_svg(title="make demo")
    # The picture must not fetch a font from anywhere.
    (HERE / "demo.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL))


def corruptions() -> None:
    """Every corruption at severities 1, 3 and 5, on a grey and a coloured image."""
    side, margin, label = 64, 4, 104
    pictures = [
        DATASETS[name]().load(Key(0)).test.x[index]
        for name, index in (("fashion-mnist", 1), ("cifar10", 3))
    ]
    columns = [(picture, severity) for picture in pictures for severity in (0, 1, 3, 5)]
    sheet = Image.new(
        "RGB",
        (label + len(columns) * (side + margin), (side + margin) * len(CORRUPTIONS) + 20),
        "white",
    )
    draw = ImageDraw.Draw(sheet)
    for column, (_, severity) in enumerate(columns):
        left = label + column * (side + margin)
        draw.text((left, 4), f"severity {severity}" if severity else "clean", fill="black")
    for row, name in enumerate(CORRUPTIONS):
        top = 20 + row * (side + margin)
        draw.text((4, top + side // 2 - 6), name, fill="black")
        for column, (picture, severity) in enumerate(columns):
            seen = (
                corrupt(picture[None], name, severity, Key(name).numpy())[0]
                if severity
                else picture
            )
            image = Image.fromarray(seen[..., 0] if seen.shape[2] == 1 else seen)
            sheet.paste(
                image.resize((side, side), Image.Resampling.NEAREST),
                (label + column * (side + margin), top),
            )
    sheet.save(HERE / "corruptions.png", optimize=True)


if __name__ == "__main__":
    demo(HERE.parent / "runs" / "compare-demo")
    corruptions()
