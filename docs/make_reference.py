"""The configuration reference, from the settings' own types: `python docs/make_reference.py` writes
docs/configuration.md.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from inspect import getdoc, getsource
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from concordfl.algorithms import ALIASES
from concordfl.by_name import METHODS
from concordfl.core import Aggregation, ObjectiveChoice, Settings, Training
from concordfl.core.optim import SCHEDULES
from concordfl.core.settings import MAX_COUNT, Seed, to_toml
from concordfl.data.datasets import DATASETS
from concordfl.engine.plan import Plan
from concordfl.models import MODELS
from concordfl.scenarios import NAMED, PARTITIONS, SHIFTS, Scenario

HEAD = """# Configuration reference

A run is a TOML file with the sections below; every key may be left out.
`--set section.key=value` overrides any of them. Unknown keys are refused with the nearest known
one, bad values with the rule and the value. Counts are at most 1,000,000,000.
This page is generated from the settings' types by `python docs/make_reference.py`.
"""
ALGORITHM = """`[compare.NAME]` has the settings of further methods, which only `compare` reads.
Where no method is named it is `fedavg`, and `compare --set algorithm.key=value` sets it for all
compared methods that have such a key. A method may have settings of `[training]` and
`[aggregation]` of its own, which go before those of the section:

    [algorithm]
    name = "fedprox"

    [algorithm.training]
    lr = 0.1

    [compare.pfedme.training]
    lr = 0.05
"""
BOUNDS = {Ge: ">= {ge:,}", Gt: "> {gt:,}", Le: "<= {le:,}", Lt: "< {lt:,}"}
# bounds that need no mention: of all counts, and of whole numbers in TOML
UNSAID = (Le(MAX_COUNT), *get_args(Seed)[1:])
WORDS = {
    int: "whole number",
    float: "number",
    str: "string",
    bool: "true or false",
    type(None): None,
}


def rule(hint: Any) -> str:
    """A type as a reader of the page understands it."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *marks = get_args(hint)
        return rule(inner) + bounds(marks)
    if origin is Literal:
        return " / ".join(f"`{value}`" for value in get_args(hint))
    if origin is tuple:
        return f"list of {rule(get_args(hint)[0])}"
    if origin is Union or type(hint).__name__ == "UnionType":
        return " or ".join(dict.fromkeys(text for text in map(rule, get_args(hint)) if text))
    if isinstance(hint, type) and issubclass(hint, Settings):
        return "table"
    return str(WORDS.get(hint, getattr(hint, "__name__", hint)) or "")


def bounds(marks: list[Any]) -> str:
    """The bounds of a number; the one that all counts have is not repeated."""
    known = [mark for mark in marks if type(mark) in BOUNDS and mark not in UNSAID]
    match known:
        case [Ge(ge=least), Le(le=most)]:
            return f" from {least:,} to {most:,}"
    return "".join(" " + BOUNDS[type(mark)].format(**vars_of(mark)) for mark in known)


def vars_of(mark: Any) -> dict[str, Any]:
    return {field.name: getattr(mark, field.name) for field in fields(mark)}


