"""Predictions of a finished run in the user's own terms: labels, units, columns, files."""

import csv
import pickle

import numpy as np
import pandas as pd
import pytest
import torch

import concordfl as cf
from command import concordfl
from concordfl.core import Predictor


def patients(seed, rows=60):
    """A table in units of very different size, with a column of text and missing cells."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "pressure": rng.normal(1.2e5, 1e4, rows),
            "smokes": rng.choice(["yes", "no", "former"], rows),
        }
    )
    risk = (frame.age - 55) / 20 + (frame.smokes == "yes") + rng.normal(size=rows) / 4
    frame["state"] = np.where(risk > 0.3, "ill", "well")
    frame.loc[rng.random(rows) < 0.1, "pressure"] = np.nan
    frame.loc[rng.random(rows) < 0.1, "smokes"] = None
    return frame


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A finished run on tables of three clinics, and new.csv of a fourth."""
    path = tmp_path_factory.mktemp("using")
    (path / "clinics").mkdir()
    for number, name in enumerate("abc"):
        patients(number).to_csv(path / f"clinics/{name}.csv", index=False)
    patients(9).to_csv(path / "new.csv", index=False)
    cf.run(
        data={"folder": str(path / "clinics"), "label": "state"},
        training={"lr": 0.2},
        run={"rounds": 10, "executor": "serial", "evaluate_every": 10},
        algorithm="fedavg-ft",
        out=path / "run",
    )
    return path


@pytest.fixture(scope="module")
def result(folder):
    return cf.load(folder / "run")


def rows_of(file):
    return list(csv.DictReader(file.read_text().splitlines()))


def test_labels_are_the_users(result):
    frame = patients(9)
    predicted = result.predict(frame)
    assert set(predicted) == {"ill", "well"}
    assert (predicted == frame.state).mean() > 0.8
    assert result.classes.tolist() == ["ill", "well"]
    probabilities = result.predict_proba(frame)
    assert np.allclose(probabilities.sum(1), 1)
    assert np.array_equal(result.classes[probabilities.argmax(1)], predicted)
    assert result.score(frame, frame.state)["accuracy"] == (predicted == frame.state).mean()


def test_columns_of_a_frame_are_matched_by_name(result):
    frame = patients(9)
    expected = result.predict_proba(frame)
    turned = frame[["smokes", "state", "pressure", "age"]]
    assert np.array_equal(result.predict_proba(turned), expected)
    assert np.array_equal(result.predict_proba(frame.drop(columns="state")), expected)
    with pytest.raises(cf.DataError, match="must be those of the run, got none called age"):
        result.predict(frame.drop(columns="age"))
    with pytest.raises(cf.DataError, match="got height beside them"):
        result.predict(frame.assign(height=1.0))
    with pytest.raises(cf.DataError, match="column 'age' must be a number or missing, got"):
        result.predict(frame.assign(age="old"))


def test_a_frame_and_its_file_give_the_same(result, folder):
    done = concordfl(folder, "predict", "run", "--data", "new.csv", "-o", "predictions.csv")
    assert done.returncode == 0, done.stderr
    rows = rows_of(folder / "predictions.csv")
    assert list(rows[0]) == ["sample", "label", "prediction", "p(ill)", "p(well)"]
    frame = patients(9)
    assert [row["prediction"] for row in rows] == result.predict(frame).tolist()
    assert np.allclose([float(row["p(ill)"]) for row in rows], result.predict_proba(frame)[:, 0])
    accuracy = result.score(frame, frame.state)["accuracy"]
    assert done.stdout == (
        "60 samples, predicted by the shared model\n"
        f"accuracy {100 * accuracy:.1f} on their labels\nWritten to predictions.csv\n"
    )


