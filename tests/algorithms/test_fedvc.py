"""FedVC: its limit, its EM pass against scikit-learn, its sums by hand, and preferences that tell
groups apart.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from torch import nn

import toys
from concordfl import Examples, SettingError, Training
from concordfl.algorithms import FedAvg, FedVC, FedVCsg
from concordfl.algorithms.fedvc import expressed, mapped
from concordfl.core import Batch, tree
from concordfl.data import Arrays, Federation
from concordfl.engine.plan import Plan


def finished(method, data=None, rounds=4, training=toys.TRAINING):
    made = toys.experiment(
        method, data, plan=Plan(rounds=rounds, evaluate_every=rounds), training=training
    )
    return made, made.run(made.start())


@dataclass(frozen=True)
class FedAvgProjected(FedAvg):
    """FedAvg on the network in which the classifier stands on the projection."""

    layers: int = 1

    def network(self, module, num_classes):
        method = FedVC(projection="through", projection_layers=self.layers)
        return method.network(module, num_classes)


@pytest.mark.parametrize("averages", ["restarted", "kept"])
@pytest.mark.parametrize("kind", [FedVC, FedVCsg])
def test_without_the_preference_loss_it_is_fedavg_to_the_bit(kind, averages):
    made, ours = finished(kind(projection="beside", weight=0.0, moving_averages=averages))
    _, theirs = finished(FedAvg())
    assert tree.equal(tree.subset(ours.server, theirs.server), theirs.server)
    assert set(ours.server) - set(theirs.server) == {
        name for name in made.setup.model.names if name.startswith(("projection", "concepts"))
    }


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [FedVC, FedVCsg])
def test_with_the_classifier_on_the_projection_it_is_fedavg_on_that_network(kind, layers):
    _, ours = finished(kind(projection="through", projection_layers=layers, weight=0.0))
    _, theirs = finished(FedAvgProjected(layers=layers))
    shared = set(theirs.server) - {"concepts"}
    assert tree.equal(tree.subset(ours.server, shared), tree.subset(theirs.server, shared))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("projection", ["through", "beside"])
def test_what_the_classifier_reads(projection, layers):
    """By hand: the head's weights times ẑ, or times the encoder's features; and ẑ itself."""
    data = toys.federation(clients=1)
    method = FedVC(concept_dim=4, projection=projection, projection_layers=layers)
    model = toys.model_for(method, data)
    params, x = model.init(3), data.splits("client-0").train.inputs()
    values = {name: value.double().numpy() for name, value in params.items()}

    def linear(name, inputs):
        return inputs @ values[f"{name}.weight"].T + values[f"{name}.bias"]

    features = model.features(params, x).double().numpy()
    z = linear("projection.0", features)
    if layers == 2:
        z = linear("projection.2", np.maximum(z, 0))
    expected = linear("head", z if projection == "through" else features)
    client = toys.client(data.splits("client-0").train, model)
    assert np.allclose(method._project(client, params, x).numpy(), z, atol=1e-5)
    assert np.allclose(model.logits(params, x).numpy(), expected, atol=1e-5)
    batch = Batch(x, client.examples.y, None, torch.arange(client.size))
    v = torch.full((10,), 0.1)
    plain = replace(method, weight=0.0)
    losses, _, _ = plain._losses(
        client, v, params["concepts"], params["concepts"][0], params, batch
    )
    assert torch.allclose(losses, client.losses(params), atol=1e-5)


def test_the_pass_is_the_e_step_of_a_gaussian_mixture():
    """Covariance I / (2ι), the client's own weights."""
    rng = np.random.default_rng(0)
    z, concepts, v = rng.normal(size=(50, 4)), rng.normal(size=(3, 4)), np.array([0.5, 0.3, 0.2])
    theirs = GaussianMixture(3, covariance_type="spherical")
    theirs.weights_, theirs.means_ = v, concepts
    theirs.covariances_ = np.full(3, 1 / (2 * 0.7))
    theirs.precisions_cholesky_ = 1 / np.sqrt(theirs.covariances_)
    ours = expressed(torch.tensor(z), torch.tensor(concepts), torch.tensor(v), similarity=0.7)
    assert np.allclose(ours.numpy(), theirs.predict_proba(z), atol=1e-10)


