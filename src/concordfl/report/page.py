"""A report as one page: HTML that needs no other file and no network.

What a document says goes into the page as JSON, and the page's scripts show it as text. The page's
policy lets nothing be loaded, and no script run but the ones of this file.
"""

import base64
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from importlib.resources import files
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from .document import Document

SIGNIFICANT_DIGITS = 6
CHARTS_LIBRARY = "plotly-cartesian.min.js"
SCRIPTS = (  # in this order: a file uses those before it
    "elements.js",
    "numbers.js",
    "colours.js",
    "traces.js",
    "heatmap.js",
    "figures.js",
    "tables.js",
    "card.js",
    "clients.js",
    "sections.js",
    "main.js",
)
_IN_A_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def render(document: Document) -> str:
    """The page. It can be written as UTF-8, whatever the names in the document are."""
    library = _asset(CHARTS_LIBRARY)
    own = "(() => {\n" + "\n".join(_asset(name) for name in SCRIPTS) + "\n})();"
    parts = {
        "policy": _policy(library, own),
        "title": _LONE_SURROGATE.sub("\ufffd", escape(document["title"])),
        "style": _asset("page.css"),
        "library": library,
        "document": _json(document),
        "script": own,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath("assets", name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """Styles are inline because the charts' library sets them so."""
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(document: Document) -> str:
    """In ASCII, which has neither lone surrogates nor U+2028, and without what ends a script."""
    compact = _compact(document)
    for section in compact["sections"]:
        for view in section["views"]:
            for chart in view["charts"]:
                _share_x(chart["panel"]["series"])
    return json.dumps(compact, allow_nan=False, separators=(",", ":")).translate(_IN_A_SCRIPT)


def _share_x(series: Sequence[dict[str, Any]]) -> None:
    """One without `x` has that of the one before: thousands of lines of a heat map share it."""
    for before, one in reversed(list(pairwise(series))):
        if one["x"] == before["x"]:
            del one["x"]


def _compact(value: Any) -> Any:
    """Floats are rounded; those that are no numbers are None."""
    if type(value) is float:  # first, because most are
        return _rounded(value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _rounded(float(value))
    if isinstance(value, Mapping):
        return {str(name): _compact(one) for name, one in value.items()}
    if isinstance(value, Sequence):
        return [_compact(one) for one in value]
    raise TypeError(f"a report must be of texts, numbers, lists and mappings, got {type(value)}")


def _rounded(value: float) -> float | None:
    if not math.isfinite(value):
        return None
    short = float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    return int(short) if short.is_integer() else short
