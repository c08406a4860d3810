"""Pictures as data, and drawn: lines, bars, points, histograms and heat maps. Drawing needs the
extra `plot`.
"""

import csv
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NotRequired

from typing_extensions import TypedDict  # pydantic cannot use that of typing before Python 3.12

from .curves import UNDATED, literal, require_matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL_INCHES = (5.0, 3.8)
MOST_BESIDE = 3  # panels in a row
MOST_TICKS = 40  # names beside a heat map
BOX_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)  # the ends of a box's whiskers, its own, and its line


class Series(TypedDict):
    """What has one colour: values `y` over `x`; None where there is no value."""

    name: str
    x: Sequence[Any]
    y: Sequence[float | None]
    spread: NotRequired[Sequence[float]]  # deviations on both sides of `y`, of lines and bars
    names: NotRequired[Sequence[str]]  # of points, told where one of them is pointed at


class Panel(TypedDict):
    """One picture. A histogram's `x` are the edges of its bins, and `y` the counts between them; a
    heat map has a series for every line of it, from the top; series of stacked bars lie on each
    other; each series of boxes is a box, whose `x` are BOX_LEVELS and `y` the quantiles there.
    """

    kind: Literal["lines", "bars", "stacked", "points", "histogram", "heatmap", "boxes"]
    title: str
    x_label: str
    y_label: str
    series: list[Series]


def to_csv(panels: Sequence[Panel]) -> str:
    """All values, a line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["panel", "series", "x", "y", "spread"])
    for panel in panels:
        for series in panel["series"]:
            spread = series.get("spread", [""] * len(series["y"]))
            # edges: one more than bins
            for x, y, own in zip(series["x"], series["y"], spread, strict=False):
                writer.writerow([panel["title"], series["name"], x, "" if y is None else y, own])
    return text.getvalue()


def draw(title: str, panels: Sequence[Panel], kind: str) -> bytes:
    """All panels in one picture; the same data give the same file."""
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    beside = min(len(panels), MOST_BESIDE)
    lines = math.ceil(len(panels) / beside)
    figure = Figure(
        figsize=(PANEL_INCHES[0] * beside, PANEL_INCHES[1] * lines + 0.4), layout="constrained"
    )
    figure.suptitle(literal(title))
    axes = figure.subplots(lines, beside, squeeze=False).flat
    for place, panel in zip(axes, panels, strict=False):
        _DRAWN[panel["kind"]](place, panel)
        place.set_title(literal(panel["title"]), fontsize="medium")
        place.set(xlabel=literal(panel["x_label"]), ylabel=literal(panel["y_label"]))
    for place in list(figure.axes)[len(panels) : lines * beside]:
        place.set_visible(False)
    _share_colours(figure)
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "concordfl"}):
        figure.savefig(drawn, format=kind, metadata=UNDATED.get(kind))
    return drawn.getvalue()


def _share_colours(figure: "Figure") -> None:
    """The same colour is the same value in all heat maps of a picture."""
    images = [image for place in figure.axes for image in place.images]
    limits = [image.get_clim() for image in images]
    for image in images:
        image.set_clim(min(low for low, _ in limits), max(high for _, high in limits))


def _known(series: Series) -> tuple[list[Any], list[float]]:
    pairs = [(x, y) for x, y in zip(series["x"], series["y"], strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _lines(axes: "Axes", panel: Panel) -> None:
    for series in panel["series"]:
        x, y = _known(series)
        (line,) = axes.plot(x, y, marker=".", label=literal(series["name"]))
        if "spread" in series:
            low, high = (
                [value + sign * wide for value, wide in zip(y, series["spread"], strict=True)]
                for sign in (-1, 1)
            )
            axes.fill_between(x, low, high, alpha=0.15, color=line.get_color(), linewidth=0)
    axes.grid(alpha=0.3)
    _legend(axes, panel)


def _bars(axes: "Axes", panel: Panel) -> None:
    names = list(dict.fromkeys(str(x) for series in panel["series"] for x in series["x"]))
    width = 0.8 / max(len(panel["series"]), 1)
    for number, series in enumerate(panel["series"]):
        x, y = _known(series)
        places = [names.index(str(one)) + (number + 0.5) * width - 0.4 for one in x]
        axes.bar(places, y, width, yerr=series.get("spread"), label=literal(series["name"]))
    axes.set_xticks(range(len(names)), [literal(name) for name in names], rotation=30, ha="right")
    axes.grid(alpha=0.3, axis="y")
    _legend(axes, panel)


def _stacked(axes: "Axes", panel: Panel) -> None:
    height: dict[str, float] = {str(x): 0.0 for series in panel["series"] for x in series["x"]}
    names = list(height)
    for series in panel["series"]:
        x, y = _known(series)
        places = [names.index(str(one)) for one in x]
        axes.bar(places, y, bottom=[height[str(one)] for one in x], label=literal(series["name"]))
        height |= {str(one): height[str(one)] + value for one, value in zip(x, y, strict=True)}
    if len(names) <= MOST_TICKS:
        axes.set_xticks(range(len(names)), [literal(name) for name in names], rotation=90)
        axes.tick_params(axis="x", labelsize="x-small")
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))  # bars are everywhere


def _points(axes: "Axes", panel: Panel) -> None:
    for series in panel["series"]:
        axes.scatter(*_known(series), s=6, alpha=0.6, label=literal(series["name"]), linewidths=0)
    _legend(axes, panel)


def _histogram(axes: "Axes", panel: Panel) -> None:
    for series in panel["series"]:
        counts = [0.0 if y is None else y for y in series["y"]]
        axes.stairs(counts, list(series["x"]), fill=True, alpha=0.45, label=literal(series["name"]))
    _legend(axes, panel)


def _heatmap(axes: "Axes", panel: Panel) -> None:
    values = [[math.nan if y is None else y for y in series["y"]] for series in panel["series"]]
    image = axes.imshow(values, aspect="auto", cmap="viridis")
    axes.figure.colorbar(image, ax=axes)
    if len(panel["series"]) <= MOST_TICKS:
        names = [literal(series["name"]) for series in panel["series"]]
        axes.set_yticks(range(len(names)), names, fontsize="x-small")
    columns = [literal(str(x)) for x in panel["series"][0]["x"]]
    if len(columns) <= MOST_TICKS:
        axes.set_xticks(range(len(columns)), columns, fontsize="x-small")


def _boxes(axes: "Axes", panel: Panel) -> None:
    names = ("whislo", "q1", "med", "q3", "whishi")
    boxes = [
        {**dict(zip(names, series["y"], strict=True)), "label": literal(series["name"])}
        for series in panel["series"]
    ]
    axes.bxp(boxes, showfliers=False)
    axes.tick_params(axis="x", rotation=30)
    axes.grid(alpha=0.3, axis="y")


def _legend(axes: "Axes", panel: Panel) -> None:
    if len(panel["series"]) > 1:
        axes.legend(fontsize="x-small")


_DRAWN = {
    "lines": _lines,
    "bars": _bars,
    "stacked": _stacked,
    "points": _points,
    "histogram": _histogram,
    "heatmap": _heatmap,
    "boxes": _boxes,
}
