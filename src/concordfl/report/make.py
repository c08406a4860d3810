"""A report's document from its runs."""

from datetime import date
from importlib.metadata import version
from typing import cast

from . import tables, verdict
from .cards import clients
from .document import Absent, Chart, Document, Repeat, Section
from .headline import headline, sentences
from .pictures import Panel
from .runs import Runs
from .sections import SECTIONS


def document(title: str, runs: Runs) -> Document:
    parts = [make(runs) for make in SECTIONS]
    return {
        "title": title,
        "headline": headline(runs),
        "sentences": sentences(runs),
        "facts": _facts(runs),
        "warnings": list(tables.warning_lines(verdict.warnings(runs.figures))),
        "sections": [cast(Section, part) for part in parts if "views" in part],
        "clients": clients(runs),
        "absent": [cast(Absent, part) for part in parts if "reason" in part],
        "repeat": _repeat(runs),
        "made": f"concordfl {version('concordfl')}, {date.today().isoformat()}",
    }


def charts_of(document: Document) -> dict[str, Chart]:
    """All charts by their ids."""
    return {
        chart["id"]: chart
        for section in document["sections"]
        for view in section["views"]
        for chart in view["charts"]
    }


def ordered(chart: Chart) -> Panel:
    """Its picture, with the lines of a heat map in the order that is shown first."""
    order = next(iter(chart.get("orders", {}).values()), None)
    if order is None:
        return chart["panel"]
    series = chart["panel"]["series"]
    return {**chart["panel"], "series": [series[place] for place in order]}


def _facts(runs: Runs) -> dict[str, str]:
    first = runs.all[0].figures
    rounds = sorted({one["rounds"] for figures in runs.figures.values() for one in figures})
    shown = str(rounds[0]) if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    return {
        "clients": str(first["clients"]),
        "methods": str(len(runs.by_row)),
        "seeds": str(len(runs.seeds)),
        "rounds": shown,
    }


def _repeat(runs: Runs) -> list[Repeat]:
    return [
        {
            "name": run.name,
            "command": run.command,
            "config": run.config,
            "versions": dict(run.figures.get("versions") or {}),
        }
        for run in runs.all
    ]
