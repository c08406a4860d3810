"""The pictures of the docs: `python docs/make_pictures.py`."""

import io
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from concordfl import Key
from concordfl.data.datasets import DATASETS
from concordfl.scenarios.corruptions import CORRUPTIONS, corrupt

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from report.conftest import start_chromium  # noqa: E402

SECONDS_TO_DRAW = 2.0
MARGIN = 32  # pixels around parts of a page


def report(folder: Path) -> None:
    """What `make demo` ends in, as a browser shows it: the headline, and two of the pictures."""
    subprocess.run(["make", "demo"], cwd=HERE.parent, check=True)
    driver = start_chromium()
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 1200, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.get((folder / "report.html").as_uri())
    parts = ("header", "#section-comparison figure", "#section-likeness")
    shots = [_shot(driver, part) for part in parts]
    driver.quit()
    width, height = max(s.width for s in shots), sum(s.height + MARGIN for s in shots)
    paper = shots[0].getpixel((0, 0))
    sheet = Image.new("RGB", (width + 2 * MARGIN, height), paper)
    top = 0
    for shot in shots:
        sheet.paste(shot, (MARGIN, top))
        top += shot.height + MARGIN
    few_colours = sheet.convert("P", palette=Image.Palette.ADAPTIVE, colors=128)
    few_colours.save(HERE / "report.png", optimize=True)


def _shot(driver: Any, selector: str) -> Image.Image:
    """A part of the page, once its charts are drawn."""
    element = driver.find_element("css selector", selector)
    driver.execute_script("arguments[0].scrollIntoView()", element)
    time.sleep(SECONDS_TO_DRAW)
    return Image.open(io.BytesIO(element.screenshot_as_png)).convert("RGB")


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
    report(HERE.parent / "runs" / "compare-demo")
    corruptions()
