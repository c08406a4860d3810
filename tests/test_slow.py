"""What takes minutes: `make slow`."""

from pathlib import Path

import pytest

import concordfl as cf
from concordfl import DataError, Key
from concordfl.data.datasets import DATASETS

EXPERIMENTS = Path(__file__).parents[1] / "experiments"


@pytest.mark.slow
def test_fedavg_learns_fashion_mnist():
    """100 clients, 20 a round, lenet, batch 32: above 80% on the official test set within 30
    rounds.
    """
    try:
        DATASETS["fashion-mnist"](limit=1).load(Key(0))
    except DataError as error:
        pytest.skip(f"the data are not here: {error}")
    result = cf.run(EXPERIMENTS / "fedavg/fmnist_iid.toml")
    assert max(record["global"]["accuracy"] for record in result.records) > 0.8
