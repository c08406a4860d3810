"""How clients differ, as `diagnose` has found: four answers, who is like whom, what to run."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..document import Absent, Chart, Section, Table, View
from ..pictures import Series
from ..runs import Run, Runs
from .parts import MOST_POINTS, points, slug

TITLE = "How clients differ"
SMALLEST_P = 1e-12  # smaller ones are drawn as this
GOALS = {"local": "the clients themselves", "global": "new clients"}


def diagnosis(runs: Runs) -> Section | Absent:
    found = _different(runs)
    if not found:
        return {
            "title": TITLE,
            "reason": "no run was chosen by auto, and no folder with a diagnosis.json was given",
        }
    views = [_view(run, run.diagnosis or {}) for run in found]
    lead = " ".join(_sentences(found[0].diagnosis or {}))
    return {"id": "diagnosis", "title": TITLE, "lead": lead, "views": views}


def _different(runs: Runs) -> list[Run]:
    """The first run of every diagnosis."""
    found: list[Run] = []
    for run in runs.all:
        if run.diagnosis is not None and all(run.diagnosis != one.diagnosis for one in found):
            found.append(run)
    return found


def _sentences(content: Mapping[str, Any]) -> list[str]:
    answers = [answer["sentence"] for answer in content["questions"].values()]
    chosen = content.get("chosen")
    choice = [f"auto chose {chosen['method']}: {chosen['because']}."] if chosen else []
    return [*answers, *content["cautions"], *choice]


def _view(run: Run, content: Mapping[str, Any]) -> View:
    return {
        "name": run.name,
        "charts": [_map(run, content["clients"])],
        "tables": [_answers(content["questions"]), _recommendation(content["recommendation"])],
    }


def _map(run: Run, lines: Mapping[str, Mapping[str, Any]]) -> Chart:
    """Who is like whom: the concept group by colour, how far labels and inputs are by place."""
    step = -(-len(lines) // MOST_POINTS)
    series: dict[str, Series] = {}
    for id, line in list(lines.items())[::step]:
        name = f"concept group {line['group']}"
        own = series.setdefault(name, {"name": name, "x": [], "y": [], "names": []})
        surely = -math.log10(max(line["features_p"], SMALLEST_P))
        for key, value in (("x", line["label_distance"]), ("y", surely), ("names", id)):
            own[key].append(value)  # type: ignore[literal-required]
    some = f" {-(-len(lines) // step)} of {len(lines)} clients are shown." if step > 1 else ""
    return {
        "id": f"diagnosis-{slug(f'{run.row} {run.seed}')}",
        "caption": "Every client: to the right, label shares farther from those of all; higher up, "
        "inputs that stand out more surely; clients of one colour give the same inputs the same "
        f"labels.{some}",
        "panel": points(
            [series[name] for name in sorted(series)],
            "share of examples that would need another label",
            "inputs stand out: -log10 of p",
        ),
    }


def _answers(questions: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = [
        [
            name,
            "yes" if own["differs"] else "no",
            own["effect"],
            own["effect_is"],
            None if name == "amount" else own["p"],  # which is counted, not tested
        ]
        for name, own in questions.items()
    ]
    return {
        "title": "Do clients differ?",
        "columns": [
            {"name": "in", "kind": "text"},
            {"name": "answer", "kind": "text"},
            {"name": "effect", "kind": "number", "digits": 3},
            {"name": "effect is", "kind": "text"},
            {"name": "p", "kind": "number", "digits": 3},
        ],
        "rows": rows,
    }


def _recommendation(recommended: Mapping[str, Mapping[str, Any]]) -> Table:
    rows: list[Sequence[str | float | None]] = [
        [
            GOALS[purpose],
            one["method"],
            ", ".join(f"{name} = {value}" for name, value in one["settings"].items()),
            one["behind"],
            ", ".join(advice["settings"]),
        ]
        for purpose, advice in recommended.items()
        for one in advice["methods"]
    ]
    return {
        "title": "What to run",
        "columns": [
            {"name": "for", "kind": "text"},
            {"name": "method", "kind": "text"},
            {"name": "settings", "kind": "text"},
            {"name": "points behind the best", "kind": "number", "digits": 1},
            {"name": "in the benchmark's settings", "kind": "text"},
        ],
        "rows": rows,
    }
