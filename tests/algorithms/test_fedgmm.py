"""FedGMM against scikit-learn, FedEM and the paper's own example."""

import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import toys
from concordfl import SettingError, run
from concordfl.algorithms.fedem import FedEM
from concordfl.algorithms.fedgmm import FedGMM
from concordfl.algorithms.fedgmm_unsupervised import FedGMMUnsupervised
from concordfl.algorithms.gaussian_mixture import FedGMMMixture
from concordfl.core import Training, tree
from concordfl.data import Arrays, Federation
from concordfl.engine import evaluate
from concordfl.engine.plan import Plan

KINDS = ("full", "diag", "spherical", "identity")


def pooled(seed=0, size=240, features=4):
    """Three overlapping clouds."""
    rng = np.random.default_rng(seed)
    centres = 2 * rng.normal(size=(3, features))
    z = rng.integers(3, size=size)
    return (
        centres[z] + rng.normal(size=(size, features)) @ rng.normal(size=(features, features))
    ).astype(np.float32), z


def split_up(x, y, cuts):
    """A federation of consecutive pieces."""
    pieces = [Arrays(*part) for part in zip(np.split(x, cuts), np.split(y, cuts), strict=True)]
    nothing = Arrays(x[:0], y[:0])
    return Federation.build(
        {f"c{i}": (piece, nothing, piece) for i, piece in enumerate(pieces)}, {}, 3
    )


def played(algorithm, data, rounds):
    """The server's state after the start, and after `rounds` rounds; and the experiment and
    progress.
    """
    made = toys.experiment(algorithm, data, plan=Plan(rounds=rounds, evaluate_every=1000))
    progress = made.start()
    start = None
    for turn in made.turns:
        if turn.stage.name == "train" and start is None:
            start = progress.server
        made.play(turn, progress)
    return start, progress.server, made, progress


def by_scikit_learn(x, start, kind, regulariser, rounds):
    """The same EM on the pooled examples: weights, means and covariances."""
    means, covariances = start.gaussians
    if kind == "identity":
        return _identity_em(x.astype(np.float64), means.numpy(), rounds)
    precisions = np.linalg.inv(covariances.numpy()) if kind == "full" else 1 / covariances.numpy()
    theirs = GaussianMixture(
        len(means),
        covariance_type=kind,
        reg_covar=regulariser,
        max_iter=rounds,
        tol=0,
        weights_init=start.pi.flatten().numpy(),
        means_init=means.numpy(),
        precisions_init=precisions,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        theirs.fit(x.astype(np.float64))
    return theirs.weights_, theirs.means_, theirs.covariances_


def _identity_em(x, means, rounds):
    weights = np.full(len(means), 1 / len(means))
    for _ in range(rounds):
        q = weights * np.exp(-((x[:, None] - means) ** 2).sum(2) / 2)
        q /= q.sum(1, keepdims=True)
        weights, means = q.mean(0), q.T @ x / q.sum(0)[:, None]
    return weights, means, np.ones(len(means))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15, deadline=None)