def comments(kind: type) -> dict[str, str]:
    """The comment behind each field or above it, of the class and those it builds on."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base in (object, Settings) or base.__module__ in ("abc", "builtins"):
            continue
        above: list[str] = []
        for line in getsource(base).splitlines():
            if match := re.match(r"    (\w+): .*?#(?! noqa)\s*(.*)$", line):
                found[match[1]] = match[2].removeprefix("type: ignore").strip()
            elif above and (match := re.match(r"    (\w+): ", line)):
                found[match[1]] = " ".join(above)
            comment = re.match(r"    #(?! noqa)\s*(.*)$", line)
            above = [*above, comment[1]] if comment else []
    return found


def default(field: Any) -> str:
    value = field.default if field.default is not MISSING else None
    if value is None:
        return "-"
    if isinstance(value, Settings):
        return type(value).__name__
    return (
        f"`{to_toml(value)!r}`".replace("'", '"').replace("True", "true").replace("False", "false")
    )


def rows(kind: type, skip: set[str]) -> Iterator[str]:
    hints, notes = get_type_hints(kind, include_extras=True), comments(kind)
    for field in fields(kind):
        if field.name not in skip and field.repr:  # what is not shown is no key of a run file
            cells = (rule(hints[field.name]), default(field), notes.get(field.name, ""))
            yield f"| `{field.name}` | {' | '.join(cells)} |"


def table(kind: type, skip: set[str] = frozenset()) -> str:
    found = list(rows(kind, set(skip)))
    return (
        "\n".join(["| key | rule | default | |", "|---|---|---|---|", *found])
        if found
        else "No further keys."
    )


def family(
    title: str, intro: str, registry: Mapping[str, Any], key: str, base: set[str] = frozenset()
) -> Iterator[str]:
    yield f"### {title}\n\n{intro}\n"
    for name, kind in sorted(registry.items()):
        about = (
            kind.about
            if hasattr(kind, "about") and isinstance(kind.about, str)
            else (getdoc(kind) or "").split("\n")[0]
        )
        yield f'#### `{key} = "{name}"`\n\n{about}\n\n{table(kind, base)}\n'


def page() -> str:
    source = {field.name for field in fields(DATASETS["digits"])}
    shift = {"share", "share_of", "among", "from_round"}
    parts = [
        HEAD,
        "## [run]\n",
        table(Plan),
        "\n## [data]\n",
        "For every data set:\n",
        table(DATASETS["digits"]),
        "",
    ]
    parts += family(
        "Data sets",
        "`folder` and `table` are for your own data, see own-data.md; `memory` is what a run keeps "
        "that was given its data in Python.",
        DATASETS,
        "name",
        source,
    )
    parts += ["## [scenario]\n", table(Scenario), ""]
    parts += [
        "`name` takes a paper's mix of partition and shifts: "
        f"{', '.join(f'`{name}`' for name in NAMED)}.\n"
    ]
    parts += family(
        "Partitions", "`partition = { kind = ... }`: who gets which examples.", PARTITIONS, "kind"
    )
    parts += [
        "### Shifts\n\n`shifts = [{ kind = ... }, ...]`: how clients differ. For every shift:\n"
    ]
    parts += ["\n".join(table(SHIFTS["invert"]).splitlines()), ""]
    parts += list(family("", "", SHIFTS, "kind", shift))[1:]
    parts += ["## [objective]\n", "What is to be predicted, see objectives.md.\n"]
    parts += [table(ObjectiveChoice), ""]
    parts += ["## [model]\n", "| name | |\n|---|---|"]
    parts[-1] += "".join(
        f"\n| `{name}` | {' '.join((getdoc(model) or '').split())} |"
        for name, model in sorted(MODELS.items())
    )
    parts += [
        "\n`name` may be your own, as `package.module:function`, see own-model.md. "
        "`hidden` (mlp) lists the widths of hidden\nlayers, each at most 100,000; `batch_norm` "
        "(lenet) is true or false; `width_copies` puts several encoders, at most\n1,000, side by "
        "side under one head. A network that does not fit into memory is refused before it is "
        "built.\n"
    ]
    parts += ["## [training]\n", table(Training), ""]
    parts += family(
        "Schedules",
        "`schedule = { kind = ... }`: the learning rate over rounds.",
        SCHEDULES,
        "kind",
    )
    parts += ["## [aggregation]\n", "How clients' replies become the server's next state.\n"]
    parts += [table(Aggregation), "", "## [algorithm]\n", ALGORITHM]
    others = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items())
    parts.append(f"Other names: {others}.\n")
    for name, kind in sorted(METHODS.items()):
        about = kind.about
        parts.append(
            f'#### `name = "{name}"`\n\n{about.title} ({about.paper}). '
            f"Travels: {about.travels}.\n\n{table(kind)}\n"
        )
    return "\n".join(parts).rstrip() + "\n"


if __name__ == "__main__":
    (Path(__file__).parent / "configuration.md").write_text(page())
