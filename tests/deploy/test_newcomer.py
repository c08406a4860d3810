"""A client that was not in training joins a finished run."""

import numpy as np
from sklearn.datasets import load_digits

from concordfl import run
from concordfl.deploy.newcomer import adapt


def test_a_newcomer_tunes_the_shared_model_where_the_run_says_so(tmp_path):
    """FedAvg with `tune_new` then serves it as FedAvg-FT does."""
    x, y = load_digits(return_X_y=True)
    np.savez(
        tmp_path / "clinic.npz", x=x[1500:].reshape(-1, 8, 8, 1).astype(np.uint8) * 15, y=y[1500:]
    )
    tested = {}
    for name, tune in (("fedavg", 2), ("fedavg-ft", 0), ("fedavg", 0)):
        folder = tmp_path / f"{name}-{tune}"
        algorithm = {"name": name, **({"tune_epochs": 2} if name == "fedavg-ft" else {})}
        run(
            data={"name": "digits", "limit": 300},
            run={"rounds": 2, "tune_new": tune},
            algorithm=algorithm,
            out=folder,
        )
        tested[name, tune] = adapt(folder, tmp_path / "clinic.npz")["tested_on"]
    assert tested["fedavg", 2] == tested["fedavg-ft", 0]
    assert tested["fedavg", 2]["loss"] < tested["fedavg", 0]["loss"]
