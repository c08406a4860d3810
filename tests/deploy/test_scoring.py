"""Scores of samples, against densities that scipy computes from the saved model."""

import csv
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from command import concordfl
from concordfl import DataError, Key, SettingError, run
from concordfl.data.datasets import DATASETS
from concordfl.deploy.finished import FinishedRun
from concordfl.deploy.newcomer import adapt
from concordfl.deploy.scoring import Scored, normalise, score, score_both

SECTIONS = {
    "data": {"name": "digits", "standardise": False},
    "scenario": {"clients": 4, "split": [0.5, 0.3, 0.2]},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "momentum": 0.9, "batch_size": 32, "epochs": 1},
    "run": {"rounds": 20, "evaluate_every": 20},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Finished runs, one per method; and files of familiar samples, with and without labels, and of
    noise.
    """
    root = tmp_path_factory.mktemp("scoring")
    methods = {
        "fedgmm": {"dimensions": 48},
        "fedgmm-unsupervised": {"dimensions": 48},
        "fedavg": {},
        "fedavg-ft": {},
    }
    for name, options in methods.items():
        run(**SECTIONS, algorithm={"name": name, **options}, out=root / name)
    test = DATASETS["digits"]().load(Key(1)).test
    np.savez(root / "familiar.npz", x=test.x, y=test.y)
    np.savez(root / "unlabelled.npz", x=test.x)
    np.savez(
        root / "noise.npz",
        x=np.random.default_rng(0).integers(256, size=(100, 8, 8), dtype=np.uint8),
    )
    return root


def by_scipy(folder, x):
    """log p(x) from the published frame, the saved Gaussians and the saved π."""
    model = load_file(folder / "models" / "final.safetensors")
    finished = FinishedRun.open(folder)
    frame = finished.client(
        "a", finished.preprocessing.to_examples(DATASETS["digits"]().load(Key(1)).test)
    ).published("embedding")["frame"]
    flat = (x.reshape(len(x), -1) / np.float32(255)).astype(np.float64)
    embedded = (flat - frame.mean.numpy()) @ frame.axes.numpy()
    pi = model["pi"].numpy().reshape(3, -1).sum(1)
    each = [
        multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(embedded)
        for mean, covariance in zip(
            model["gaussians.means"], model["gaussians.covariances"], strict=True
        )
    ]
    return logsumexp(np.stack(each, axis=1) + np.log(pi), axis=1)


@pytest.mark.parametrize("name", ["fedgmm", "fedgmm-unsupervised"])
def test_scores_are_log_densities(folder, name):
    x = np.load(folder / "familiar.npz")["x"]
    scored = score(folder / name, folder / "unlabelled.npz")
    assert list(scored.columns) == ["log_p_x", "score"]
    assert np.allclose(scored.score, by_scipy(folder / name, x), atol=1e-4)
    labelled = score(folder / name, folder / "familiar.npz")
    assert ("log_p_y_given_x" in labelled.columns) == (name == "fedgmm")
    if name == "fedgmm":
        assert np.allclose(labelled.score, scored.score + labelled.columns["log_p_y_given_x"])
        assert labelled.columns["log_p_y_given_x"].max() <= 0


@pytest.mark.parametrize("name", ["fedgmm", "fedgmm-unsupervised", "fedavg", "fedavg-ft"])
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_false_alarms_are_as_rare_as_asked(folder, name, rate):
    """On data that were not used: 364 samples, so within four points."""
    scored = score(folder / name, folder / "unlabelled.npz", rate)
    assert scored.novel.mean() == pytest.approx(rate, abs=0.04)


def test_noise_is_novel(folder):
    assert score(folder / "fedgmm", folder / "noise.npz").novel.mean() > 0.99
    assert score(folder / "fedgmm-unsupervised", folder / "noise.npz").novel.mean() > 0.99


def test_other_methods_are_scored_by_their_confidence(folder):
    x = np.load(folder / "familiar.npz")["x"]
    finished = FinishedRun.open(folder / "fedavg")
    scored = score(folder / "fedavg", folder / "familiar.npz")
    with torch.no_grad():
        probabilities = finished.model.logits(
            finished.progress.server, torch.from_numpy(x / np.float32(255))[:, None].squeeze(-1)
        ).softmax(1)
    assert np.allclose(scored.score, probabilities.max(1).values.numpy(), atol=1e-6)
    # Personal methods: the most confident of the clients, so at least as confident as any one of
    # them.
    tuned = score(folder / "fedavg-ft", folder / "familiar.npz")
    assert list(tuned.columns) == ["score"]
    assert (tuned.score <= 1).all()
    assert tuned.score.mean() > scored.score.mean()


def test_adapting_says_how_likely_a_newcomer_is(folder):
    answer = adapt(folder / "fedgmm", folder / "familiar.npz")
    assert answer["log_likelihood"]["own_weights"] == pytest.approx(
        answer["log_likelihood"]["all_clients"], rel=0.1
    )
    assert answer["tested_on"]["accuracy"] > 0.5
    alone = adapt(folder / "fedgmm-unsupervised", folder / "familiar.npz")
    assert alone["tested_on"] == {"examples": 182}
    with pytest.raises(DataError, match="a client that joins must have labels, got none"):
        adapt(folder / "fedgmm", folder / "unlabelled.npz")


def test_the_command_writes_a_table(folder):
    done = concordfl(
        folder,
        "score",
        folder / "fedgmm",
        "--data",
        folder / "noise.npz",
        "--against",
        folder / "unlabelled.npz",
    )
    assert done.returncode == 0, done.stderr
    assert "100 samples, 100 of them novel" in done.stdout
    # 364 familiar samples and 100 others: 364/464, and an F1 of 2 · 364 / (364 + 464)
    assert "AUROC 1.0000, AP 1.0000 (base rate 0.7845)" in done.stdout
    assert "max-F1 1.0000 (of calling all familiar: 0.8792)" in done.stdout
    rows = list(csv.DictReader((folder / "fedgmm/scores/noise.csv").read_text().splitlines()))
    assert len(rows) == 100
    assert list(rows[0]) == ["sample", "log_p_x", "score", "verdict"]
    assert {row["verdict"] for row in rows} == {"novel"}
    done = concordfl(
        folder,
        "score",
        folder / "fedgmm",
        "--data",
        folder / "familiar.npz",
        "--out",
        folder / "scores.json",
    )
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "scores.json").read_text())
    assert written["false_alarm"] == 0.05
    assert written["samples"][0]["verdict"] in ("familiar", "novel")


def test_what_cannot_be_scored(folder, tmp_path):
    with pytest.raises(SettingError, match="the false-alarm rate must be between 0 and 1, got 0"):
        score(folder / "fedgmm", folder / "noise.npz", 0)
    with pytest.raises(
        SettingError,
        match="the false-alarm rate must be from 0.005 to 0.995, as the run keeps it, got 0.001",
    ):
        score(folder / "fedgmm", folder / "noise.npz", 0.001)
    np.savez(tmp_path / "none.npz", x=np.zeros((0, 8, 8), np.uint8))
    with pytest.raises(DataError, match="there must be at least one sample, got none"):
        score(folder / "fedgmm", tmp_path / "none.npz")
    np.savez(tmp_path / "odd.npz", x=np.zeros((3, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"must have the shape \[1, 8, 8\], got \[1, 4, 4\]"):
        score(folder / "fedgmm", tmp_path / "odd.npz")
    refused = concordfl(
        folder,
        "score",
        folder / "fedgmm",
        "--data",
        folder / "noise.npz",
        "--out",
        tmp_path / "a.txt",
    )
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--out must be a .csv or .json file" in refused.stderr


def test_without_validation_data_there_are_no_verdicts(tmp_path, folder):
    sections = SECTIONS | {
        "scenario": {"clients": 2, "split": [0.8, 0.0, 0.2]},
        "run": {"rounds": 1},
    }
    run(
        **sections, algorithm={"name": "fedgmm-unsupervised", "dimensions": 4}, out=tmp_path / "run"
    )
    scored = score(tmp_path / "run", folder / "noise.npz")
    assert scored.threshold is None
    assert scored.novel is None
    done = concordfl(tmp_path, "score", tmp_path / "run", "--data", folder / "noise.npz")
    assert "no verdicts, as there is no threshold from validation data" in done.stdout


def test_two_files_are_scored_alike(folder, tmp_path):
    """With labels only if both have them, and they are the run's."""
    labelled, plain = score_both(
        folder / "fedgmm", folder / "familiar.npz", folder / "unlabelled.npz"
    )
    assert np.array_equal(labelled.score, plain.score)
    x = np.load(folder / "familiar.npz")["x"]
    np.savez(tmp_path / "letters.npz", x=x, y=np.full(len(x), "A"))
    assert np.array_equal(score(folder / "fedgmm", tmp_path / "letters.npz").score, plain.score)


