"""A client that was not in training joins a finished run."""

import json
import threading
import time

import numpy as np
import pytest
from sklearn.datasets import load_digits

import concordfl as cf
from command import concordfl
from concordfl import run
from concordfl.deploy import kept
from concordfl.deploy.newcomer import adapt, sentence
from concordfl.engine.records import RunFolder

SECTIONS = {
    "data": {"name": "digits", "limit": 150, "test_limit": 20},
    "scenario": {"clients": 3},
    "model": {"name": "mlp", "hidden": [8]},
    "run": {"rounds": 2, "executor": "serial"},
}


def digits(first, last):
    """Images and labels as a clinic has them."""
    x, y = load_digits(return_X_y=True)
    return x[first:last].reshape(-1, 8, 8, 1).astype(np.uint8) * 15, y[first:last]


@pytest.fixture
def folder(tmp_path):
    """A finished run of FedEM in `run`, beside clinic.npz."""
    run(**SECTIONS, algorithm="fedem", out=tmp_path / "run")
    x, y = digits(1500, 1540)
    np.savez(tmp_path / "clinic.npz", x=x, y=y)
    return tmp_path


def test_a_newcomer_tunes_the_shared_model_where_the_run_says_so(tmp_path):
    """FedAvg with `tune_new` then serves it as FedAvg-FT does."""
    x, y = digits(1500, None)
    np.savez(tmp_path / "clinic.npz", x=x, y=y)
    tested, predicted = {}, {}
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
        predicted[name, tune] = cf.load(folder).predict_proba(x, client="clinic")
    assert tested["fedavg", 2] == tested["fedavg-ft", 0]
    assert np.array_equal(predicted["fedavg", 2], predicted["fedavg-ft", 0])
    assert tested["fedavg", 2]["loss"] < tested["fedavg", 0]["loss"]


SAID = {
    "fedavg": "nothing to adapt: fedavg serves new clients with the shared model as it is",
    "apfl": "nothing to adapt: apfl serves new clients with the shared model as it is",
    "cfl": "nothing to adapt: cfl serves new clients with the shared model as it is",
    "fedem": "adapted: its mixture weights",
    "fedrep": "adapted: its head",
    "ifca": "adapted: the choice of its model",
    "fedvc": "adapted: its preference for concepts; predictions are those of the shared model",
}


@pytest.mark.parametrize("name", SAID)
def test_it_is_said_what_was_adapted(name):
    result = run(**SECTIONS, algorithm=name)
    answer = result.adapt(*digits(1500, 1520), name="clinic", test=False)
    assert sentence(answer) == SAID[name]
    assert answer["kept_from"] == 20
    x, _ = digits(1520, 1530)
    is_shared = "shared model" in SAID[name]
    assert answer["adapted"]["changes_predictions"] is not is_shared
    if is_shared:
        assert np.array_equal(result.predict(x, client="clinic"), result.predict(x))


def test_tuning_is_said_too():
    sections = SECTIONS | {"run": SECTIONS["run"] | {"tune_new": 2}}
    answer = run(**sections, algorithm="fedavg").adapt(*digits(1500, 1520), name="clinic")
    assert sentence(answer) == "adapted: the shared model, tuned for 2 epochs"


def test_what_is_kept_is_adapted_to_all_examples():
    """And what is said of it comes from one half, tested on the other."""
    result = run(**SECTIONS, algorithm="fedem")
    x, y = digits(1500, 1520)
    answer = result.adapt(x, y, name="clinic")
    assert (answer["adapted_on"], answer["tested_on"]["examples"]) == (10, 10)
    kept = result.finished.kept.newcomer("clinic").state["omega"]
    losses = result.finished.predictor("clinic", result._prepare(x, y), new=True).state["omega"]
    assert np.array_equal(kept, losses)
    alone = result.adapt(x[:1], y[:1], name="alone")
    assert "tested_on" not in alone


def test_a_client_that_has_adapted_predicts_by_command(folder):
    assert (
        concordfl(folder, "adapt", "run", "--data", "clinic.npz", "--client", "b/1").returncode == 0
    )
    done = concordfl(folder, "predict", "run", "--data", "clinic.npz", "--client", "b/1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40 samples, predicted by b/1\naccuracy ")
    refused = concordfl(folder, "predict", "run", "--data", "clinic.npz")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "client must be given, as 'fedem' has no model that serves everybody" in refused.stderr
    assert "or adapt to labelled examples of a new one" in refused.stderr


