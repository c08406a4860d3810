"""From what clients have sent to four answers: an effect size, a p-value and a sentence each."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import TypedDict

from ..core import Key
from .features import FeatureTest, feature_test
from .labels import LabelTest, label_test
from .state import DiagnoseServer

LEVEL = 0.05  # at which a difference is called one
MAX_NAMES = 5  # clients or columns that a sentence names
SURE = 0.95  # of a membership
RECOGNISED = 0.95  # groups that inputs give away so surely do not overlap
SMALL = 10  # examples; of smaller clients hardly anything can be said


class Answer(TypedDict):
    differs: bool
    effect: float
    effect_is: str
    p: float
    sentence: str


class ClientLine(TypedDict):
    """What is said of one client."""

    size: int
    missing_classes: list[str]
    repeated_examples: int
    missing_values: int
    label_distance: float
    group: int
    sure: float
    features_p: float
    top_features: list[str]


class Questions(TypedDict):
    labels: Answer
    concept: Answer
    features: Answer
    amount: Answer


class Answers(Questions):
    groups: int
    cautions: list[str]
    clients: dict[str, ClientLine]


class Names(NamedTuple):
    """What classes and features are called; features without names are directions."""

    classes: Sequence[str]
    features: Sequence[str]


def answer(server: DiagnoseServer, names: Names, draws: int, seed: int) -> Answers:
    """All four answers."""
    counts, found, displaced = server.counts or {}, server.found, server.displaced or {}
    if found is None or server.frame is None:
        raise ValueError("the stages must have been played")
    ids = [id for id in counts if id in displaced and id in found.group]
    table = np.array([counts[id]["labels"].sum(0).numpy() for id in ids]).astype(int)
    by_label = label_test(table, draws, Key(seed, "tables"))
    groups = [found.group[id] for id in ids]
    by_feature = feature_test({id: displaced[id] for id in ids}, table, groups)
    columns = top_columns(server, ids, names.features)
    lines: dict[str, ClientLine] = {}
    for index, id in enumerate(ids):
        lines[id] = {
            "size": int(table[index].sum()),
            "missing_classes": [
                str(name)
                for name, own, all_of in zip(names.classes, table[index], table.sum(0), strict=True)
                if all_of and not own
            ],
            "repeated_examples": int(counts[id]["repeated"]),
            "missing_values": int(counts[id]["missing"]),
            "label_distance": float(by_label.distances[index]),
            "group": found.group[id],
            "sure": found.sure[id],
            "features_p": by_feature.by_client[id],
            "top_features": columns[id],
        }
    cautions = [*_no_common_class(ids, table), *_no_overlap(found), *_small(lines)]
    return {
        "labels": _labels(by_label, lines),
        "concept": _concept(found, lines),
        "features": _features(by_feature, lines),
        "amount": _amount(lines, table, names.classes),
        "groups": found.number,
        "cautions": cautions,
        "clients": lines,
    }


def _labels(test: LabelTest, lines: Mapping[str, ClientLine]) -> Answer:
    differs = test.p <= LEVEL
    if differs:
        sentence = (
            f"Label shares differ: about {test.effect:.0%} of a client's examples would need "
            f"another label to have the shares of all; most at "
            f"{_names(sorted(lines, key=lambda id: -lines[id]['label_distance']))}."
        )
    else:
        sentence = "Label shares do not differ more than clients of these sizes do by chance."
    return {
        "differs": differs,
        "effect": test.effect,
        "effect_is": "mean total variation from the pooled shares, sampling noise taken off",
        "p": test.p,
        "sentence": sentence,
    }


def _concept(found: Any, lines: Mapping[str, ClientLine]) -> Answer:
    differs = found.p <= LEVEL
    if differs:
        sizes = [
            sum(line["group"] == group for line in lines.values()) for group in range(found.number)
        ]
        unsure = sum(line["sure"] < SURE for line in lines.values())
        sentence = (
            f"The same inputs have other labels at some clients: {found.number} groups of "
            f"{', '.join(map(str, sizes))} clients; to know a client's group makes the true label "
            f"{100 * found.gain:.1f} points more probable"
            + (f"; {unsure} memberships are not sure." if unsure else ".")
        )
    else:
        sentence = (
            "No sign that the same inputs have other labels at different clients, beyond label "
            "shares."
        )
    return {
        "differs": differs,
        "effect": max(found.gain, 0.0),
        "effect_is": "gain in the probability of held-out labels from knowing the client's group",
        "p": found.p,
        "sentence": sentence,
    }


def _features(test: FeatureTest, lines: Mapping[str, ClientLine]) -> Answer:
    differs = test.p <= LEVEL
    named = [id for id, line in lines.items() if line["features_p"] <= LEVEL]
    named.sort(key=lambda id: lines[id]["features_p"])
    if differs:
        given = (
            "label and group" if len({line["group"] for line in lines.values()}) > 1 else "label"
        )
        sentence = (
            f"Given the {given}, inputs differ: classes lie {test.effect:.2f} deviations from "
            "where the others' lie"
        )
        sentence += f"; clients that stand out: {_names(named)}" if named else ""
        columns = [name for id in named for name in lines[id]["top_features"][:1]]
        common = sorted(set(columns), key=lambda name: -columns.count(name))
        sentence += f"; mostly in {_names(common)}." if common else "."
    else:
        sentence = "Given the label, inputs do not differ more between clients than by chance."
    return {
        "differs": differs,
        "effect": test.effect,
        "effect_is": "displacement of classes in within-class deviations, sampling noise taken off",
        "p": test.p,
        "sentence": sentence,
    }


def _amount(lines: Mapping[str, ClientLine], table: np.ndarray, classes: Sequence[str]) -> Answer:
    """Sizes are known, not estimated: their answer has no test, and p is 0 or 1."""
    sizes = table.sum(1)
    spread = float(sizes.std() / sizes.mean())
    lacking = sum(bool(line["missing_classes"]) for line in lines.values())
    repeated = sum(line["repeated_examples"] for line in lines.values())
    missing = sum(line["missing_values"] for line in lines.values())
    parts = [
        f"{len(lines):,} clients with {sizes.min():,} to {sizes.max():,} examples (median "
        f"{int(np.median(sizes)):,})"
    ]
    if lacking:
        verb = "lacks" if lacking == 1 else "lack"
        parts.append(f"{lacking} {verb} one of the {len(classes)} classes or more")
    if repeated:
        parts.append(f"{repeated:,} examples are repeated within a client")
    if missing:
        parts.append(f"{missing:,} values are missing")
    odd = _odd_sizes(lines)
    if odd:
        parts.append(f"unusual in size: {_names(odd)}")
    return {
        "differs": bool(sizes.min() != sizes.max()),
        "effect": spread,
        "effect_is": "deviation of the sizes over their mean",
        "p": 0.0 if sizes.min() != sizes.max() else 1.0,
        "sentence": "; ".join(parts) + ".",
    }


def _odd_sizes(lines: Mapping[str, ClientLine]) -> list[str]:
    """Clients whose size is far from the others', by the median and its deviation of logarithms."""
    logs = {id: float(np.log(max(line["size"], 1))) for id, line in lines.items()}
    middle = float(np.median(list(logs.values())))
    deviation = 1.4826 * float(np.median([abs(log - middle) for log in logs.values()]))
    return [id for id, log in logs.items() if abs(log - middle) > max(3.5 * deviation, 1.0)]