def test_concepts_are_the_means_of_what_expresses_them():
    """One full batch per client: (6), (7) are the sums times 1 - κ, which cancels in (10)."""
    data = toys.federation(clients=3)
    method = FedVC(num_concepts=4, concept_dim=3)
    made, progress = finished(
        method, data, rounds=1, training=Training(lr=0.05, batch_size=100, momentum=0.0, epochs=1)
    )
    start = made.setup.model.init(0)
    mass, total = torch.zeros(4), torch.zeros(4, 3)
    for id in data.participants:
        client = toys.client(data.splits(id).train, made.setup.model)
        z = method._project(client, start, client.examples.inputs())
        s = expressed(z, start["concepts"], torch.full((4,), 0.25), 0.1)
        v = s.mean(0)
        again = expressed(
            z, start["concepts"], v, 0.1
        )  # during training, with the client's new weights
        mass, total = mass + again.sum(0), total + again.T @ z
        assert torch.allclose(toys.state(made, id)["v"], v.double(), atol=1e-5)
    assert torch.allclose(progress.server["concepts"], total / mass[:, None], atol=1e-5)


def test_smoothing_keeps_a_part_of_the_old_average():
    data = toys.federation(clients=1, examples=16)
    made = toys.experiment(
        FedVC(smoothing=0.2), data, training=Training(lr=1e-6, batch_size=8, momentum=0.0, epochs=1)
    )
    server = made.setup.model.init(0)
    client = toys.client(
        data.splits("client-0").train,
        made.setup.model,
        Training(lr=1e-6, batch_size=8, momentum=0.0, epochs=1),
    )
    state, reply = FedVC(smoothing=0.2).train(client, FedVC().init_client(client, server), server)
    sums = toys.sent(reply)["sums"]
    batches = client.fold(lambda seen, batch: [*seen, batch], [])
    kept, placed = torch.zeros(10), torch.zeros(10, 10)
    for batch in batches:
        z = made.setup.model.call(
            server, made.setup.model.features(server, batch.x), part="projection"
        )
        s = expressed(z, server["concepts"], state["v"], 0.1)
        kept, placed = 0.2 * kept + 0.8 * s.sum(0), 0.2 * placed + 0.8 * s.T @ z
    assert torch.allclose(sums["s"], kept, atol=1e-3)
    assert torch.allclose(sums["c"], placed, atol=1e-3)


@pytest.mark.parametrize("kind", [FedVC, FedVCsg])
def test_kept_averages_go_on_from_round_to_round(kind):
    """Two rounds by hand in numpy: the pass goes through (6), (8) and (9) batch by batch, training
    through (6) to (8), and the second round begins where the first has ended. A rate of almost 0
    keeps the network in its place.
    """
    data = toys.federation(clients=1, examples=16)
    training = Training(lr=1e-9, batch_size=8, momentum=0.0, epochs=2)
    method = kind(num_concepts=3, concept_dim=2, smoothing=0.3, moving_averages="kept")
    model = toys.model_for(method, data)
    client = toys.client(data.splits("client-0").train, model, training)
    server = model.init(0)
    concepts = server["concepts"].double().numpy()
    v, total, placed, count = np.full(3, 1 / 3), np.zeros(3), np.zeros((3, 2)), 0.0
    state = method.init_client(client, server)
    for _ in range(2):
        state, reply = method.train(client, state, server)
        passes = [("preference", 1)] + [("fit", 2)] * (kind is FedVC)
        for purpose, epochs in passes:
            for batch in client.fold(
                lambda seen, batch: [*seen, batch], [], epochs=epochs, purpose=purpose
            ):
                z = method._project(client, server, batch.x).double().numpy()
                s = v * np.exp(-0.1 * ((z[:, None] - concepts) ** 2).sum(2))
                s /= s.sum(1, keepdims=True)
                total, placed = 0.3 * total + 0.7 * s.sum(0), 0.3 * placed + 0.7 * s.T @ z
                count = 0.3 * count + 0.7 * len(z)
                v = total / count if purpose == "preference" else v
    assert np.allclose(state["v"].numpy(), v, atol=1e-5)
    for name, expected in (("S", total), ("C", placed), ("N", count)):
        assert np.allclose(state["averages"][name].numpy(), expected, atol=1e-4)
    if kind is FedVC:
        assert np.allclose(toys.sent(reply)["sums"]["s"].numpy(), total, atol=1e-4)


def test_a_new_client_without_examples_to_adapt_to():
    made, progress = finished(FedVC())
    some = made.federation.splits("client-0").train
    client = toys.client(Examples(some.x[:0], some.y[:0]), made.setup.model)
    state = made.algorithm.adapt(
        client, made.algorithm.init_client(client, progress.server), progress.server, new=True
    )
    assert torch.allclose(state["v"], torch.full((10,), 0.1, dtype=torch.float64))
    assert made.algorithm.inspect(client, state, progress.server)["map"].shape == (0, 2)


