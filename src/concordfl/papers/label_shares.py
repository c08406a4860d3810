"""What FedConcat's server believes of clients' labels, beside the truth: figure 12 of its paper."""

from typing import Any

import numpy as np

from ..core import SettingError
from ..deploy.finished import FinishedRun
from ..report.pictures import Panel


def label_shares(finished: FinishedRun) -> dict[str, Any]:
    """A picture of the first client, and the mean distance (L1) over all clients of the shares that
    were told or inferred to the true ones.
    """
    federation = finished.federation()
    known = {id: finished.predictor_of(id).inspect() for id in federation.participants}
    believed = {
        id: np.array(facts["label_shares"])
        for id, facts in known.items()
        if "label_shares" in facts
    }
    if not believed:
        raise SettingError(
            "label shares are known in runs of fedconcat with strategy = 'kmeans', got a run of "
            f"{finished.name!r} without any"
        )
    counts = {
        id: np.bincount(federation.splits(id).train.y, minlength=federation.num_classes)
        for id in believed
    }
    true = {id: count / count.sum() for id, count in counts.items()}
    first = min(believed)
    labels = list(range(federation.num_classes))
    panel: Panel = {
        "kind": "bars",
        "title": first,
        "x_label": "label",
        "y_label": "share",
        "series": [
            {"name": "true", "x": labels, "y": true[first].tolist()},
            {"name": finished.name, "x": labels, "y": believed[first].tolist()},
        ],
    }
    return {
        "panels": [panel],
        "distance": float(np.mean([np.abs(believed[id] - true[id]).sum() for id in believed])),
    }
