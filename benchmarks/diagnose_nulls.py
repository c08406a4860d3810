"""Are the p-values of labels and features uniform where their own difference is absent?

    python benchmarks/diagnose_nulls.py --data digits --seeds 100

Full diagnoses are too slow for that. The cases are those of `diagnose_grid.py` with other seeds and
the other two differences planted; the test of the labels sees all examples, that of the features
the true concepts as groups.
"""

import argparse
import itertools

import numpy as np
import torch
import torch.nn.functional as F
from scipy import stats

from concordfl.core import Key
from concordfl.diagnosis import features
from concordfl.diagnosis.labels import label_test
from concordfl.toolbox import gaussian
from concordfl.toolbox.axes import axes_of
from concordfl.toolbox.class_heads import ClassSums, sums_by_class
from diagnose_grid import LEVEL, STRENGTHS, Case, make_clients

FIRST_SEED = 1000  # the grid's own are smaller
SIZES = ((5, 50), (20, 50), (5, 200), (20, 200))
DIMENSIONS, DRAWS, SIGNS = 20, 199, 199


def p_of_labels(case: Case) -> float:
    clients, _ = make_clients(case)
    return label_test(counts(clients, case), DRAWS, Key(case.seed, "tables")).p


def counts(clients: dict, case: Case) -> np.ndarray:
    classes = 3 if case.data == "table" else 10
    return np.array([np.bincount(y, minlength=classes) for _, y in clients.values()])


def p_of_features(case: Case) -> float:
    clients, groups = make_clients(case)
    labels = counts(clients, case)
    inputs = project([x for x, _ in clients.values()], case)
    targets = [torch.from_numpy(y) for _, y in clients.values()]
    sums = [sums_by_class(x, y, labels.shape[1]) for x, y in zip(inputs, targets, strict=True)]
    cells = ClassSums(
        *(
            torch.stack(
                [
                    sum(own[part] for own, one in zip(sums, groups, strict=True) if one == group)
                    for group in range(max(groups) + 1)
                ]
            )
            for part in range(3)
        )
    )
    made = features.cells_of(cells, cells)
    displaced = {
        str(number): features.displacement(x, y, group, made, SIGNS, Key(case.seed, number))
        for number, (x, y, group) in enumerate(zip(inputs, targets, groups, strict=True))
    }
    return features.feature_test(displaced, labels, groups).p


def project(inputs: list[np.ndarray], case: Case) -> list[torch.Tensor]:
    """On the first principal axes of all, images after they are shrunk to 14 x 14."""
    flat = []
    for own in inputs:
        x = torch.from_numpy(np.ascontiguousarray(own)).float()
        if case.data != "table":
            x = F.adaptive_avg_pool2d(x.permute(0, 3, 1, 2), (14, 14))
        flat.append(x.flatten(1).double())
    everything = torch.cat(flat)
    ones = torch.ones(len(everything), 1, dtype=torch.float64)
    no_shift = torch.zeros(everything.shape[1], dtype=torch.float64)
    moments = gaussian.statistics(everything, ones, no_shift, "full")
    frame = axes_of(moments, DIMENSIONS, tuple(inputs[0].shape[1:]))
    return [frame.project(x) for x in flat]


TESTS = {"labels": p_of_labels, "features": p_of_features}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--question", choices=tuple(TESTS), default="features")
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    everything: list[float] = []
    for clients, examples in SIZES:
        found = []
        for one, other in itertools.product((False, True), repeat=2):
            for strength in STRENGTHS if one or other else STRENGTHS[:1]:
                planted = (
                    {"labels": False, "features": one, "concept": other}
                    if given.question == "labels"
                    else {"labels": one, "features": False, "concept": other}
                )
                found += [
                    TESTS[given.question](
                        Case(given.data, clients, examples, strength, **planted, seed=seed)
                    )
                    for seed in range(FIRST_SEED, FIRST_SEED + given.seeds)
                ]
        print(f"{clients} clients of {examples}: {described(found)}", flush=True)
        everything += found
    print(f"all: {described(everything)}")


def described(p_values: list[float]) -> str:
    alarms = sum(p <= LEVEL for p in p_values)
    low, high = stats.binomtest(alarms, len(p_values)).proportion_ci()
    return (
        f"{alarms} of {len(p_values):,} at p <= {LEVEL}, {alarms / len(p_values):.1%} "
        f"({low:.1%} to {high:.1%})"
    )


if __name__ == "__main__":
    main()