# --- what cannot be told --------------------------------------------------------------------------


def _no_common_class(ids: Sequence[str], table: np.ndarray) -> list[str]:
    has = (table > 0).astype(int)
    common = has @ has.T
    apart = np.argwhere(np.triu(common == 0, 1))
    if not len(apart):
        return []
    pairs = [f"{ids[left]} and {ids[right]}" for left, right in apart[:3].tolist()]
    rest = f" and {len(apart) - 3:,} more pairs" if len(apart) > 3 else ""
    return [
        f"Cannot tell label from concept shift between {', '.join(pairs)}{rest}: they share no "
        "class."
    ]


def _no_overlap(found: Any) -> list[str]:
    """Groups that heads tell apart, but that inputs give away."""
    index = found.best - 2
    if found.p <= LEVEL or found.single_p > LEVEL or float(found.gate[index]) < RECOGNISED:
        return []
    return [
        "Cannot tell concept from feature shift between groups of clients whose inputs do not "
        "overlap: the inputs alone say which group a client is of, so that no input is seen with "
        "both rules."
    ]


def _small(lines: Mapping[str, ClientLine]) -> list[str]:
    small = [id for id, line in lines.items() if line["size"] < SMALL]
    if not small:
        return []
    return [
        f"Hardly anything can be said of clients with fewer than {SMALL} examples: {_names(small)}."
    ]


# --- which features -------------------------------------------------------------------------------


def top_columns(
    server: DiagnoseServer, ids: Sequence[str], names: Sequence[str]
) -> dict[str, list[str]]:
    """Of every client the columns in which its classes are displaced most, in deviations; of
    images, whose pixels have no names, the principal directions.
    """
    moved = np.stack([(server.displaced or {})[id]["moved"].numpy() for id in ids])
    if server.frame is None or server.frame.axes is None:
        raise ValueError("there must be axes")
    axes = server.frame.axes.numpy()
    if len(names) == len(axes):
        scaled = moved @ np.linalg.pinv(axes) * _spread(axes)
        labels = list(names)
    else:
        scaled, labels = moved, [f"direction {index + 1}" for index in range(moved.shape[1])]
    return {
        id: [labels[index] for index in np.argsort(-np.abs(row))[:3].tolist()]
        for id, row in zip(ids, scaled, strict=True)
    }


def _spread(axes: np.ndarray) -> np.ndarray:
    """(F,) what brings displacements of columns to deviations: axes of a table are in units of
    deviations already, by column.
    """
    lengths: np.ndarray = np.sqrt((axes**2).sum(1))
    return lengths


def _names(names: Sequence[str]) -> str:
    first = ", ".join(names[:MAX_NAMES])
    more = len(names) - MAX_NAMES
    return f"{first} and {more:,} more" if more > 0 else first
