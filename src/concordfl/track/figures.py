"""What is tracked of a run: its settings and the figures of its records, under one flat name each.

The same names are used for all tools, so they hold only what all of them take: letters, digits,
`_`, `-` and spaces, with `/` between the parts.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ..engine.files import to_json
from ..engine.observers import Watched

Value = int | float
NO_FIGURES = ("round", "thresholds")  # the second is a table of quantiles, in the last record alone


class Point(NamedTuple):
    """The figures of an evaluated round."""

    round: int
    figures: dict[str, Value]


def point(record: Mapping[str, Any]) -> Point:
    """All numbers of a record; lists of numbers one by one, larger tables not at all.

    >>> point({"round": 5, "local": {"accuracy": 0.5}, "server": {"shares": [0.25, 0.75]}}).figures
    {'local/accuracy': 0.5, 'server/shares/0': 0.25, 'server/shares/1': 0.75}
    """
    plain = json.loads(to_json(record))  # as it is read back from records.jsonl
    shown = {key: value for key, value in plain.items() if key not in NO_FIGURES}
    return Point(plain["round"], dict(_numbers(shown, ())))


def settings(run: Watched) -> dict[str, str | Value]:
    """All settings by their path, and the run's folder; lists as JSON."""
    found = dict(_settings(json.loads(to_json(run.settings)), ()))
    return found if run.folder is None else {**found, "folder": plain_text(str(run.folder))}


def selected(summary: Mapping[str, Any]) -> dict[str, Value]:
    """The figures of the round that was best on validation data, where there is one."""
    return dict(_numbers({"selected": json.loads(to_json(summary["selected"])) or {}}, ()))


def plain_text(text: str) -> str:
    """What any tool can write as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Value]]:
    if isinstance(value, (int, float)):
        yield "/".join(path), value + 0  # True is 1
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from _numbers(one, (*path, _name(key)))
    elif isinstance(value, list) and all(isinstance(one, (int, float)) for one in value):
        for number, one in enumerate(value):
            yield from _numbers(one, (*path, str(number)))


def _name(key: str) -> str:
    """Another one for every key: what is not allowed is written as its number.

    >>> _name("a/b"), _name("model 1"), _name("")
    ('a.2fb', 'model 1', '.0')
    """
    return re.sub(r"[^\w -]", lambda found: f".{ord(found[0]):x}", key) or ".0"


def _settings(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        own = (*path, _name(key))
        if isinstance(value, dict):
            yield from _settings(value, own)
        elif isinstance(value, (int, float)):
            yield ".".join(own), value
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield ".".join(own), plain_text(text)