def test_a_client_without_labels_may_join_where_none_are_needed(folder):
    assert adapt(folder / "fedgmm-unsupervised", folder / "unlabelled.npz")["tested_on"] == {
        "examples": 182
    }


def test_terms_may_be_brought_to_one_range_before_they_are_added(folder, tmp_path):
    def scored(log_x, log_y):
        columns = {"log_p_x": np.array(log_x), "log_p_y_given_x": np.array(log_y)}
        return Scored({**columns, "score": sum(columns.values())}, -5.0, 0.05)

    # log p(x) from -300 to 100, log p(y|x) from -4 to 0
    familiar, novel = normalise(scored([0.0, 100.0], [-1.0, 0.0]), scored([-300.0], [-4.0]))
    assert familiar.score.tolist() == [0.75 + 0.75, 1.0 + 1.0]
    assert novel.score.tolist() == [0.0]
    assert familiar.threshold is None
    alike, _ = normalise(scored([2.0], [-3.0]), scored([2.0], [-3.0]))
    assert alike.score.tolist() == [0.0]
    # where there is one term, its order is all that counts
    single = score(folder / "fedgmm", folder / "noise.npz")
    assert normalise(single, single) == [single, single]

    x, y = (np.load(folder / "familiar.npz")[part] for part in ("x", "y"))
    np.savez(tmp_path / "permuted.npz", x=x, y=(y + 1) % 10)
    command = ("score", folder / "fedgmm", "--data", tmp_path / "permuted.npz", "--normalise")
    refused = concordfl(folder, *command)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--normalise needs --against" in refused.stderr
    out = tmp_path / "scores.csv"
    done = concordfl(folder, *command, "--against", folder / "familiar.npz", "--out", out)
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert "verdict" not in rows[0]
    values = np.array([[float(value) for value in row.values()] for row in rows])
    assert np.allclose(values[:, 3], values[:, 1] + values[:, 2])
    assert values[:, 1:3].min() >= 0
    assert values[:, 1:3].max() <= 1