def test_a_concept_that_nobody_expresses_keeps_its_place(monkeypatch):
    made = toys.experiment(FedVC(num_concepts=2), plan=Plan(rounds=1))
    progress = made.start()
    server = dict(progress.server)
    server["concepts"] = server["concepts"].clone()
    server["concepts"][1] = 1e4  # infinitely far away
    progress.server = server
    made.play(made.turns[0], progress)
    assert torch.equal(progress.server["concepts"][1], server["concepts"][1])
    assert not torch.equal(progress.server["concepts"][0], server["concepts"][0])


def test_the_unified_loss_is_equation_12():
    """The gradients of its two halves, by torch's own differentiation of each with the other side
    held.
    """
    data = toys.federation(clients=1)
    method = FedVCsg(num_concepts=3, concept_dim=2, gamma=0.3)
    model = toys.model_for(method, data)
    client = toys.client(data.splits("client-0").train, model)
    params, v = model.init(0), torch.tensor([0.2, 0.3, 0.5])
    batch = Batch(client.examples.x, client.examples.y, None, torch.arange(client.size))
    found = client.grad(lambda live, b: method._unified_loss(client, v, live, b), params, batch)[
        "concepts"
    ]
    concepts = params["concepts"].clone().requires_grad_()
    z = model.call(params, model.features(params, batch.x), part="projection")
    s = expressed(z, concepts, v, 0.1)
    estimate, preference = s @ concepts, v @ concepts
    loss = (estimate - preference.detach()).square().sum(1).mean() + 0.3 * (
        estimate.detach() - preference
    ).square().sum(1).mean()
    (expected,) = torch.autograd.grad(loss, concepts)
    assert torch.allclose(found, expected, atol=1e-6)


def groups(clients=12, examples=40, seed=0):
    """Three groups of clients with classes of their own."""
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(6, 8))

    def draw(group, size):
        y = rng.integers(2, size=size) + 2 * group
        return Arrays((centres[y] + rng.normal(size=(size, 8))).astype(np.float32), y)

    parts = {
        f"c{i:02d}": (draw(i % 3, examples), draw(0, 0), draw(i % 3, 20)) for i in range(clients)
    }
    truth = {id: {"concept": str(place % 3)} for place, id in enumerate(parts)}
    return Federation.build(parts, {"new": (draw(1, examples), draw(0, 0), draw(1, 20))}, 6, truth)


def spread_within(made, data):
    """Of the samples' estimates: their variance within clients, as a share of all of it."""
    seen = [toys.rows(made)[id]["estimates"].numpy() for id in data.participants]
    return sum(part.var(0).sum() for part in seen) / len(seen) / np.concatenate(seen).var(0).sum()


TRAINING_OF_GROUPS = Training(lr=0.05, momentum=0.9, batch_size=10, epochs=2)
THROUGH = {"projection": "through", "projection_layers": 1}
BESIDE = {"projection": "beside", "projection_layers": 2}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (FedVC, {**THROUGH, "similarity": 0.1}),
        (FedVCsg, {**THROUGH, "similarity": 1.0}),
        (FedVC, {**BESIDE, "similarity": 1.0}),
        (FedVCsg, {**BESIDE, "similarity": 1.0}),
    ],
)
def test_preferences_tell_groups_apart(kind, settings):
    """And the preference loss draws a client's samples together: without it they spread wider."""
    data = groups()
    made, _ = finished(kind(**settings), data, rounds=25, training=TRAINING_OF_GROUPS)
    seen = toys.rows(made)
    points = np.stack([seen[id]["preference"].numpy() for id in data.participants])
    found = KMeans(3, n_init=10, random_state=0).fit_predict(points)
    assert (
        adjusted_rand_score([data.groups[id]["concept"] for id in data.participants], found) > 0.9
    )
    assert made.records[-1]["local"]["accuracy"] > 0.9
    assert made.records[-1]["global"]["accuracy"] > 0.9
    plain, _ = finished(kind(**settings, weight=0.0), data, rounds=25, training=TRAINING_OF_GROUPS)
    assert spread_within(made, data) < 0.8 * spread_within(plain, data)


