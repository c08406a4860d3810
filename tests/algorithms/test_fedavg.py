"""FedAvg and the methods that differ from it in one thing."""

from functools import partial
from pathlib import Path

import pytest
import torch

import concordfl.algorithms
import toys
from concordfl import SettingError, Training
from concordfl.algorithms import Centralized, FedAvg, FedAvgFineTuned, FedProx, Local
from concordfl.core import Classification, tree
from concordfl.engine.plan import Plan


def lines_of_code(name):
    """Without blank lines, comments, docstrings and imports."""
    import ast

    source = Path(concordfl.algorithms.__file__).with_name(f"{name}.py").read_text()
    tree_ = ast.parse(source)
    tree_.body = [
        node for node in tree_.body if not isinstance(node, (ast.Import, ast.ImportFrom))
    ][1:]
    return len([line for line in ast.unparse(tree_).splitlines() if line.strip()])


def test_files_stay_short():
    assert lines_of_code("fedavg") <= 40
    assert lines_of_code("fedprox") <= 15


def test_fedprox_with_weight_zero_is_fedavg():
    assert toys.digests(toys.experiment(FedProx(mu=0.0))) == toys.digests(toys.experiment(FedAvg()))


def test_fedprox_stays_nearer_to_where_it_started():
    def moved(algorithm):
        made = toys.experiment(
            algorithm,
            plan=Plan(rounds=1),
            training=Training(lr=0.05, batch_size=8, epochs=5, momentum=0.0),
        )
        return tree.sq_dist(made.run(made.start()).server, made.setup.model.init(0)).item()

    distances = [moved(FedProx(mu=mu)) for mu in (0.0, 1.0, 10.0)]
    assert distances == sorted(distances, reverse=True)
    assert distances[2] < distances[0] / 4


def test_fedprox_gradient_is_that_of_the_formula():
    data = toys.federation(clients=1)
    model = toys.model_for(FedProx(), data, hidden=[8])
    client = toys.client(data.splits("client-0").train, model)
    message, params = model.init(0), model.init(1)
    prox = client.fold(
        lambda found, batch: found or (
            client.grad(partial(FedProx(mu=0.3).local_loss, client, {}, message), params, batch),
            client.grad(client.loss, params, batch),
        ),
        None,
        steps=1,
    )  # fmt: skip
    for name in message:
        assert torch.allclose(
            prox[0][name], prox[1][name] + 0.3 * (params[name] - message[name]), atol=1e-6
        )


def test_bad_hyper_parameters_are_refused_however_they_come():
    with pytest.raises(SettingError, match=r"^mu must be >= 0, got -1$"):
        FedProx(mu=-1)
    with pytest.raises(SettingError, match=r"^algorithm.mu must be >= 0, got -1.0$"):
        FedProx.from_table({"mu": -1.0}, "algorithm")


def test_fine_tuning_is_local_training_from_the_common_model():
    made = toys.experiment(FedAvgFineTuned(tune_epochs=2), plan=Plan(rounds=2))
    progress = made.run(made.start())
    plain = toys.experiment(FedAvg(), plan=Plan(rounds=2))
    assert tree.equal(progress.server, plain.run(plain.start()).server)
    client = toys.client(made.federation.splits("client-1").train, made.setup.model)
    tuned = FedAvgFineTuned(tune_epochs=2).adapt(client, {}, progress.server, new=False)["tuned"]
    assert tree.equal(tuned, client.fit(progress.server, epochs=2, purpose="tune"))


def test_local_is_the_same_however_many_clients_there_are():
    def state(clients):
        made = toys.experiment(Local(), toys.federation(clients=clients), plan=Plan(rounds=3))
        made.run(made.start())
        return toys.state(made, "client-0")

    assert tree.equal(state(1), state(4))


def test_local_learns_each_concept_and_has_no_global_figure():
    summary = toys.result(toys.experiment(Local(), plan=Plan(rounds=15)))
    assert summary["final"]["local_accuracy"] > 0.85
    assert "global_accuracy" not in summary["final"]


def test_centralized_is_training_on_all_examples():
    made = toys.experiment(Centralized(), plan=Plan(rounds=2))
    progress = made.run(made.start())
    data, params = made.federation, made.setup.model.init(0)
    x = torch.cat([data.splits(id).train.x for id in data.participants])
    y = torch.cat([data.splits(id).train.y for id in data.participants])
    for round in range(2):
        client = toys.Client(
            "pooled",
            toys.Examples(x, y),
            objective=Classification(3),
            model=made.setup.model,
            training=made.setup.training,
            seed=0,
            round=round,
        )
        params = client.fit(params)
    for name, value in params.items():
        assert torch.allclose(progress.server[name], value, atol=1e-6)
    assert made.summary(progress)["final"]["local_accuracy"] > 0
