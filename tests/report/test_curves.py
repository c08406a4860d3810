import importlib.util
import re
from pathlib import Path

import pytest

from concordfl import SettingError
from concordfl.report import curves


def summary(*points, scope="global"):
    history = [
        {"round": n, f"{scope}_accuracy": a, "bytes": {"down": b, "up": b}}
        for n, (a, b) in enumerate(points)
    ]
    return {
        "algorithm": "fedavg",
        "final": {f"{scope}_accuracy": points[-1][0]},
        "history": history,
    }


def test_a_line_per_row_against_the_bytes_sent(monkeypatch):
    """The drawn coordinates are those of the summaries: means over seeds, in MB down and up, in
    percent.
    """
    import matplotlib.axes

    drawn = {}
    plot = matplotlib.axes.Axes.plot

    def spy(self, x, y, **more):
        drawn[more["label"]] = (x, y)
        return plot(self, x, y, **more)

    monkeypatch.setattr(matplotlib.axes.Axes, "plot", spy)
    runs = {
        "fedavg": [summary((0.2, 1e6), (0.4, 2e6)), summary((0.4, 1e6), (0.6, 2e6), (0.8, 3e6))],
        "fedconcat": [summary((0.5, 3e6))],
    }
    picture = curves.accuracy_against_bytes("title", runs, "svg")
    assert drawn["fedavg"] == (
        [2, 4, 6],
        pytest.approx([30, 50, 80]),
    )  # a round that one seed alone has evaluated
    assert drawn["fedconcat"] == ([6], [50])
    assert picture.startswith(b"<?xml")
    assert len(re.findall(b"global accuracy", picture)) == 1
    assert picture == curves.accuracy_against_bytes("title", runs, "svg")
    assert b"local accuracy" in curves.accuracy_against_bytes(
        "title", {"local": [summary((0.5, 0), scope="local")]}, "svg"
    )


def test_what_cannot_be_drawn_is_refused(monkeypatch):
    with pytest.raises(
        SettingError, match=r"a picture must be a file of kind svg, png, pdf, got curve.txt"
    ):
        curves.kind_of(Path("curve.txt"))
    with pytest.raises(
        SettingError,
        match=r"a picture must be a file in a folder that exists, got nowhere/curve.svg",
    ):
        curves.kind_of(Path("nowhere/curve.svg"))
    unlabelled = {"final": {}, "history": [{"round": 1, "bytes": {"down": 1, "up": 1}}]}
    with pytest.raises(
        SettingError,
        match=r"a curve of accuracy needs methods that predict labels, got one that does not",
    ):
        curves.accuracy_against_bytes("title", {"fedgmm-unsupervised": [unlabelled]}, "svg")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingError, match="pictures need matplotlib, got none: pip install"):
        curves.kind_of(Path("curve.svg"))


def test_names_are_no_formulas():
    name = r"$\nonsense{$"
    picture = curves.accuracy_against_bytes(name, {name: [summary((0.5, 1e6))]}, "svg")
    assert picture.startswith(b"<?xml")