def test_labels_in_the_file_are_not_needed(folder):
    patients(9).drop(columns="state").to_csv(folder / "blank.csv", index=False)
    done = concordfl(folder, "predict", "run", "--data", "blank.csv", "--client", "b")
    assert done.stdout == (
        "60 samples, predicted by b\nWritten to run/predictions/blank by b.csv\n"
    )
    rows = rows_of(folder / "run/predictions/blank by b.csv")
    assert list(rows[0]) == ["sample", "prediction", "p(ill)", "p(well)"]
    patients(9).assign(state="dead").to_csv(folder / "dead.csv", index=False)
    done = concordfl(folder, "predict", "run", "--data", "dead.csv")
    assert "no accuracy, as the run does not know the labels dead" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nothing.csv"), "the client's data must exist, got nothing.csv"),
        (("--data", "empty.csv"), "empty.csv: there must be at least one sample, got none"),
        (("--data", "new.csv", "-o", "p.txt"), "--out must be a .csv file, got p.txt"),
        (("--data", "new.csv", "--client", "d"), "have adapted to it, got 'd': known are a, b, c"),
        (("--data", "narrow.csv"), "columns must be those of the run, got none called"),
    ],
)
def test_what_cannot_be_predicted_is_one_line(folder, arguments, message):
    (folder / "empty.csv").write_text("age,pressure,smokes,state\n")
    (folder / "narrow.csv").write_text("age,state\n1,ill\n")
    done = concordfl(folder, "predict", "run", *arguments)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert message in done.stderr


def test_the_module_takes_the_encoded_columns(result):
    """Numbers in their own units, NaN where one is missing, an indicator per category."""
    module = result.model(client="a")
    assert module.features == ("age", "pressure", "smokes=former", "smokes=no", "smokes=yes")
    rows = torch.tensor([[40, 1.2e5, 0, 1, 0], [80, torch.nan, 0, 0, 1]])
    frame = pd.DataFrame({"age": [40, 80], "pressure": [1.2e5, None], "smokes": ["no", "yes"]})
    expected = torch.from_numpy(result.predict_proba(frame, client="a")).float()
    assert torch.allclose(module(rows), expected, atol=1e-6)


def test_numbers_are_classes_as_numbers():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2))
    clients = {"a": (x[:20], 1 + (x[:20, 0] > 0)), "b": (x[20:], 1 + (x[20:, 0] > 0))}
    result = cf.run(clients=clients, rounds=2, run={"executor": "serial"})
    assert result.classes.tolist() == [1, 2]
    assert result.predict(x.tolist()).dtype.kind == "i"
    assert np.array_equal(result.predict(x.tolist()), result.predict(torch.from_numpy(x)))
    with pytest.raises(cf.DataError, match=r"examples must have the shape \[2\], got \[3\]"):
        result.predict(np.zeros((1, 3)))
    with pytest.raises(cf.DataError, match="X: x must be an array of numbers|x must be uint8"):
        result.predict([["a", "b"]])
    with pytest.raises(cf.DataError, match="labels must be among 1, 2, got 7"):
        result.score(x, np.full(40, 7))


def test_clients_may_be_called_by_whole_numbers():
    rng = np.random.default_rng(0)
    clients = {number: (rng.normal(size=(20, 2)), np.arange(20) % 2) for number in (3, 4)}
    result = cf.run(clients=clients, algorithm="fedem", rounds=1, run={"executor": "serial"})
    x, y = clients[3]
    assert np.array_equal(result.predict(x, client=3), result.predict(x, client="3"))
    result.adapt(x, y, name=7)
    assert result.score(x, y, client=np.int64(7))["examples"] == 20
    with pytest.raises(cf.DataError, match="a client's name must be text or a whole number, got"):
        result.predict(x, client=3.5)


def test_a_result_can_be_pickled_and_shown(result):
    expected = result.predict_proba(patients(9), client="c")
    again = pickle.loads(pickle.dumps(result))
    assert np.array_equal(again.predict_proba(patients(9), client="c"), expected)
    assert repr(result).startswith("Result('fedavg-ft', rounds=10, accuracy=0.")


def accuracies(result):
    return {id: row["accuracy"] for id, row in result.clients().items()}


