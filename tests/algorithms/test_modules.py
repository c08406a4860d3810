"""What a client predicts with, as a module of its own, predicts the same."""

from dataclasses import dataclass

import pytest
import torch

import toys
from concordfl import Algorithm, Client, SettingError
from concordfl.algorithms import ALGORITHMS
from concordfl.core import Classification, Predictor, Scale, tree
from concordfl.engine.plan import Plan
from concordfl.toolbox import embedding, gaussian

METHODS = {
    name: method
    for name, method in (toys.all_methods() | toys.other_readings()).items()
    if method.classifies
}
PLAN = Plan(rounds=3, cohort=4, evaluate_every=9, noise_seed=0)
# who has nothing to predict with before it has adapted
NEED_EXAMPLES = {"concord", "fedem", "fedconceptem", "fedsoft", "ifca", "fesem", "cfl"} | {
    *("fedrep", "feddual", "local", "ditto")
}


def finished(method: Algorithm, network: str = "mlp"):
    """A run that has ended, its server's state, and a function that gives its clients."""
    made = toys.experiment(method, plan=PLAN, network=network)
    progress = made.run(made.start())
    published = {n: tree.unpack(data) for n, data in progress.publications.data.items()}

    def client(id, examples, **more) -> Client:
        setup = made.setup
        return Client(
            id,
            examples,
            objective=Classification(3),
            model=setup.model,
            training=setup.training,
            seed=0,
            round=made.turns[-1].stage_round,
            published=published.get,
            **more,
        )

    return made, progress.server, client


@pytest.mark.parametrize("name", METHODS)
def test_the_module_of_a_client_predicts_what_the_client_does(name):
    method = METHODS[name]
    made, server, client_of = finished(method)
    for id in ("client-0", "client-3", *(["held-out"] if method.accepts_new_clients else [])):
        new, splits = id == "held-out", made.federation.splits(id)
        packed = None if new else made.executor.states.get(id)
        state = None if packed is None else tree.unpack(packed)
        client = client_of(id, splits.train, has_state=state is not None)
        message = method.message(server, None if new else id)
        predictor = Predictor.prepare(method, client, state, message, new=new)
        expected = predictor.predictions(splits.test).double()
        module = method.module(client, predictor.state, predictor.message)
        with torch.no_grad():
            found = module(splits.test.inputs()).double()
        assert torch.allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", METHODS)
def test_somebody_without_examples_is_served_or_not(name):
    """By the mean of all clients' weights, by the only model, by the shared one; or not at all."""
    method = METHODS[name]
    made, server, client_of = finished(method)
    test = made.federation.splits("held-out").test
    message = method.message(server, None)
    nobody = client_of("somebody", made.federation.splits("held-out").validation)
    state = method.unadapted(nobody, message)
    if name.removesuffix("-skips").removesuffix("-density") in NEED_EXAMPLES:
        assert state is None
    else:
        predicted = method.predict(nobody, state, message, test)
        assert float((predicted.argmax(1) == test.y).double().mean()) > 0.6  # chance: 1/3


def test_normalisation_layers_that_nobody_has_fitted_serve_nobody():
    fedbn = ALGORITHMS["fedbn"]()
    made, server, client_of = finished(fedbn, "toys:batch_norm_net")
    nobody = client_of("somebody", made.federation.splits("held-out").validation)
    assert fedbn.unadapted(nobody, server) is None


def test_one_cluster_serves_everybody():
    cfl = ALGORITHMS["cfl"]()
    made, server, client_of = finished(cfl)
    nobody = client_of("somebody", made.federation.splits("held-out").validation)
    assert cfl.unadapted(nobody, cfl.message(server, None)) == {"best": 0}


@dataclass(frozen=True)
class OwnRule(ALGORITHMS["fedavg"]):
    def predict(self, client, state, message, examples):
        return 1 - client.predictions(message, examples)


def test_a_rule_without_a_module_is_refused():
    """A module that predicts something else would be worse than none."""
    _, server, client_of = finished(OwnRule())
    client = client_of("a", toys.federation().splits("client-0").train)
    with pytest.raises(SettingError, match="OwnRule must define `module`, as it defines"):
        OwnRule().module(client, {}, server)


@pytest.mark.parametrize("kind", ["full", "diag", "spherical"])
def test_densities_as_a_module(kind):
    generator = torch.Generator().manual_seed(0)
    x, means = torch.randn(2, 7, 3, generator=generator, dtype=torch.float64)
    root = torch.randn(7, 3, 3, generator=generator, dtype=torch.float64)
    full = root @ root.mT + torch.eye(3, dtype=torch.float64)
    covariances = {
        "full": full,
        "diag": full.diagonal(dim1=1, dim2=2),
        "spherical": full[:, 0, 0],
    }[kind]
    gaussians = gaussian.Gaussians(means, covariances)
    found = gaussian.LogDensity(gaussians)(x)
    assert torch.allclose(found, gaussian.log_density(gaussians, x), rtol=1e-12, atol=1e-12)


def test_an_encoder_sees_images_that_are_not_standardised(monkeypatch):
    monkeypatch.setattr(embedding, "encoder", lambda name: torch.nn.Flatten())
    images = torch.rand(4, 1, 3, 3)
    scale = Scale(torch.full((1, 1, 1), 0.3), torch.full((1, 1, 1), 0.2))
    module = embedding.Embedding("efficientnet-lite0", scale)
    seen = module((images - scale.mean) / scale.deviation)
    assert torch.allclose(seen, images.flatten(1).double(), atol=1e-6)