@given(st.integers(0, 100), st.lists(st.integers(1, 239), max_size=6))
def test_many_rounds_with_shared_weights_are_em_on_the_pooled_examples(kind, seed, cuts):
    x, y = pooled(seed)
    algorithm = FedGMMUnsupervised(
        embedding="identity", covariance_type=kind, shared_weights=True, regulariser=1e-3
    )
    start, end, _, _ = played(algorithm, split_up(x, y, sorted(set(cuts))), rounds=8)
    weights, means, covariances = by_scikit_learn(x, start, kind, 1e-3 * start.variance, rounds=8)
    assert np.allclose(end.gaussians.means, means, atol=1e-6)
    assert np.allclose(end.gaussians.covariances, covariances, atol=1e-6)
    assert np.allclose(end.pi, weights, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_one_round_from_equal_weights_is_em_on_the_pooled_examples(kind):
    x, y = pooled(7)
    algorithm = FedGMMUnsupervised(embedding="identity", covariance_type=kind, regulariser=1e-3)
    start, end, made, _ = played(algorithm, split_up(x, y, [10, 100]), rounds=1)
    _, means, covariances = by_scikit_learn(x, start, kind, 1e-3 * start.variance, rounds=1)
    assert np.allclose(end.gaussians.means, means, atol=1e-6)
    assert np.allclose(end.gaussians.covariances, covariances, atol=1e-6)
    own = [toys.state(made, f"c{i}")["pi"] for i in range(3)]
    assert torch.allclose(end.pi, torch.stack(own).mean(0))


@pytest.mark.parametrize("kind", ["full", "diag", "spherical", "identity"])
@pytest.mark.parametrize("seed", range(3))
def test_the_log_likelihood_never_falls(kind, seed):
    """Theorem 1; also with covariances, if they are exact and not regularised. Every client has
    weights of its own.
    """
    x, y = pooled(seed)
    data = split_up(x, y, [30, 150])
    algorithm = FedGMMUnsupervised(embedding="identity", covariance_type=kind, regulariser=0.0)
    made = toys.experiment(algorithm, data, plan=Plan(rounds=30, evaluate_every=1000))
    progress, found = made.start(), []
    for turn in made.turns:
        made.play(turn, progress)
        if turn.stage.name == "train":
            found.append(sum(_training_likelihood(made, progress, id) for id in data.participants))
    assert np.diff(found).min() >= -1e-9 * abs(found[0])
    assert found[-1] > found[0]


def _training_likelihood(made, progress, id):
    client = toys.client(
        made.federation.splits(id).train,
        made.setup.model,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    message = made.algorithm.message(progress.server, id)
    state = FedGMMMixture(toys.state(made, id)["pi"])
    return float(made.algorithm.likelihood(client, state, message, client.examples).log_x.sum())


def accuracies(made):
    """Of the participants, one by one."""
    return {id: row["accuracy"] for id, row in toys.rows(made).items() if not row["new"]}


def test_with_one_gaussian_it_is_fedem():
    """Then p(x) says nothing about which classifier to take."""
    plan = Plan(rounds=6, evaluate_every=6)
    ours = toys.experiment(FedGMM(num_gaussians=1, embedding="identity"), plan=plan)
    theirs = toys.experiment(FedEM(aggregate="responsibility"), plan=plan)
    left, right = (made.run(made.start()).server for made in (ours, theirs))
    for k in range(3):
        for name, value in right[k].items():
            assert torch.allclose(left.models[k][name], value, atol=1e-5)
    (mine,), (other,) = ours.records, theirs.records
    assert accuracies(ours) == accuracies(theirs)
    assert mine["global"]["loss"] == pytest.approx(other["global"]["loss"], abs=1e-5)


def test_prediction_is_equation_3():
    made = toys.experiment(
        FedGMM(num_gaussians=2, num_models=3, embedding="identity"),
        plan=Plan(rounds=3, evaluate_every=3),
    )
    progress = made.run(made.start())
    id = "client-1"
    splits = made.federation.splits(id)
    client = toys.client(
        splits.train,
        made.setup.model,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    message = made.algorithm.message(progress.server, id)
    state = FedGMMMixture(toys.state(made, id)["pi"])
    x = splits.test.x.double()
    densities = torch.stack(
        [
            torch.distributions.MultivariateNormal(mean, covariance).log_prob(x)
            for mean, covariance in zip(*progress.server.gaussians, strict=True)
        ]
    ).exp()  # (M1, N)
    classes = torch.stack(
        [client.predictions(params, splits.test).double() for params in message.models.values()]
    )
    above = torch.einsum("ab,an,bny->ny", state.pi, densities, classes)
    below = torch.einsum("ab,an->n", state.pi, densities)
    predicted = made.algorithm.predict(client, state, message, splits.test)
    assert torch.allclose(predicted, above / below[:, None], atol=1e-10)
    likelihood = made.algorithm.likelihood(client, state, message, splits.test)
    assert torch.allclose(likelihood.log_x, below.log(), atol=1e-10)
    assert torch.allclose(
        likelihood.joint, above[torch.arange(len(x)), splits.test.y].log(), atol=1e-6
    )


def test_figure_1():
    """Error near the best possible 0.051 where p(x) is modelled; FedEM cannot know which threshold
    is meant.
    """

    def error(**algorithm):
        result = run(
            data={"name": "two-gaussians", "clients": 4},
            scenario={"partition": {"kind": "natural"}},
            model={"name": "linear"},
            training={"lr": 1.0, "batch_size": 128},
            run={"rounds": 60, "evaluate_every": 60},
            algorithm=algorithm,
        )
        return 1 - result.summary["final"]["global_accuracy"]

    assert error(name="fedgmm", num_gaussians=2, num_models=2, embedding="identity") < 0.085
    assert error(name="fedem", num_models=2) > 0.2


def test_federated_principal_components_are_the_pooled_ones():
    data = toys.image_federation()
    *_, progress = played(FedGMM(embedding="pca", dimensions=5, num_models=1), data, rounds=1)
    x = np.concatenate(
        [data.splits(id).train.inputs().flatten(1).numpy() for id in data.participants]
    ).astype(np.float64)
    theirs = PCA(5, svd_solver="full").fit(x)
    axes = tree.unpack(progress.publications.data["embedding"])["frame"].axes.numpy()
    signs = np.sign((axes * theirs.components_.T).sum(0))
    assert np.allclose(axes * signs, theirs.components_.T, atol=1e-5)
    assert progress.server.gaussians.means.shape == (3, 5)


def test_an_encoder_sees_every_example_once(monkeypatch):
    import toy_models

    monkeypatch.setattr(toy_models, "SEEN", [])
    algorithm = FedGMM(embedding="toy_models:counting_encoder", dimensions=2)
    made = toys.experiment(algorithm, plan=Plan(rounds=5, evaluate_every=1))
    made.run(made.start())
    data = made.federation
    participants = sum(len(split) for id in data.participants for split in data.splits(id))
    held_out = sum(len(data.splits(id).train) + len(data.splits(id).test) for id in data.held_out)
    assert sum(toy_models.SEEN) == participants + held_out


def test_embeddings_that_cannot_be():
    with pytest.raises(
        SettingError,
        match="embedding must be identity, pca, efficientnet-lite0, .* or .* got 'pcs': did you "
        "mean 'pca'",
    ):
        FedGMM(embedding="pcs")
    for name, rule in {
        "toy_models:nothing": "must be importable as .*, got 'toy_models:nothing'",
        "nowhere:nothing": "must be importable as .*, got 'nowhere:nothing'",
        "toy_models:no_encoder": "that returns an nn.Module, got int",
    }.items():
        made = toys.experiment(FedGMM(embedding=name))
        with pytest.raises(Exception, match=rule):
            made.run(made.start())


def test_new_clients_learn_their_weights_alone():
    made = toys.experiment(FedGMM(embedding="identity"), plan=Plan(rounds=4, evaluate_every=4))
    progress = made.run(made.start())
    before = tree.digest(progress.server)
    splits = made.federation.splits("held-out")
    client = toys.client(
        splits.train,
        made.setup.model,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    message = made.algorithm.message(progress.server, None)
    state = made.algorithm.adapt(
        client, made.algorithm.init_client(client, message), message, new=True
    )
    assert 1 <= state.steps <= 200
    assert float(state.pi.sum()) == pytest.approx(1)
    joint = made.algorithm.likelihood(client, state, message, splits.train).joint.mean()
    equal = made.algorithm.likelihood(
        client, FedGMMMixture(made.algorithm.equal_weights()), message, splits.train
    ).joint.mean()
    assert joint > equal
    assert tree.digest(progress.server) == before


@pytest.mark.parametrize("steps", [1, 3])
def test_a_new_client_may_take_a_few_steps_only(steps):
    """Figure 8; beside EM on equal weights, by hand."""
    algorithm = FedGMM(embedding="identity", adapt_steps=steps)
    made = toys.experiment(algorithm, plan=Plan(rounds=4, evaluate_every=4))
    progress = made.run(made.start())
    client = toys.client(
        made.federation.splits("held-out").train,
        made.setup.model,
        published=lambda name: tree.unpack(progress.publications.data[name]),
    )
    message = algorithm.message(progress.server, None)
    state = algorithm.adapt(client, algorithm.init_client(client, message), message, new=True)
    likelihoods = np.exp(-algorithm.losses(client, message).numpy())
    pi = np.full(9, 1 / 9)
    for _ in range(steps):
        joint = pi * likelihoods
        pi = (joint / joint.sum(1, keepdims=True)).mean(0)
    assert state.steps == steps
    assert np.allclose(state.pi.flatten().numpy(), pi)


def test_a_start_in_which_nobody_answers_is_made_up_for():
    plan = Plan(rounds=6, dropout=0.8, evaluate_every=6, seed=3)
    summary = toys.result(
        toys.experiment(
            FedGMM(),
            toys.federation(clients=2),
            plan=plan,
            training=Training(lr=0.1, momentum=0.0, epochs=1, batch_size=32),
        )
    )
    assert np.isfinite(summary["final"]["local_log_likelihood"])


def test_the_covariance_is_exact_unless_asked_for_the_papers():
    data = split_up(*pooled(5), [60, 120])
    exact, papers = (
        played(
            FedGMMUnsupervised(
                num_gaussians=1, covariance=kind, embedding="identity", regulariser=0
            ),
            data,
            rounds=1,
        )[1]
        for kind in ("exact", "paper")
    )
    x = pooled(5)[0].astype(np.float64)
    assert np.allclose(exact.gaussians.covariances[0], np.cov(x.T, ddof=0))
    own = [np.cov(part.T, ddof=0) * len(part) / len(x) for part in np.split(x, [60, 120])]
    assert np.allclose(papers.gaussians.covariances[0], sum(own))


def test_partial_participation_uses_the_cohort():
    """A round of two clients is a round of a federation that has no others."""
    data = toys.federation()
    made = toys.experiment(
        FedGMM(embedding="identity"), data, plan=Plan(rounds=1, cohort=2, evaluate_every=5)
    )
    progress = made.start()
    *start, last = made.turns
    for turn in start:
        made.play(turn, progress)
    asked = made._assemble(last, progress).ids
    alone = toys.experiment(
        FedGMM(embedding="identity"), data, plan=Plan(rounds=1, evaluate_every=5)
    )
    twin = alone.start()
    for turn in start:
        alone.play(turn, twin)
    assert tree.equal(twin.server, progress.server)
    made.play(last, progress)
    alone.roster = alone.roster._replace(population=asked)
    alone.cohort_size = len(asked)
    alone.play(last, twin)
    assert len(asked) == 2
    assert tree.equal(twin.server, progress.server)


def test_the_common_weights_are_the_mean_of_all_clients_last_ones():
    """Also of those that are not in the cohort; the server holds a sum."""
    made = toys.experiment(
        FedGMM(embedding="identity"), plan=Plan(rounds=12, cohort=2, dropout=0.2, evaluate_every=12)
    )
    progress = made.run(made.start())
    own = [toys.state(made, id)["pi"] for id in made.executor.states.ids()]
    assert len(own) >= 4
    assert torch.allclose(progress.server.pi, torch.stack(own).mean(0), atol=1e-12)


def test_who_misses_the_start_still_trains():
    plan = Plan(rounds=40, dropout=0.3, evaluate_every=40)
    made = toys.experiment(FedGMMUnsupervised(), toys.federation(clients=8), plan=plan)
    made.run(made.start())
    assert made.executor.states.ids() == list(made.federation.participants)


def test_examples_that_are_all_alike():
    x = np.ones((6, 4), dtype=np.float32)
    _, server, _, _ = played(
        FedGMMUnsupervised(embedding="identity"),
        split_up(x, np.zeros(6, dtype=np.int64), [3]),
        rounds=2,
    )
    assert torch.isfinite(server.gaussians.covariances).all()


def test_too_many_features_for_second_moments():
    data = toys.federation(features=5000, clients=1, examples=2)
    with pytest.raises(
        SettingError,
        match="embedding 'pca' takes at most 4096 features, got 5000: choose an encoder",
    ):
        toys.experiment(FedGMM(), data).start()


def test_an_evaluation_asks_each_classifier_once_for_an_example(monkeypatch):
    """Scores and likelihoods are made of the same predictions."""
    made = toys.experiment(FedGMM(), plan=Plan(rounds=1, evaluate_every=1, noise_seed=0))
    progress = made.run(made.start())
    client = toys.client(made.federation.splits("client-0").train, made.setup.model)
    passes = []
    whole = type(client).logits

    def counted(self, params, examples=None):
        passes.append(len(examples))
        return whole(self, params, examples)

    monkeypatch.setattr(type(client), "logits", counted)
    message = made.algorithm.message(progress.server, None)
    client._published = made.executor._node._get_published
    splits = made.federation.splits("client-0")
    state = {"pi": made.algorithm.equal_weights()}
    client.has_state = True
    options = {"new": False, "tune_epochs": 0, "splits": ["test", "validation"]}
    evaluate.evaluate(made.algorithm, client, splits, state, message, options)
    assert passes == [len(splits.test)] * 3 + [len(splits.validation)] * 3
