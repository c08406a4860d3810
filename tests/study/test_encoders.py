"""What encoders know, measured: against the best that can be said of constant and of told
features.
"""

import numpy as np
import pytest
import torch

import toys
from concordfl import SettingError, run
from concordfl.algorithms import FedAvg
from concordfl.core import Examples
from concordfl.study.encoders import encoder_tables, probe


def three_classes():
    """A client with classes 0, 1, 2 of unequal size, each around a centre of its own."""
    rng = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 300 + [1] * 200 + [2] * 100)
    x = 0.1 * torch.randn(600, 5, generator=rng) + torch.randn(3, 5, generator=rng)[y]
    model = toys.model_for(FedAvg(), toys.federation(), "linear")
    return toys.client(Examples(x, y), model), x.double().numpy(), y.numpy()


def test_constant_features_tell_no_more_than_the_means():
    """The best classifier says the shares of the classes, the best decoder the mean input."""
    client, x, _ = three_classes()
    shares = np.array([3, 2, 1]) / 6
    found = probe(client, torch.ones(600, 4))
    assert found["classification"] == pytest.approx(-(shares * np.log(shares)).sum(), rel=0.02)
    assert found["reconstruction"] == pytest.approx(x.var(0).mean(), rel=0.02)


def test_features_that_are_the_label_leave_what_varies_within_a_class():
    client, x, y = three_classes()
    found = probe(client, 3 * torch.eye(3)[torch.from_numpy(y)])
    within = np.mean([(x[y == label].var(0).mean()) for label in y])
    assert found["classification"] < 0.1
    assert found["reconstruction"] == pytest.approx(within, rel=0.1)


def local_run(**sections):
    return run(
        run={"rounds": 1, "seed": 1},
        data={"name": "digits", "limit": 500, "standardise": False},
        scenario={
            "clients": 5,
            "partition": {"kind": "labels-per-client", "labels": 2},
            "split": [1.0, 0.0, 0.0],
        },
        model={"name": "mlp", "hidden": [8]},
        training={"lr": 0.1, "batch_size": 16, "epochs": 30},
        **sections,
    )


def test_an_encoder_is_best_for_the_labels_that_it_was_trained_on(tmp_path):
    finished = local_run(algorithm={"name": "local"}, out=tmp_path / "run").finished
    found = encoder_tables(finished)
    assert list(found["classes"]) == list(finished.federation().participants[:2])
    for client in ("f_e1", "f_e2"):
        own, others = (found["exchange"][f"{client}, {whose}"] for whose in ("own", "exchanged"))
        assert own["classification"] < others["classification"]
    alone = [found["together"][name]["classification"] for name in ("f_e1", "f_e2", "f_avg")]
    assert found["together"]["f_e"]["classification"] < min(alone)


def test_encoders_of_other_methods_are_not_exchanged(tmp_path):
    finished = local_run(algorithm={"name": "fedavg"}, out=tmp_path / "run").finished
    with pytest.raises(SettingError, match="two clients of a run of 'local', got 'fedavg' with 5"):
        encoder_tables(finished)
