"""What is looked at in finished runs of the papers."""

import numpy as np
import pytest

from concordfl import SettingError, run
from concordfl.papers.measures import MEASURES


def play(folder, **algorithm):
    return run(
        run={"rounds": 1},
        data={"name": "digits", "standardise": False},
        scenario={"clients": 4, "partition": {"kind": "labels-per-client", "labels": 3}},
        model={"name": "linear"},
        algorithm=algorithm,
        out=folder,
    ).finished


def test_label_shares_beside_the_true_ones(tmp_path):
    stages = {"clusters": 2, "encoder_rounds": 1, "head_rounds": 1}
    told, inferred = (
        MEASURES["label-shares"](play(tmp_path / infer, name="fedconcat", infer=infer, **stages))
        for infer in ("labels", "model")
    )
    assert told["distance"] == pytest.approx(0)
    assert 0 < inferred["distance"] <= 2
    (panel,) = inferred["panels"]
    true, believed = (np.array(series["y"]) for series in panel["series"])
    assert [series["name"] for series in panel["series"]] == ["true", "fedconcat"]
    assert np.count_nonzero(true) == 3
    assert true.sum() == pytest.approx(1)
    assert believed.sum() == pytest.approx(1)


def test_label_shares_of_a_method_that_knows_none(tmp_path):
    with pytest.raises(SettingError, match="label shares are known in runs of fedconcat"):
        MEASURES["label-shares"](play(tmp_path / "run", name="fedavg"))
