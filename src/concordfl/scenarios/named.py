"""The mixes of the papers by name. What else a run file says of its scenario is added, and wins."""

from typing import Any

REVERSE = {"kind": "label-map", "map": "reverse", "share": 0.25}
SHIFT = {"kind": "label-map", "map": "shift", "share": 0.25}


def _concepts(*maps: dict[str, Any], corrupted: dict[str, float]) -> dict[str, Any]:
    """Label skew, the given concepts, and corruptions at a share of the clients of each concept."""
    shifts = [
        *maps,
        *(
            {"kind": "corrupt", "severity": "random", "share": share, "among": concept}
            for concept, share in corrupted.items()
        ),
    ]
    return {"partition": {"kind": "lda", "alpha": 1.0}, "shifts": shifts}


def _fifth(by: int) -> dict[str, Any]:
    return {"kind": "label-map", "map": "shift", "by": by, "share": 0.2}


def _label_skew(partition: dict[str, Any]) -> dict[str, Any]:
    """FedConcat's 5.1: forty clients train on all training images, one model for all of them is
    tested on the whole test set.
    """
    return {"clients": 40, "partition": partition, "split": [1.0, 0.0, 0.0], "adapt_share": 0.0}


NAMED: dict[str, dict[str, Any]] = {
    # Section 7.1: 30% clean, 20% corrupted, and twice 25% with other labels, a fifth of them
    # corrupted.
    "fedconceptem-three-concepts": _concepts(
        REVERSE, SHIFT, corrupted={"original": 0.4, "reverse": 0.2, "shift": 0.2}
    ),
    # Table 5: as many clients are corrupted, 30%, whatever the number of concepts. The paper gives
    # neither that nor the maps of five concepts: both are ours.
    "fedconceptem-one-concepts": _concepts(corrupted={"original": 0.3}),
    "fedconceptem-five-concepts": _concepts(
        {**REVERSE, "share": 0.2},
        _fifth(1),
        _fifth(3),
        _fifth(5),
        corrupted=dict.fromkeys(("original", "reverse", "shift", "shift-3", "shift-5"), 0.3),
    ),
    # Section 4.1: half of the *images*, changed before they are dealt out; as in the published
    # code each half by weights of its own, whatever the label. Section 4.6: the split of new
    # clients.
    "fedgmm-joint": {
        "partition": {"kind": "part-weights", "alpha": 0.4},
        "shifts": [{"kind": "joint", "share": 0.5, "share_of": "pool"}],
        "split": [0.6, 0.2, 0.2],
        "hold_out_split": [0.5, 0.0, 0.5],
    },
    # C.3: half of the images unchanged, a quarter rotated, flipped and inverted, a quarter with
    # permuted labels.
    "fedgmm-novelty": {
        "partition": {"kind": "mixture-weights", "alpha": 0.4},
        "shifts": [
            {"kind": "joint", "labels": False, "share": 0.25, "share_of": "pool"},
            {"kind": "joint", "images": False, "share": 0.25, "share_of": "pool"},
        ],
        "split": [0.6, 0.2, 0.2],
    },
    "fedconcat-c2": _label_skew({"kind": "labels-per-client", "labels": 2}),
    "fedconcat-c3": _label_skew({"kind": "labels-per-client", "labels": 3}),
    "fedconcat-dir01": _label_skew({"kind": "dirichlet-by-class", "alpha": 0.1}),
    "fedconcat-dir05": _label_skew({"kind": "dirichlet-by-class", "alpha": 0.5}),
    # Figure 4: five groups with a class distribution each, three of them train.
    "fedvc-target": {
        "clients": 50,
        "partition": {"kind": "groups", "groups": 5, "held_out_groups": 2},
    },
    # Figure 6: per domain five training clients and one held out, and five mixed ones.
    "fedvc-feature": {
        "partition": {"kind": "domains", "per_domain": 5, "held_out_per_domain": 1, "mixed": 5}
    },
}
