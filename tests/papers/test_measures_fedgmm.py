"""What the FedGMM paper's tables and pictures show, against the same by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score

from concordfl import Key, papers
from concordfl.core import Examples
from concordfl.data import Arrays
from concordfl.deploy.finished import FinishedRun
from concordfl.papers import measures_fedgmm as measures
from concordfl.papers.entries import Part
from concordfl.scenarios.shift import Scale
from concordfl.study.cells import cells
from concordfl.study.compare import finish


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    """Finished runs of entries at the smallest scale."""
    paper = papers.read_paper("fedgmm")

    def played(setting, method, rounds=2, **algorithm):
        table = paper.table(
            Part(setting=setting, method=method, set={"algorithm": algorithm}), "tiny"
        )
        table["run"]["rounds"] = rounds
        folder = tmp_path_factory.mktemp("runs") / "run"
        finish(cells(table, [method], [0])[method, 0], folder)
        return FinishedRun.open(folder)

    return played


@pytest.fixture(scope="module")
def joint(play):
    return play("novelty + mnist-50", "fedgmm")


def points(panel):
    return {each["name"]: (np.array(each["x"]), np.array(each["y"])) for each in panel["series"]}


def likelihood(finished, examples):
    """By hand: log p(x) and log p(y|x) under the mean weights of all clients."""
    server, client = finished.progress.server, finished.client("anybody", examples)
    embedded = finished.algorithm.embed(client, examples).numpy()
    means, covariances = (part.numpy() for part in server.gaussians)
    log_normal = np.stack(
        [
            multivariate_normal(mean, covariance).logpdf(embedded)
            for mean, covariance in zip(means, covariances, strict=True)
        ],
        1,
    )
    of_label = np.stack(
        [
            client.predictions(params, examples).numpy()[np.arange(len(examples)), examples.y]
            for params in server.models.values()
        ],
        1,
    )
    pi = server.pi.numpy()
    log_x = logsumexp(log_normal, axis=1, b=pi.sum(1))
    log_xy = logsumexp(log_normal, axis=1, b=of_label @ pi.T)
    return log_x, log_xy - log_x


def auroc(familiar, novel):
    truth = [1] * len(familiar) + [0] * len(novel)
    return pytest.approx(roc_auc_score(truth, [*familiar, *novel]), abs=1e-3)


def with_labels(examples, renamed):
    return Examples(
        examples.x, torch.tensor([renamed[y] for y in examples.y.tolist()]), scale=examples.scale
    )


def own_tests(finished):
    federation = finished.federation()
    tests = [federation.splits(id).test for id in federation.participants]
    x, y = (torch.cat([getattr(test, part) for test in tests]) for part in ("x", "y"))
    return Examples(x, y, scale=federation.scale)


def test_unseen_digit_and_altered_labels(play):
    finished = play("without-1 + mnist-50", "fedgmm")
    found = measures.unseen_digit(finished)
    official = replace(finished.settings.data, without=None).load(Key(0)).test
    examples = finished.preprocessing.to_examples(official)
    renamed = dict(zip([0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [2, 1, 3, 4, 5, 6, 7, 8, 9, 0], strict=True))
    ones = official.y == 1
    log_x, log_y = likelihood(finished, examples)
    _, log_altered = likelihood(finished, with_labels(examples, renamed))
    shown = points(found["panels"][0])
    expected = {
        "familiar": (log_x[~ones], log_y[~ones]),
        "digit 1": (log_x[ones], log_y[ones]),
        "altered labels": (log_x[~ones], log_altered[~ones]),
    }
    assert list(shown) == list(expected)
    for name, (x, y) in expected.items():
        assert np.allclose(shown[name][0], x, atol=1e-3)
        assert np.allclose(shown[name][1], y, atol=1e-3)
    assert found["digit_1"] == auroc(log_x[~ones], log_x[ones])
    assert found["altered_labels"] == auroc(log_y[~ones], log_altered[~ones])


def test_altered_labels_among_the_clients(joint):
    tests = own_tests(joint)
    renamed = {y: (y + 1) % 10 for y in range(10)}
    (log_x, log_y), (_, log_altered) = (
        likelihood(joint, examples) for examples in (tests, with_labels(tests, renamed))
    )
    both = np.concatenate([log_x + log_y, log_x + log_altered])
    unit = (both - both.min()) / (both.max() - both.min())
    found = measures.altered_labels(joint)
    shown = points(found["panels"][0])
    for name, own in zip(("familiar", "novel"), np.split(unit, 2), strict=True):
        edges, shares = shown[name]
        assert sum(shares) == pytest.approx(1)
        assert np.cumsum(shares)[19] == pytest.approx(np.mean(own < edges[20]), abs=0.02)
    assert found["auroc"] == auroc(log_x + log_y, log_x + log_altered)
    by_term = measures.altered_labels_by_term(joint)
    assert by_term["auroc"] == auroc(log_y, log_altered)
    assert np.allclose(points(by_term["panels"][0])["altered labels"][1], log_altered, atol=1e-3)


def changed_by_hand(examples, size):
    """Scaled about the middle (8x8 images to `size`), and turned by 90 degrees."""
    shrunk = Scale(factor=size)
    arrays = shrunk.change(Arrays(examples.x.numpy(), examples.y.numpy()), 10, Key(0), Key(0))
    return np.rot90(arrays.x, axes=(1, 2))


def test_novel_images(joint, play):
    tests = own_tests(joint)
    turned = torch.from_numpy(changed_by_hand(tests, 0.8).copy())
    mirrored = torch.from_numpy(changed_by_hand(tests, 0.5)[:, :, ::-1].copy())
    seen = sum(likelihood(joint, tests))
    for look, images in ((measures.altered_images, turned), (measures.novel_images, mirrored)):
        terms = likelihood(joint, Examples(images, tests.y, scale=tests.scale))
        found = look(joint)
        assert found["auroc"] == auroc(seen, sum(terms))
    assert found["log_p_x"]["auroc"] == auroc(likelihood(joint, tests)[0], terms[0])
    assert set(found["normalised"]) == {"auroc", "ap", "max_f1"}

    averaged = play("novelty + mnist-50", "fedavg")
    client, params = averaged.client("anybody", tests), averaged.progress.server
    confidence = [
        client.predictions(params, Examples(x, tests.y, scale=tests.scale)).numpy().max(1)
        for x in (tests.x, mirrored)
    ]
    found = measures.novel_images(averaged)
    assert found["auroc"] == auroc(*confidence)
    assert set(found) == {"panels", "auroc", "ap", "max_f1"}


def test_labels_along_a_line(play):
    finished = play("line", "fedavg")
    found = measures.labels_along_a_line(finished)
    shown = points(found["panels"][0])
    x, true = shown["true"]
    # Below -2 both Gaussians say 1, above 2 both say 0; between them it is the second's share.
    assert np.allclose(true[(x < -2) | (x >= 2)], (x[(x < -2) | (x >= 2)] < 0))
    between = (x >= -2) & (x < 2)
    assert np.allclose(true[between], 1 / (1 + np.exp(-4 * x[between] / 1.5)))
    client = finished.client("anybody", finished.federation().splits("client-000").train)
    line = Examples(torch.tensor(x, dtype=torch.float32)[:, None], torch.zeros(len(x)).long())
    own = client.predictions(finished.progress.server, line)[:, 1].numpy()
    assert np.allclose(shown["fedavg"][1], own, atol=1e-6)
    assert found["accuracy"] == finished.summary["final"]["global_accuracy"]


def test_accuracy_by_steps_is_that_of_runs_with_so_many(play):
    found = measures.accuracy_by_steps(play("mnist", "fedgmm", rounds=10))
    for steps in (1, 10):
        own = play("mnist", "fedgmm", rounds=10, adapt_steps=steps)
        assert found["steps"][str(steps)] == own.summary["final"]["global_accuracy"]
    assert 0 < found["steps"]["1"] != found["steps"]["10"]
    (drawn,) = points(found["panels"][0]).values()
    assert drawn[1].tolist() == list(found["steps"].values())