def test_where_nothing_is_adapted_nothing_is_said_to_be(folder):
    run(**SECTIONS, algorithm="fedavg", out=folder / "shared")
    said = concordfl(folder, "adapt", "shared", "--data", "clinic.npz").stdout.splitlines()
    assert said[0] == f"clinic: {SAID['fedavg']}"
    assert said[1].endswith(" on 20 of its 40 examples")


def test_who_cannot_join(folder):
    loaded = cf.load(folder / "run")
    taken = loaded.finished.kept.participants[0]
    x, y = digits(1500, 1510)
    with pytest.raises(cf.DataError, match="must have another name than those in training, got"):
        loaded.adapt(x, y, name=taken)
    with pytest.raises(cf.DataError, match="must have at least one example to adapt to, got none"):
        loaded.adapt(x[:0], y[:0], name="clinic")
    with pytest.raises(cf.SettingError, match="adapt needs a method that has a rule for new cli"):
        run(**SECTIONS, algorithm="local").adapt(x, y, name="clinic")
    with pytest.raises(cf.DataError, match="a client that joins must have labels, got none"):
        loaded.adapt(x, name="clinic")


@pytest.mark.parametrize("damage", ["answer", "predictor", "swapped", "other run"])
def test_what_is_kept_is_checked_when_it_is_read(folder, damage):
    loaded = cf.load(folder / "run")
    x, y = digits(1500, 1510)
    loaded.adapt(x, y, name="clinic")
    loaded.adapt(x[5:], y[5:], name="other")
    adapted = folder / "run/adapted"
    if damage == "answer":
        text = (adapted / "clinic.json").read_text()
        (adapted / "clinic.json").write_text(text.replace('"kept_from": 10', '"kept_from": 99'))
        message = "clinic.json is damaged or was edited .*: let the client adapt again"
    elif damage == "predictor":
        data = bytearray((adapted / "clinic.safetensors").read_bytes())
        data[-1] ^= 1
        (adapted / "clinic.safetensors").write_bytes(data)
        message = "clinic.safetensors is damaged or was edited .*: let the client adapt again"
    elif damage == "swapped":
        for ending in ("json", "safetensors"):
            (adapted / f"other.{ending}").replace(adapted / f"clinic.{ending}")
        message = "it must be of client 'clinic', got 'other'"
    else:
        run(**SECTIONS, algorithm={"name": "fedem", "num_models": 2}, out=folder / "second")
        (folder / "run/adapted").rename(folder / "second/adapted")
        loaded = cf.load(folder / "second")
        message = "is of another run than its folder: let the client adapt again"
    with pytest.raises(cf.ConcordError, match=message):
        loaded.predict(x, client="clinic")
    with pytest.raises(cf.SettingError, match="client must be of the run, or have adapted to it"):
        loaded.predict(x, client="nobody")
    loaded.adapt(x, y, name="clinic")
    assert loaded.predict(x, client="clinic").shape == (10,)


def test_adapting_again_gives_the_same_files(folder):
    found = []
    for _ in range(2):
        adapt(folder / "run", folder / "clinic.npz")
        files = sorted((folder / "run/adapted").iterdir())
        found.append({file.name: file.read_bytes() for file in files})
    assert found[0] == found[1]
    assert list(found[0]) == ["clinic.json", "clinic.safetensors"]
    assert json.loads(found[0]["clinic.json"])["client"] == "clinic"


def test_a_client_is_kept_by_one_process_at_a_time(folder, monkeypatch):
    """Its two files name each other."""
    monkeypatch.setattr(kept, "MAX_SECONDS_TO_WAIT", 0.1)
    with (
        RunFolder.open(folder / "run"),
        pytest.raises(cf.CheckpointError, match="must be used by one process at a time"),
    ):
        adapt(folder / "run", folder / "clinic.npz")
    assert not (folder / "run/adapted").exists()


def test_who_keeps_a_client_waits_for_another_who_does(folder):
    held = threading.Event()

    def hold():
        with RunFolder.open(folder / "run"):
            held.set()
            time.sleep(0.5)

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    adapt(folder / "run", folder / "clinic.npz")
    other.join()
    assert cf.load(folder / "run").predict(digits(0, 3)[0], client="clinic").shape == (3,)
