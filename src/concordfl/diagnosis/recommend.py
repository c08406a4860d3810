"""Which method for which diagnosis.

The rules are data (rules.toml), made from a benchmark by `benchmarks/recommend.py rules`: the
answers under which a rule holds, the settings of the benchmark in which `diagnose` gave them, and
how far every method is expected behind the best one there. The first rule that holds is taken.
"""

import statistics
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

from typing_extensions import TypedDict

from ..core import SettingError
from .answers import ClientLine, Questions
from .auto import described

RULES_FILE = "rules.toml"
Purpose = Literal["local", "global"]
PURPOSES: tuple[Purpose, ...] = ("local", "global")
STRONG_LABELS = 0.4  # of a client's examples would need another label
FEW_EXAMPLES = 50  # of a client, in the median
AS_MEASURED = (
    "Measured with standardised inputs (data.standardise, the default) and the default training; "
    "scenario.hold_out shows what new clients come to."
)
NUM_METHODS = 3  # that are recommended
WITH_GROUPS = ("fedconceptem", "fedem", "ifca")  # have a model for every group
MAX_CLUSTERS = 5  # of FedConcat, its default
# Which answers a rule may depend on, the closest look first.
LEVELS: tuple[tuple[str, ...], ...] = (
    ("concept", "labels", "features", "few"),
    ("concept", "labels", "features"),
    ("concept", "labels"),
    ("concept", "few"),
    ("concept",),
    (),
)
Conditions = Mapping[str, str | bool]


class Facts(NamedTuple):
    """What of a diagnosis a rule depends on; effects are 0 where a difference is not named."""

    clients: int
    examples: float  # of a client, in the median
    labels: float
    concept: float
    features: float
    groups: int

    @classmethod
    def of(cls, answers: Questions, groups: int, lines: Mapping[str, ClientLine]) -> "Facts":
        labels, concept, features = (
            answer["effect"] if answer["differs"] else 0.0
            for answer in (answers["labels"], answers["concept"], answers["features"])
        )
        examples = float(statistics.median(line["size"] for line in lines.values()))
        return cls(len(lines), examples, labels, concept, features, groups)


class Rule(NamedTuple):
    purpose: Purpose
    holds: Conditions
    settings: Sequence[str]  # of the benchmark
    behind: Mapping[str, float]  # expected points behind the best method; the best first


class Suggestion(TypedDict):
    """A method with its settings, and how far behind the best one it is expected to be."""

    method: str
    settings: dict[str, Any]
    behind: float


class Recommendation(TypedDict):
    because: str
    settings: list[str]  # of the benchmark, that the rule was made from
    methods: list[Suggestion]  # the best first


# By purpose: for the clients themselves, and for new ones.
Advice = TypedDict("Advice", {"local": Recommendation, "global": Recommendation})


def recommend(facts: Facts) -> Advice:
    return {"local": _recommend(facts, "local"), "global": _recommend(facts, "global")}


def _recommend(facts: Facts, purpose: Purpose) -> Recommendation:
    rule = find_rule(rules(), facts, purpose)
    methods: list[Suggestion] = [
        {"method": name, "settings": method_settings(name, facts), "behind": behind}
        for name, behind in list(rule.behind.items())[:NUM_METHODS]
    ]
    return {
        "because": _because(rule, methods),
        "settings": list(rule.settings),
        "methods": methods,
    }


def conditions_of(facts: Facts) -> Conditions:
    """All answers that a rule may ask for."""
    strength = "strong" if facts.labels >= STRONG_LABELS else "weak" if facts.labels else "no"
    return {
        "concept": facts.concept > 0,
        "labels": strength,
        "features": facts.features > 0,
        "few": facts.examples < FEW_EXAMPLES,
    }


def find_rule(known: Sequence[Rule], facts: Facts, purpose: Purpose) -> Rule:
    """The first that holds."""
    own = conditions_of(facts)
    for rule in known:
        if rule.purpose == purpose and all(own[name] == is_ for name, is_ in rule.holds.items()):
            return rule
    raise SettingError(f"there must be a rule for every diagnosis, got none for {purpose}")


def method_settings(method: str, facts: Facts) -> dict[str, Any]:
    """What a method is to be run with: a model for every group, where there are groups; otherwise
    its defaults.
    """
    if method in WITH_GROUPS and facts.groups > 1:
        return {"num_models": facts.groups}
    if method == "fedconcat" and facts.clients < MAX_CLUSTERS:
        return {"clusters": facts.clients}
    return {}


def sentences(advice: Advice) -> list[str]:
    """What is recommended, for each purpose."""
    return [
        f"For the clients themselves: {_sentence(advice['local'])}",
        f"For new clients: {_sentence(advice['global'])}",
        AS_MEASURED,
    ]


def _sentence(recommendation: Recommendation) -> str:
    first, *others = (
        described(one["method"], one["settings"]) for one in recommendation["methods"]
    )
    return f"{first}, else {' or '.join(others)}; {recommendation['because']}."


def _because(rule: Rule, methods: Sequence[Suggestion]) -> str:
    first, *others = methods
    rest = ", ".join(f"{other['method']} {other['behind']:.1f}" for other in others)
    count = len(rule.settings)
    return (
        f"from {count} setting{'s' * (count > 1)} of our benchmark{_where(rule.holds)}, and with "
        f"the weight of one from all, {first['method']} is expected {first['behind']:.1f} points "
        f"behind the best method ({rest})"
    )


def _where(holds: Conditions) -> str:
    """The answers of a rule in words."""
    words = {
        ("concept", True): "several concepts",
        ("concept", False): "one concept",
        ("labels", "no"): "the same label shares",
        ("labels", "weak"): "somewhat different label shares",
        ("labels", "strong"): "very different label shares",
        ("features", True): "different inputs",
        ("features", False): "the same inputs",
        ("few", True): f"fewer than {FEW_EXAMPLES} examples a client",
        ("few", False): f"{FEW_EXAMPLES} examples a client or more",
    }
    parts = [words[name, is_] for name, is_ in holds.items()]
    return f" with {', '.join(parts)}" if parts else ""


# --- the rules ------------------------------------------------------------------------------------


@cache
def rules() -> tuple[Rule, ...]:
    text = files(__package__).joinpath(RULES_FILE).read_text(encoding="utf-8")
    return tuple(Rule(**rule) for rule in tomllib.loads(text)["rule"])