def test_a_run_from_memory_is_saved_with_its_examples(tmp_path):
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(20, 2)), np.arange(20) % 2) for name in "ab"}
    result = cf.run(clients=clients, algorithm="ditto", rounds=2, run={"executor": "serial"})
    joined = result.save(tmp_path / "run")
    loaded = cf.load(tmp_path / "run")
    x, _ = clients["a"]
    for again in (joined, loaded):
        assert np.array_equal(
            again.predict_proba(x, client="a"), result.predict_proba(x, client="a")
        )
    assert accuracies(loaded) == accuracies(result)
    copy = loaded.save(tmp_path / "copy")
    assert np.array_equal(copy.predict_proba(x, client="b"), result.predict_proba(x, client="b"))
    assert cf.resume(tmp_path / "copy").summary["final"] == result.summary["final"]
    with pytest.raises(cf.CheckpointError, match="the output folder must be new or empty"):
        result.save(tmp_path / "run")


@pytest.mark.parametrize("name", ["fedavg", "fedem", "ditto", "fedavg-ft"])
def test_a_runs_data_are_needed_only_to_prepare_a_model_from_them(name, tmp_path):
    (tmp_path / "clinics").mkdir()
    for number, client in enumerate("ab"):
        patients(number).to_csv(tmp_path / f"clinics/{client}.csv", index=False)
    result = cf.run(
        data={"folder": str(tmp_path / "clinics"), "label": "state"},
        run={"rounds": 1, "executor": "serial"},
        algorithm=name,
        out=tmp_path / "run",
    )
    expected = result.predict_proba(patients(9), client="a")
    (tmp_path / "clinics").rename(tmp_path / "elsewhere")
    alone = cf.load(tmp_path / "run")
    if name == "fedavg-ft":
        with pytest.raises(cf.DataError, match=r"data.folder must be a folder, got"):
            alone.predict(patients(9), client="a")
    else:
        assert np.array_equal(alone.predict_proba(patients(9), client="a"), expected)


def test_a_clients_model_is_prepared_once(result, monkeypatch):
    frame = patients(9)
    expected = result.predict_proba(frame, client="b")
    monkeypatch.setattr(Predictor, "prepare", None)
    assert np.array_equal(result.predict_proba(frame, client="b"), expected)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.head(x)


def test_objects_of_a_notebook_are_given_again(tmp_path):
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(20, 2)), np.arange(20) % 2) for name in "ab"}
    net = Net()
    net.__class__ = type("Local", (Net,), {"__module__": "__main__"})
    result = cf.run(clients=clients, model=net, rounds=1, run={"executor": "serial"})
    saved = result.save(tmp_path / "run")
    x, _ = clients["a"]
    assert np.array_equal(saved.predict_proba(x), result.predict_proba(x))
    with pytest.raises(cf.SettingError, match="model"):
        cf.load(tmp_path / "run")
    again = cf.load(tmp_path / "run", model=net)
    assert np.array_equal(again.predict_proba(x), result.predict_proba(x))


def test_a_run_is_opened_when_that_is_needed(folder, monkeypatch):
    """A comparison of many runs needs their figures alone."""
    monkeypatch.setattr(Predictor, "prepare", None)
    again = cf.resume(folder / "run")
    assert again.accuracy > 0.5
    assert "finished" not in vars(again)


def test_a_method_without_labels_predicts_none(tmp_path):
    rng = np.random.default_rng(0)
    clients = {name: (rng.normal(size=(20, 2)), np.arange(20) % 2) for name in "ab"}
    result = cf.run(
        clients=clients, algorithm="fedgmm-unsupervised", rounds=1, run={"executor": "serial"}
    )
    with pytest.raises(cf.SettingError, match="predict needs a method that predicts labels, got"):
        result.predict(clients["a"][0], client="a")
    answer = result.adapt(clients["a"][0], name="c")
    assert answer["adapted"]["parts"] == ["its mixture weights"]
