"""A finished run, loaded again with what its clients keep, predicts exactly what it reported."""

import pytest

from concordfl import CheckpointError, resume, run
from concordfl.algorithms import ALGORITHMS
from concordfl.deploy.finished import FinishedRun
from concordfl.metrics import score
from concordfl.runner import load_config, make_federation

SHORT = {"clusters": 2, "encoder_rounds": 2, "head_rounds": 2, "random_inputs": 50}
CLASSIFY = [name for name, kind in ALGORITHMS.items() if kind.classifies]


@pytest.mark.parametrize("name", CLASSIFY)
def test_loading_gives_identical_accuracy(name, tmp_path):
    sections = {
        "data": {"name": "digits", "limit": 400},
        "scenario": {"clients": 5, "partition": {"kind": "dirichlet-by-client", "alpha": 1.0}},
        "model": {"name": "mlp", "hidden": [12]},
        "training": {"lr": 0.05, "momentum": 0.9},
        "run": {
            "rounds": 3,
            "cohort": 3,
            "evaluate_every": 3,
        },  # some clients may never have been asked
        "algorithm": {"name": name, **(SHORT if name.startswith("fedconcat") else {})},
    }
    result = run(**sections, out=tmp_path / "run")
    loaded = FinishedRun.open(tmp_path / "run")
    federation = make_federation(load_config(sections))
    reported = result.clients()
    for id in federation.participants:
        splits = federation.splits(id)
        predicted = loaded.predictor(id, splits.train, new=False).predictions(splits.test)
        accuracy = score(predicted.numpy(), splits.test.y.numpy()).accuracy
        assert accuracy == reported[id]["accuracy"]
    personal = list((tmp_path / "run/models").glob("clients/*.safetensors"))
    assert bool(personal) == (
        ALGORITHMS[name].personal and name not in ("fedavg-ft", "ifca", "cfl", "fesem")
    )


def test_an_earlier_checkpoint_does_not_stand_in_for_the_last(tmp_path):
    """It would answer with another round's model."""
    run(
        data={"name": "digits", "limit": 100},
        scenario={"clients": 2},
        run={"rounds": 2, "checkpoint_seconds": 0.0, "executor": "serial"},
        out=tmp_path / "run",
    )
    assert FinishedRun.open(tmp_path / "run").progress.round == 2
    (tmp_path / "run/checkpoint/server-00000002.bin").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"of its last round, 2, got one of round 1 \(.*00002"
    ):
        FinishedRun.open(tmp_path / "run")
    for newest in (tmp_path / "run/checkpoint").glob("*00000002*"):
        newest.unlink()
    with pytest.raises(CheckpointError, match="got one of round 1"):
        FinishedRun.open(tmp_path / "run")
    (tmp_path / "run/summary.json").unlink()
    resume(tmp_path / "run")
    assert FinishedRun.open(tmp_path / "run").progress.round == 2