@pytest.mark.parametrize(
    ("settings", "similarity", "together"),
    [(THROUGH, 0.1, False), (THROUGH, 0.001, True), (BESIDE, 0.1, True)],
)
def test_concepts_stay_apart_at_the_papers_similarity_on_the_way_to_the_classifier(
    settings, similarity, together
):
    """Figure 8's order: apart at ι = 0.1, next to one point at 0.001; beside the classifier they
    are that at 0.1 too. They begin about 0.4 apart.
    """
    method = FedVC(**settings, similarity=similarity)
    made, _ = finished(method, groups(), rounds=25, training=TRAINING_OF_GROUPS)
    apart = made.records[-1]["server"]["apart"]
    assert apart < 0.02 if together else apart > 1


def test_records_show_what_a_client_is_about():
    made, _ = finished(FedVC(num_concepts=4), rounds=2)
    shown = toys.rows(made)["client-2"]
    assert shown["typical"]["samples"].shape == shown["typical"]["expressed"].shape == (4, 3)
    assert float(shown["weights"].sum()) == pytest.approx(1, abs=1e-4)
    assert shown["estimates"].shape == (20, 10)
    assert shown["map"].shape == (20, 2)
    assert (shown["typical"]["expressed"].diff(dim=1) <= 0).all()
    server = made.records[-1]["server"]
    assert server["concepts"].shape == (4, 10)
    assert server["map"].shape == (4, 2)
    assert 0 < server["apart"] < 10
    assert FedVC(num_concepts=1).describe({"concepts": torch.zeros(1, 3)})["apart"] == 0


def em(z, concepts, v, similarity, steps):
    """Concepts after steps of (1), (4) and (5); z (K, N, D) of clients, v (K, M) is theirs, or one
    (M,) that stands still.
    """
    for _ in range(steps):
        s = torch.stack(
            [
                expressed(own, concepts, weights, similarity)
                for own, weights in zip(z, v.expand(len(z), -1), strict=True)
            ]
        )
        v = s.mean(1) if v.ndim == 2 else v
        concepts = torch.einsum("knm,knd->md", s, z) / s.sum((0, 1))[:, None]
    return concepts


def two_clients():
    """Of two groups of samples, one at each, and the similarity at which 2ι times the largest
    variance of all samples is 1.
    """
    rng = np.random.default_rng(0)
    z = torch.tensor(np.stack([rng.normal(m, 0.1, size=(50, 2)) for m in (-1.0, 1.0)]))
    variance = np.linalg.eigvalsh(np.cov(z.reshape(-1, 2).T.numpy(), bias=True))[-1]
    return z, 1 / (2 * variance)


def test_with_one_v_for_all_concepts_become_one_below_a_critical_similarity():
    z, critical = two_clients()
    start = torch.tensor([[0.01, 0.0], [-0.01, 0.0]], dtype=torch.float64)
    shared = torch.full((2,), 0.5, dtype=torch.float64)
    for similarity, separate in ((0.8 * critical, False), (1.2 * critical, True)):
        concepts = em(z, start, shared, similarity, steps=500)
        assert (float(torch.pdist(concepts)) > 0.1) == separate


def test_with_a_v_of_every_client_concepts_escape_from_one_point_slowly():
    """At a tenth of the critical similarity: from 0.2 they fall to 0.014 in one step, are still
    nearer than they began after 20, and part in the end.
    """
    z, critical = two_clients()
    start = torch.tensor([[0.1, 0.0], [-0.1, 0.0]], dtype=torch.float64)
    own = torch.full((2, 2), 0.5, dtype=torch.float64)
    first, early, late = (
        float(torch.pdist(em(z, start, own, 0.1 * critical, steps))) for steps in (1, 20, 200)
    )
    assert first < 0.02
    assert early < 0.2
    assert late > 2


@pytest.mark.parametrize(("count", "dimensions"), [(10, 10), (3, 6), (2, 1), (1, 4)])
def test_the_map_is_the_concepts_plane_of_largest_spread(count, dimensions):
    concepts, points = torch.randn(count, dimensions), torch.randn(7, dimensions)
    flat, own = mapped(points, concepts).numpy(), mapped(concepts, concepts).numpy()
    kept = min(2, count, dimensions)
    assert np.isfinite(flat).all()
    assert (flat[:, kept:] == 0).all()
    if count > 1:
        plane = PCA(kept).fit(concepts.numpy())
        for ours, theirs in (
            (flat, plane.transform(points.numpy())),
            (own, plane.transform(concepts.numpy())),
        ):
            assert np.allclose(np.abs(ours[:, :kept]), np.abs(theirs), atol=1e-4)


def test_models_that_have_no_place_for_concepts():
    with pytest.raises(
        SettingError, match="fedvc needs a model with an encoder and a linear head, got Sequential"
    ):
        FedVC().network(nn.Sequential(), 2)
